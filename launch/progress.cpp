#include "launch/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "common/clock.h"
#include "common/units.h"

namespace expertflow {
namespace {

constexpr int64_t kPlainIntervalNs = 2'000'000'000;

}  // namespace

ProgressLine::ProgressLine(bool plain) : terminal_(::isatty(STDERR_FILENO) != 0), plain_(plain) {}

ProgressLine::~ProgressLine() {
  Clear();
}

void ProgressLine::Show(const std::string& text) {
  if (text == last_) return;
  if (terminal_) {
    fmt::print(stderr, "\r\033[K{}", text);
    std::fflush(stderr);
    shown_ = true;
  } else if (plain_ && NowNs() >= next_plain_ns_) {
    fmt::print(stderr, "{}\n", text);
    next_plain_ns_ = NowNs() + kPlainIntervalNs;
  }
  last_ = text;
}

void ProgressLine::ShowBytes(const std::string& what, uint64_t done, uint64_t total) {
  const uint64_t percent =
      total == 0
          ? 100
          : static_cast<uint64_t>(100.0 * static_cast<double>(done) / static_cast<double>(total));
  Show(fmt::format("{} {} % of {}", what, percent, FormatBytes(total)));
}

void ProgressLine::Clear() {
  if (!shown_) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
  shown_ = false;
  last_.clear();
}

}  // namespace expertflow

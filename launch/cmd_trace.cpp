#include <fmt/format.h>

#include <array>
#include <string>
#include <vector>

#include "common/mapped_file.h"
#include "common/units.h"
#include "launch/commands.h"
#include "launch/perfetto.h"
#include "worker/timeline.h"

namespace expertflow {
namespace {

constexpr std::array<const char*, kSpanKinds> kNames = {"steps", "MoE layers", "stalls",
                                                        "demand copies", "prefetch copies"};

std::string Summary(const std::string& path, const Timeline& timeline) {
  struct Sum {
    uint64_t count = 0;
    int64_t ns = 0;
    uint64_t bytes = 0;
  };
  std::array<Sum, kSpanKinds> sums;
  for (const TimelineSpan& span : timeline.spans) {
    Sum& sum = sums[static_cast<size_t>(span.kind)];
    ++sum.count;
    sum.ns += span.end_ns - span.begin_ns;
    sum.bytes += span.bytes;
  }
  std::string text =
      fmt::format("{}: worker process {} on {}\n", path, timeline.header.pid, timeline.header.host);
  for (size_t kind = 0; kind < kSpanKinds; ++kind) {
    const Sum& sum = sums[kind];
    text += fmt::format("  {:<16} {:>9}  {:>9}", kNames[kind], sum.count, FormatDurationNs(sum.ns));
    const auto as_kind = static_cast<SpanKind>(kind);
    if (as_kind == SpanKind::kCopyDemand || as_kind == SpanKind::kCopyPrefetch) {
      text += fmt::format("  {}", FormatBytes(sum.bytes));
    }
    text += '\n';
  }
  return text;
}

}  // namespace

int TraceCommand(const Options& options) {
  std::vector<Timeline> timelines;
  for (const std::string& path : options.TextList("timeline")) {
    auto timeline = ReadTimeline(path);
    if (!timeline.ok()) return Fail(options, timeline.status());
    timelines.push_back(std::move(timeline).value());
    if (options.Text("perfetto").empty()) fmt::print("{}", Summary(path, timelines.back()));
  }
  if (const std::string file = options.Text("perfetto"); !file.empty()) {
    const Status written = WriteFileAtomically(file, PerfettoJson(timelines));
    if (!written.ok()) return Fail(options, written);
  }
  return kExitOk;
}

}  // namespace expertflow

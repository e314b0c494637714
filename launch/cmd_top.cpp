#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/process.h"
#include "launch/commands.h"
#include "launch/load/http_exchange.h"
#include "launch/load/server_options.h"
#include "launch/top/metric_samples.h"
#include "launch/top/top_screen.h"

namespace expertflow {
namespace {

constexpr int64_t kFetchMs = 10'000;
constexpr std::string_view kClear = "\x1b[H\x1b[2J";

struct Look {
  MetricSamples samples;
  int64_t at_ns = 0;
};

}  // namespace

int TopCommand(const Options& options) {
  const Result<ServerTarget> target = ServerTargetFrom(options);
  if (!target.ok()) return Fail(options, target.status());
  Result<SignalWatcher> signals = SignalWatcher::Create();
  if (!signals.ok()) return Fail(options, signals.status(), kExitFailure);
  const bool terminal = ::isatty(STDOUT_FILENO) != 0;
  const int64_t count = options.Integer("looks");
  std::optional<Look> before;
  for (int64_t shown = 0; count == 0 || shown < count;) {
    const Result<std::string> text =
        HttpGet(*target, "/metrics", options.Text("api-key"), Deadline::AfterMs(kFetchMs));
    if (!text.ok()) return Fail(options, text.status(), kExitFailure);
    Look now{MetricSamples::Parse(*text), NowNs()};
    if (before) {
      const double seconds = static_cast<double>(now.at_ns - before->at_ns) / 1e9;
      fmt::print("{}{}", terminal ? kClear : "", TopScreen(before->samples, now.samples, seconds));
      std::fflush(stdout);
      ++shown;
    }
    before = std::move(now);
    pollfd waiting{signals->fd(), POLLIN, 0};
    const Deadline next = Deadline::AfterNs(options.DurationNs("interval"));
    if ((count == 0 || shown < count) && ::poll(&waiting, 1, next.RemainingMs(3'600'000)) > 0)
      break;
  }
  return kExitOk;
}

}  // namespace expertflow

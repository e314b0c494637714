#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/mapped_file.h"
#include "common/units.h"
#include "launch/commands.h"
#include "launch/perfetto.h"
#include "launch/trace/trace_tools.h"
#include "worker/timeline.h"

namespace expertflow {
namespace {

constexpr std::array<const char*, kTraceSpanKinds> kNames = {"steps", "MoE layers", "stalls",
                                                             "demand copies", "prefetch copies"};

struct SpanSum {
  uint64_t count = 0;
  int64_t ns = 0;
  uint64_t bytes = 0;  // copies
};
using SpanSums = std::array<SpanSum, kTraceSpanKinds>;

SpanSums Sum(const Timeline& timeline) {
  SpanSums sums;
  for (const TimelineSpan& span : timeline.spans) {
    SpanSum& sum = sums[static_cast<size_t>(span.kind)];
    ++sum.count;
    sum.ns += span.end_ns - span.begin_ns;
    const bool copy =
        span.kind == TraceSpanKind::kCopyDemand || span.kind == TraceSpanKind::kCopyPrefetch;
    sum.bytes += copy ? span.bytes : 0;
  }
  return sums;
}

std::string Text(const std::string& path, const Timeline& timeline, const SpanSums& sums) {
  std::string text =
      fmt::format("{}: worker process {} on {}\n", path, timeline.header.pid, timeline.header.host);
  for (size_t kind = 0; kind < kTraceSpanKinds; ++kind) {
    const SpanSum& sum = sums[kind];
    text += fmt::format("  {:<16} {:>9}  {:>9}", kNames[kind], sum.count, FormatDurationNs(sum.ns));
    text += sum.bytes > 0 ? fmt::format("  {}\n", FormatBytes(sum.bytes)) : "\n";
  }
  return text;
}

nlohmann::json Json(const Timeline& timeline, const SpanSums& sums) {
  nlohmann::json json = {{"pid", timeline.header.pid}, {"host", timeline.header.host}};
  for (size_t kind = 0; kind < kTraceSpanKinds; ++kind) {
    const SpanSum& sum = sums[kind];
    json["spans"].push_back(
        {{"kind", kNames[kind]}, {"count", sum.count}, {"ns", sum.ns}, {"bytes", sum.bytes}});
  }
  return json;
}

}  // namespace

int TraceCommand(const Options& options) {
  const std::vector<std::string>& words = options.TextList("timeline");
  if (IsTraceAction(words[0])) {
    const Status status = RunTraceAction(options, words[0], std::span(words).subspan(1));
    return status.ok() ? kExitOk : Fail(options, status);
  }
  std::vector<Timeline> timelines;
  nlohmann::json json = {{"format", "expertflow-trace"}, {"version", 1}};
  for (const std::string& path : words) {
    auto timeline = ReadTimeline(path);
    if (!timeline.ok()) return Fail(options, timeline.status());
    const SpanSums sums = Sum(*timeline);
    if (options.Text("perfetto").empty() && options.Text("json") != "-") {
      fmt::print("{}", Text(path, *timeline, sums));
    }
    json["workers"].push_back(Json(*timeline, sums));
    timelines.push_back(std::move(timeline).value());
  }
  Status written = WriteJsonOption(options, json.dump(2) + "\n");
  if (written.ok() && !options.Text("perfetto").empty()) {
    written = WriteFileAtomically(options.Text("perfetto"), PerfettoJson(timelines));
  }
  if (!written.ok()) return Fail(options, written);
  return kExitOk;
}

}  // namespace expertflow

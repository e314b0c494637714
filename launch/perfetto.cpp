#include "launch/perfetto.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>

namespace expertflow {
namespace {

// Thread numbers of the streams within a worker's process.
enum Track { kCompute = 1, kTransfer = 2 };

std::string SpanName(const TimelineSpan& span) {
  switch (span.kind) {
    case TraceSpanKind::kStep: return "step";
    case TraceSpanKind::kLayer: return fmt::format("experts of layer {}", span.layer);
    case TraceSpanKind::kStall: return fmt::format("stall in layer {}", span.layer);
    case TraceSpanKind::kCopyDemand: return fmt::format("load {}.{}", span.layer, span.expert);
    case TraceSpanKind::kCopyPrefetch:
      return fmt::format("prefetch {}.{}", span.layer, span.expert);
  }
  return "?";
}

const char* Category(TraceSpanKind kind) {
  switch (kind) {
    case TraceSpanKind::kStep: return "step";
    case TraceSpanKind::kLayer: return "layer";
    case TraceSpanKind::kStall: return "stall";
    case TraceSpanKind::kCopyDemand: return "demand";
    case TraceSpanKind::kCopyPrefetch: return "prefetch";
  }
  return "?";
}

bool IsCopy(TraceSpanKind kind) {
  return kind == TraceSpanKind::kCopyDemand || kind == TraceSpanKind::kCopyPrefetch;
}

}  // namespace

std::string PerfettoJson(const std::vector<Timeline>& timelines) {
  int64_t start_ns = std::numeric_limits<int64_t>::max();
  for (const Timeline& timeline : timelines) {
    for (const TimelineSpan& span : timeline.spans) start_ns = std::min(start_ns, span.begin_ns);
    for (const TimelineSequence& sequence : timeline.sequences) {
      start_ns = std::min(start_ns, sequence.begin_ns);
    }
  }
  std::string json = R"({"displayTimeUnit":"ns","traceEvents":[)";
  auto out = std::back_inserter(json);
  const char* separator = "\n";
  for (const Timeline& timeline : timelines) {
    const int64_t pid = timeline.header.pid;
    fmt::format_to(out,
                   R"({}{{"ph":"M","pid":{},"name":"process_name","args":{{"name":"worker {}"}}}})",
                   separator, pid, pid);
    separator = ",\n";
    for (const auto& [track, name] :
         {std::pair(kCompute, "compute stream"), std::pair(kTransfer, "transfer stream")}) {
      fmt::format_to(
          out, R"({}{{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"{}"}}}})",
          separator, pid, static_cast<int>(track), name);
    }
    for (const TimelineSpan& span : timeline.spans) {
      const bool copy = IsCopy(span.kind);
      fmt::format_to(
          out,
          R"({}{{"ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"name":"{}","cat":"{}","args":{{"{}":{}}}}})",
          separator, pid, static_cast<int>(copy ? kTransfer : kCompute),
          static_cast<double>(span.begin_ns - start_ns) / 1e3,
          static_cast<double>(span.end_ns - span.begin_ns) / 1e3, SpanName(span),
          Category(span.kind), copy ? "bytes" : "rows", span.bytes);
    }
    for (const TimelineSequence& sequence : timeline.sequences) {
      // They overlap: asynchronous events, which get rows of their own.
      for (const auto& [phase, at_ns] :
           {std::pair("b", sequence.begin_ns), std::pair("e", sequence.end_ns)}) {
        fmt::format_to(
            out,
            R"({}{{"ph":"{}","pid":{},"id":{},"ts":{:.3f},"name":"sequence {}","cat":"sequence","args":{{"trace_id":"{}"}}}})",
            separator, phase, pid, sequence.sequence, static_cast<double>(at_ns - start_ns) / 1e3,
            sequence.sequence, sequence.trace_id);
      }
    }
  }
  json += "\n]}\n";
  return json;
}

}  // namespace expertflow

#include "serving/http/trace_context.h"

#include <fmt/format.h>

namespace expertflow {
namespace {

constexpr std::string_view kShape = "hh-hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhh-hhhhhhhhhhhhhhhh-hh";

bool AllZero(std::string_view text) {
  return text.find_first_not_of('0') == std::string_view::npos;
}

}  // namespace

TraceContext ParseTraceparent(std::string_view header) {
  if (header.size() < kShape.size()) return {};
  for (size_t i = 0; i < kShape.size(); ++i) {
    const char c = header[i];
    const bool hex = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    if (kShape[i] == 'h' ? !hex : c != kShape[i]) return {};
  }
  const std::string_view version = header.substr(0, 2);
  const std::string_view more = header.substr(kShape.size());
  if (version == "ff" || (version == "00" && !more.empty())) return {};
  if (!more.empty() && more[0] != '-') return {};
  const std::string_view trace_id = header.substr(3, 32);
  if (AllZero(trace_id) || AllZero(header.substr(36, 16))) return {};
  return {std::string(trace_id), std::string(header.substr(53, 2))};
}

std::string SpanIdText(uint64_t span) {
  return fmt::format("{:016x}", span);
}

std::string TraceparentOf(const TraceContext& trace, std::string_view span_id) {
  if (trace.trace_id.empty()) return "";
  return fmt::format("00-{}-{}-{}", trace.trace_id, span_id, trace.flags);
}

}  // namespace expertflow

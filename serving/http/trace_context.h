// Who a request belongs to, as callers say with a `traceparent` header (W3C Trace Context), and
// what it is called here. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace expertflow {

struct TraceContext {
  std::string trace_id = {};  // 32 hex digits; empty: the caller gave none
  std::string flags = {};     // 2 hex digits, as given
};

// "00-<trace id>-<parent id>-<flags>"; later versions may have more behind it. What is malformed
// counts as none.
TraceContext ParseTraceparent(std::string_view header);

// 16 hex digits.
std::string SpanIdText(uint64_t span);
// What a callee gets: the same trace, with our span as the parent. Empty without a trace.
std::string TraceparentOf(const TraceContext& trace, std::string_view span_id);

}  // namespace expertflow

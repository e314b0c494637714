// Option values as text, parsed. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace expertflow {

struct LinkSetting {
  uint64_t bytes_per_second = 0;
  int64_t latency_ns = 0;
};

// "true", "on", "yes", "1" and their opposites.
std::optional<bool> ParseSwitch(std::string_view text);
// The whole text is a number.
std::optional<int64_t> ParseInteger(std::string_view text);
std::optional<double> ParseNumber(std::string_view text);
// "12GB/s,10us" or "12GB/s". A rate of 0 is refused.
Result<LinkSetting> ParseLink(std::string_view text);
// "a,,b" -> a, b
std::vector<std::string> SplitAtCommas(const std::string& text);
// "a|b" -> a, b
std::vector<std::string_view> ChoiceWords(std::string_view choices);

}  // namespace expertflow

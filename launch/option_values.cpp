#include "launch/option_values.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "common/units.h"

namespace expertflow {
namespace {

template <typename T>
std::optional<T> ParseWhole(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || text.empty()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<bool> ParseSwitch(std::string_view text) {
  if (text == "true" || text == "on" || text == "yes" || text == "1") return true;
  if (text == "false" || text == "off" || text == "no" || text == "0") return false;
  return std::nullopt;
}

std::optional<int64_t> ParseInteger(std::string_view text) {
  return ParseWhole<int64_t>(text);
}

std::optional<double> ParseNumber(std::string_view text) {
  const std::optional<double> value = ParseWhole<double>(text);
  if (value && !std::isfinite(*value)) return std::nullopt;
  return value;
}

Result<LinkSetting> ParseLink(std::string_view text) {
  LinkSetting link;
  const size_t comma = text.find(',');
  ASSIGN_OR_RETURN(link.bytes_per_second, ParseBytesPerSecond(text.substr(0, comma)));
  if (link.bytes_per_second == 0) return InvalidArgument("a link needs a rate above 0");
  if (comma != std::string_view::npos) {
    ASSIGN_OR_RETURN(link.latency_ns, ParseDurationNs(text.substr(comma + 1)));
  }
  return link;
}

std::vector<std::string> SplitAtCommas(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    if (comma > at) parts.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return parts;
}

std::vector<std::string_view> ChoiceWords(std::string_view choices) {
  std::vector<std::string_view> words;
  while (true) {
    const size_t bar = choices.find('|');
    words.push_back(choices.substr(0, bar));
    if (bar == std::string_view::npos) return words;
    choices.remove_prefix(bar + 1);
  }
}

}  // namespace expertflow

#include "launch/load/arrivals.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

namespace expertflow {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kLengthMax = 1 << 24;

struct Recorded {
  int64_t at_ns = 0;
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
};

std::optional<int64_t> Number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

// "2023-11-16 18:17:03.9799600" to ns since the beginning of 1970, as if it were UTC.
std::optional<int64_t> TimeNs(std::string_view text) {
  constexpr std::string_view kShape = "dddd-dd-dd dd:dd:dd";
  if (text.size() < kShape.size()) return std::nullopt;
  for (size_t i = 0; i < kShape.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    if (kShape[i] == 'd' ? !digit : text[i] != kShape[i]) return std::nullopt;
  }
  const auto part = [text](size_t at, size_t size) { return *Number(text.substr(at, size)); };
  std::tm time{};
  time.tm_year = static_cast<int>(part(0, 4)) - 1900;
  time.tm_mon = static_cast<int>(part(5, 2)) - 1;
  time.tm_mday = static_cast<int>(part(8, 2));
  time.tm_hour = static_cast<int>(part(11, 2));
  time.tm_min = static_cast<int>(part(14, 2));
  time.tm_sec = static_cast<int>(part(17, 2));
  int64_t ns = static_cast<int64_t>(::timegm(&time)) * kSecondNs;
  std::string_view fraction = text.substr(kShape.size());
  if (fraction.empty()) return ns;
  if (fraction[0] != '.' || fraction.size() > 10) return std::nullopt;
  fraction.remove_prefix(1);
  const std::optional<int64_t> digits = Number(fraction);
  if (!digits) return std::nullopt;
  return ns + *digits * static_cast<int64_t>(std::pow(10, 9 - static_cast<int>(fraction.size())));
}

std::optional<Recorded> FromCsv(std::string_view line) {
  const size_t first = line.find(',');
  const size_t second = first == std::string_view::npos ? first : line.find(',', first + 1);
  if (second == std::string_view::npos) return std::nullopt;
  const auto at_ns = TimeNs(line.substr(0, first));
  const auto prompt = Number(line.substr(first + 1, second - first - 1));
  const auto output = Number(line.substr(second + 1));
  if (!at_ns || !prompt || !output) return std::nullopt;
  return Recorded{*at_ns, *prompt, *output};
}

std::optional<Recorded> FromJson(std::string_view line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto number = [&json](const char* name) -> std::optional<int64_t> {
    if (!json.is_object() || !json.contains(name) || !json[name].is_number()) return std::nullopt;
    const double value = json[name].get<double>();
    if (!(value >= 0 && value < 1e15)) return std::nullopt;
    return static_cast<int64_t>(value);
  };
  const auto ms = number("timestamp");
  const auto prompt = number("input_length");
  const auto output = number("output_length");
  if (!ms || !prompt || !output) return std::nullopt;
  return Recorded{*ms * 1'000'000, *prompt, *output};
}

int32_t Scaled(int64_t length, double scale, int32_t max) {
  const double scaled = std::round(static_cast<double>(std::min(length, kLengthMax)) * scale);
  return static_cast<int32_t>(std::clamp<double>(scaled, 1, max));
}

}  // namespace

std::vector<Arrival> PoissonArrivals(double per_second, int64_t count, uint64_t seed,
                                     const Arrival& each) {
  std::mt19937_64 random(seed);
  std::vector<Arrival> arrivals;
  double at = 0;
  for (int64_t i = 0; i < count; ++i) {
    arrivals.push_back(each);
    arrivals.back().at_ns = static_cast<int64_t>(at * 1e9);
    const double uniform = (static_cast<double>(random() >> 11) + 0.5) * 0x1.0p-53;
    at += -std::log(uniform) / per_second;
  }
  return arrivals;
}

Result<std::vector<Arrival>> ParseArrivals(std::string_view text, const ArrivalScale& scale) {
  std::vector<Arrival> arrivals;
  std::optional<int64_t> begin_ns;
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.starts_with("TIMESTAMP"))) continue;
    const std::optional<Recorded> found = line[0] == '{' ? FromJson(line) : FromCsv(line);
    if (!found) {
      return InvalidArgument(fmt::format(
          "line {}: expected TIMESTAMP,ContextTokens,GeneratedTokens or a JSON object with "
          "timestamp, input_length and output_length, found \"{}\"",
          number, line.substr(0, 60)));
    }
    if (!begin_ns) begin_ns = found->at_ns;
    const auto after_ns = static_cast<double>(found->at_ns - *begin_ns) * scale.time;
    if (!(after_ns >= 0 && after_ns < 1e17)) {
      return InvalidArgument(fmt::format("line {}: it is before the first line", number));
    }
    arrivals.push_back({static_cast<int64_t>(after_ns),
                        Scaled(found->prompt_tokens, scale.lengths, scale.prompt_tokens_max),
                        Scaled(found->output_tokens, scale.lengths, scale.max_tokens_max)});
    if (static_cast<int64_t>(arrivals.size()) == scale.count_max) break;
  }
  if (arrivals.empty()) return InvalidArgument("there are no arrivals");
  std::stable_sort(arrivals.begin(), arrivals.end(),
                   [](const Arrival& a, const Arrival& b) { return a.at_ns < b.at_ns; });
  return arrivals;
}

}  // namespace expertflow

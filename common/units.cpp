#include "common/units.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

namespace expertflow {
namespace {

std::string Lower(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (!std::isspace(static_cast<unsigned char>(c))) {
      out.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
    }
  }
  return out;
}

// Splits "1.5gib" into 1.5 and "gib".
bool SplitNumber(const std::string& text, double* number, std::string* unit) {
  const char* begin = text.data();
  const char* end = begin + text.size();
  const auto [rest, error] = std::from_chars(begin, end, *number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(*number) || *number < 0) return false;
  unit->assign(rest, end);
  return true;
}

std::optional<double> ByteUnit(const std::string& unit) {
  static constexpr std::string_view kLetters = "kmgtp";
  if (unit.empty() || unit == "b") return 1.0;
  const size_t power = kLetters.find(unit[0]);
  if (power == std::string_view::npos) return std::nullopt;
  const double exponent = static_cast<double>(power + 1);
  const std::string rest = unit.substr(1);
  if (rest.empty() || rest == "ib") return std::pow(1024.0, exponent);
  if (rest == "b") return std::pow(1000.0, exponent);
  return std::nullopt;
}

std::string ThreeDigits(double value) {
  if (value >= 100) return fmt::format("{:.0f}", value);
  if (value >= 10) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2f}", value);
}

}  // namespace

Result<uint64_t> ParseBytes(std::string_view text) {
  double number = 0;
  std::string unit;
  std::optional<double> scale;
  if (SplitNumber(Lower(text), &number, &unit)) scale = ByteUnit(unit);
  // 2^63 keeps every later sum of two sizes inside uint64_t.
  if (!scale || number * *scale >= std::ldexp(1.0, 63)) {
    return InvalidArgument(
        fmt::format("'{}' is not a number of bytes; write for example 512MB, 1.5GiB", text));
  }
  return static_cast<uint64_t>(std::llround(number * *scale));
}

Result<uint64_t> ParseBytesPerSecond(std::string_view text) {
  const std::string lower = Lower(text);
  if (lower.ends_with("/s")) {
    const auto bytes = ParseBytes(std::string_view(lower).substr(0, lower.size() - 2));
    if (bytes.ok()) return *bytes;
  }
  return InvalidArgument(fmt::format("'{}' is not a rate; write for example 12GB/s", text));
}

Result<int64_t> ParseDurationNs(std::string_view text) {
  double number = 0;
  std::string unit;
  double scale = 0;
  if (SplitNumber(Lower(text), &number, &unit)) {
    if (unit == "ns") scale = 1;
    if (unit == "us") scale = 1e3;
    if (unit == "ms") scale = 1e6;
    if (unit == "s") scale = 1e9;
    if (unit == "min") scale = 60e9;
  }
  if (scale == 0 || number * scale > 9e18) {
    return InvalidArgument(
        fmt::format("'{}' is not a duration; write for example 10us, 5ms, 2s", text));
  }
  return static_cast<int64_t>(std::llround(number * scale));
}

uint64_t ByteBudget::Resolve(uint64_t total_bytes) const {
  if (!is_percent) return bytes;
  return static_cast<uint64_t>(static_cast<double>(total_bytes) * percent / 100.0);
}

Result<ByteBudget> ParseByteBudget(std::string_view text) {
  ByteBudget budget;
  const std::string lower = Lower(text);
  if (lower.ends_with('%')) {
    double number = 0;
    std::string rest;
    if (!SplitNumber(lower.substr(0, lower.size() - 1), &number, &rest) || !rest.empty() ||
        number > 100) {
      return InvalidArgument(fmt::format("'{}' is not a percentage between 0% and 100%", text));
    }
    budget.is_percent = true;
    budget.percent = number;
    return budget;
  }
  auto bytes = ParseBytes(text);
  if (!bytes.ok()) {
    return InvalidArgument(
        fmt::format("'{}' is neither bytes nor a percentage; write for example 2GB or 30%", text));
  }
  budget.bytes = *bytes;
  return budget;
}

std::string FormatBytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  if (bytes < 1000) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{} {}", ThreeDigits(value), kUnits[unit]);
}

std::string FormatBytesPerSecond(double bytes_per_second) {
  if (!(bytes_per_second > 0)) return "0 B/s";
  return FormatBytes(static_cast<uint64_t>(bytes_per_second)) + "/s";
}

std::string FormatDurationNs(int64_t ns) {
  const double value = static_cast<double>(ns);
  if (ns < 1000) return fmt::format("{} ns", ns);
  if (value < 999.5e3) return fmt::format("{} us", ThreeDigits(value / 1e3));
  if (value < 999.5e6) return fmt::format("{} ms", ThreeDigits(value / 1e6));
  return fmt::format("{} s", ThreeDigits(value / 1e9));
}

}  // namespace expertflow

// Parsing and printing of quantities with units: bytes, rates, durations, percentages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/status.h"

namespace expertflow {

// "512", "64KB", "1.5GiB", "2g": decimal KB/MB/GB/TB (10^3), binary KiB/MiB/GiB/TiB; case and
// spaces do not matter, "k", "m", "g", "t" alone are binary. Errors name the text.
Result<uint64_t> ParseBytes(std::string_view text);

// "12GB/s" -> bytes per second (also "MB/s", "GiB/s", ...).
Result<uint64_t> ParseBytesPerSecond(std::string_view text);

// "10us", "1.5ms", "2s", "500ns" -> nanoseconds. A unit is required.
Result<int64_t> ParseDurationNs(std::string_view text);

// An amount of memory for experts: absolute bytes or a share of all expert bytes ("30%").
struct ByteBudget {
  bool is_percent = false;
  double percent = 0;  // 0..100
  uint64_t bytes = 0;
  // The budget in bytes when all experts together take `total_bytes`.
  uint64_t Resolve(uint64_t total_bytes) const;
};
Result<ByteBudget> ParseByteBudget(std::string_view text);

// "27.4 MB", "1.30 GB": decimal, three significant digits.
std::string FormatBytes(uint64_t bytes);
// "12.0 GB/s"
std::string FormatBytesPerSecond(double bytes_per_second);
// "512 ns", "12.3 us", "4.56 ms", "1.23 s"
std::string FormatDurationNs(int64_t ns);

}  // namespace expertflow

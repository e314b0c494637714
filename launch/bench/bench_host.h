// The host that a benchmark runs on: what it is, how busy others kept it, and how fast its memory
// can be read, which is the limit of a decode step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace expertflow {

// Watches the host from construction on: a benchmark says how much of it others used meanwhile.
class HostWatch {
 public:
  HostWatch();
  // CPU model, cores, compiler, load, and the cores that other processes kept busy since
  // construction ("0.35 of 2"): this process and its children that were waited for do not count.
  std::vector<std::pair<std::string, std::string>> Describe() const;

 private:
  int64_t begin_ns_ = 0;
  double begin_busy_s_ = 0;
  double begin_own_s_ = 0;
};

// Reads all of `memory` once with `threads`, as fast as plain loads can. Returns the nanoseconds.
int64_t TimeRead(std::span<const uint8_t> memory, int32_t threads);

}  // namespace expertflow

// The monotonic clock and absolute deadlines. Every wait takes a Deadline, passed down.
#pragma once

#include <cstdint>

namespace expertflow {

// CLOCK_MONOTONIC in nanoseconds: the same clock in every process of a host.
int64_t NowNs();

class Deadline {
 public:
  static Deadline AfterNs(int64_t ns) { return Deadline(NowNs() + ns); }
  static Deadline AfterMs(int64_t ms) { return AfterNs(ms * 1'000'000); }
  static Deadline AtNs(int64_t ns) { return Deadline(ns); }

  int64_t at_ns() const { return at_ns_; }
  bool Passed() const { return NowNs() >= at_ns_; }
  // Time left, never negative.
  int64_t RemainingNs() const;
  // For poll(2): milliseconds left, rounded up, at most `max_ms`.
  int RemainingMs(int max_ms) const;

 private:
  explicit Deadline(int64_t at_ns) : at_ns_(at_ns) {}
  int64_t at_ns_;
};

}  // namespace expertflow

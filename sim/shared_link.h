// What the links of several devices have in common, such as the host's memory or a switch, in
// simulated time: a copy takes the first times that are still free, in pieces where others are in
// between. So none of its time is lost, and it does not matter that one device is simulated a
// little ahead of another. Pure.
#pragma once

#include <cstdint>
#include <map>

namespace expertflow {

class SharedLink {
 public:
  // REQUIRES: bytes_per_second > 0
  explicit SharedLink(uint64_t bytes_per_second);

  struct Passage {  // of the first and of the last piece
    int64_t begin_ns = 0;
    int64_t end_ns = 0;
  };
  // Of `bytes` > 0, not before `from_ns`; that time is taken from now on.
  Passage Take(int64_t from_ns, uint64_t bytes);
  // Nobody asks for an earlier time any more.
  void Forget(int64_t before_ns);
  // Taken so far, in all.
  int64_t busy_ns() const { return busy_ns_; }

 private:
  const uint64_t bytes_per_second_;
  std::map<int64_t, int64_t> taken_;  // begin to end; apart from each other
  int64_t busy_ns_ = 0;
};

}  // namespace expertflow

// When copies over an emulated link are done, in the link's own time.
//
// A real link keeps a queue: while one copy is on the wire the next waits behind it. The CPU device
// copies on the calling thread, so the next copy always arrives after the last one's end. It still
// counts as queued when the caller came straight back, and it then starts where the last one ended,
// however late the caller was woken: late wake-ups do not add up. Used by one thread at a time;
// takes the time as arguments.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"

namespace expertflow::cpu {

class LinkPacer {
 public:
  // A caller that is back within this time has kept the link's queue filled.
  static constexpr int64_t kTurnaroundNs = 50'000;
  // How far the link's time may lag behind the clock: beyond, memory is slower than the link.
  static constexpr int64_t kLagNsMax = 5'000'000;

  // REQUIRES: link.bytes_per_second > 0
  explicit LinkPacer(const LinkProperties& link) : link_(link) {}

  // How long `bytes` occupy the link, without latency; rounded to the nearest nanosecond.
  int64_t TransferNs(size_t bytes) const;
  // A copy submitted now ends at the returned time.
  int64_t Submit(int64_t now_ns, size_t bytes);
  // The call that submitted it returns now.
  void Return(int64_t now_ns);

 private:
  const LinkProperties link_;
  int64_t free_ns_ = 0;                  // end of the last copy, in the link's time
  int64_t returned_ns_ = INT64_MIN / 2;  // when the last call came back
};

}  // namespace expertflow::cpu

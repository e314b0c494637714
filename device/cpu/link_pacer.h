// When copies over an emulated link have arrived, in the link's own time: a copy goes on the wire
// when the one before has left it, and is there the link's latency later. Copies that wait in the
// link's queue thus follow each other without a gap, whatever the caller does meanwhile. Used by
// one thread at a time; takes the time as an argument.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"

namespace expertflow::cpu {

class LinkPacer {
 public:
  // REQUIRES: link.bytes_per_second > 0
  explicit LinkPacer(const LinkProperties& link) : link_(link) {}

  // How long `bytes` occupy the link, without latency; rounded to the nearest nanosecond.
  int64_t TransferNs(size_t bytes) const;
  // A copy submitted now has arrived at the returned time.
  int64_t Submit(int64_t now_ns, size_t bytes);

 private:
  const LinkProperties link_;
  int64_t wire_free_ns_ = 0;  // when the last copy leaves the wire
};

}  // namespace expertflow::cpu

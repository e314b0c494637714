// The signature of a pure policy: every decision is folded into one number, which is equal for
// equal decisions in equal order.
#pragma once

#include <cstdint>

namespace expertflow {

class Digest {
 public:
  // A multiplication by an odd number and a shift lose nothing, and spread each bit over all others
  // within two folds. It runs several times an event.
  void Fold(uint64_t value) {
    value_ = (value_ ^ value) * 0x9e3779b97f4a7c15u;
    value_ ^= value_ >> 32;
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 14695981039346656037u;
};

}  // namespace expertflow

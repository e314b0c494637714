// The signature of a pure policy: every decision is folded into one number, which is equal for
// equal decisions in equal order.
#pragma once

#include <cstdint>

namespace expertflow {

// FNV-1a over the values' bytes, lowest first.
class Digest {
 public:
  void Fold(uint64_t value) {
    for (int i = 0; i < 8; ++i) {
      value_ = (value_ ^ (value & 0xff)) * 1099511628211u;
      value >>= 8;
    }
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 14695981039346656037u;
};

}  // namespace expertflow

// A float buffer that grows when asked and is reused. Owned by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "common/check.h"

namespace expertflow::cpu {

class Scratch {
 public:
  // 64-byte aligned, content undefined; what an earlier Get() returned is no longer valid.
  float* Get(size_t floats) {
    if (floats > capacity_) {
      data_.reset();
      capacity_ = (floats + kStep - 1) / kStep * kStep;
      data_.reset(static_cast<float*>(std::aligned_alloc(64, capacity_ * sizeof(float))));
      CHECK(data_ != nullptr);
    }
    return data_.get();
  }

 private:
  static constexpr size_t kStep = 4096;
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float, Free> data_;
  size_t capacity_ = 0;
};

}  // namespace expertflow::cpu

// Quantised matrices for the tests of kernels, and memory that shows reads past its end.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "common/dtype.h"
#include "common/half.h"
#include "tests/golden/quantised_values.h"

namespace expertflow {

// Memory that ends where nothing can be read any more, or less than `alignment` bytes before.
class GuardedBytes {
 public:
  explicit GuardedBytes(const std::vector<uint8_t>& bytes, size_t alignment = 1) {
    constexpr size_t kPage = 4096;
    const size_t used = (bytes.size() + kPage - 1) / kPage * kPage;
    mapped_ = used + kPage;
    base_ = static_cast<uint8_t*>(
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(base_, MAP_FAILED);
    EXPECT_EQ(mprotect(base_ + used, kPage, PROT_NONE), 0);
    data_ = base_ + used - (bytes.size() + alignment - 1) / alignment * alignment;
    std::copy(bytes.begin(), bytes.end(), data_);
  }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  ~GuardedBytes() { munmap(base_, mapped_); }
  const uint8_t* data() const { return data_; }

 private:
  uint8_t* base_ = nullptr;
  uint8_t* data_ = nullptr;
  size_t mapped_ = 0;
};

// Random codes, scales and zero points, and the values that they stand for.
struct QuantisedWeights {
  std::vector<uint8_t> stored;
  std::vector<float> values;
};

// Ordinary numbers, and some that are no normal binary16.
inline void SetBlockScales(DType dtype, std::mt19937& random, std::vector<uint8_t>* blocks) {
  for (size_t at = 0; at < blocks->size(); at += BlockBytes(dtype)) {
    for (const size_t offset : {dtype == DType::kQ6K ? size_t{208} : size_t{0}, size_t{2}}) {
      if (dtype == DType::kQ6K && offset == 2) continue;
      const float size = std::ldexp(1.0f, static_cast<int>(random() % 14) - 18);
      const float sign = random() % 3 == 0 ? -1.0f : 1.0f;
      const uint16_t bits =
          HalfFromFloat(sign * size * (1.0f + static_cast<float>(random() % 7) / 8));
      std::memcpy(blocks->data() + at + offset, &bits, sizeof(bits));
    }
  }
}

inline QuantisedWeights RandomQuantised(DType dtype, size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  QuantisedWeights weights;
  weights.stored.resize(MatrixBytes(dtype, size));
  weights.values.resize(size);
  for (uint8_t& byte : weights.stored) {
    byte = static_cast<uint8_t>(random());
    if (dtype == DType::kFp8 && byte % 128 == 127) byte = 0x80;  // no NaN
  }
  if (IsGgufBlocks(dtype)) {
    SetBlockScales(dtype, random, &weights.stored);
    for (size_t i = 0; i < size; ++i) {
      weights.values[i] = QuantisedValue(weights.stored.data(), dtype, size, i);
    }
    return weights;
  }
  uint8_t* scales = weights.stored.data() + ScalesOffset(dtype, size);
  for (size_t group = 0; group < size / kQuantisedGroup; ++group) {
    const float scale = static_cast<float>(random() % 100'000) / 3e6f;
    if (dtype == DType::kMxfp4) {
      scales[group] = static_cast<uint8_t>(118 + random() % 10);
    } else {
      std::memcpy(scales + group * 4, &scale, sizeof(scale));
    }
    if (dtype == DType::kUInt4) scales[size / kQuantisedGroup * 4 + group] = random() % 16;
  }
  for (size_t i = 0; i < size; ++i) {
    weights.values[i] = QuantisedValue(weights.stored.data(), dtype, size, i);
  }
  return weights;
}

}  // namespace expertflow

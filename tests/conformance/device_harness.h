// What the device tests share: a device under test, and data that goes to it and back by its own
// copies, so that a device with its own address space can run them too.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "device/device.h"
#include "device/ops.h"

namespace expertflow {

struct DeviceUnderTest {
  std::string name;
  std::function<Result<std::unique_ptr<Device>>()> create;
};
inline void PrintTo(const DeviceUnderTest& device, std::ostream* out) {
  *out << device.name;
}

// A typed allocation on a device. `device` must outlive it.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(Device& device, size_t size) : device_(device), size_(size) {
    auto allocation = device.Allocate(std::max<size_t>(size, 1) * sizeof(T));
    EXPECT_TRUE(allocation.ok()) << allocation.status().ToString();
    allocation_ = std::move(allocation).value();
  }
  DeviceArray(Device& device, const std::vector<T>& values) : DeviceArray(device, values.size()) {
    EXPECT_TRUE(
        device.CopyToDevice(StreamKind::kCompute, data(), values.data(), values.size() * sizeof(T))
            .ok());
    EXPECT_TRUE(device.SynchronizeStream(StreamKind::kCompute, Deadline::AfterMs(60'000)).ok());
  }

  T* data() const { return reinterpret_cast<T*>(allocation_->data()); }
  std::vector<T> Read() const {
    std::vector<T> values(size_);
    EXPECT_TRUE(
        device_.CopyToHost(StreamKind::kCompute, values.data(), data(), size_ * sizeof(T)).ok());
    EXPECT_TRUE(device_.SynchronizeStream(StreamKind::kCompute, Deadline::AfterMs(60'000)).ok());
    return values;
  }

 private:
  Device& device_;
  size_t size_;
  std::unique_ptr<DeviceAllocation> allocation_;
};

// Weights in their stored form and the values that they stand for.
struct TestWeights {
  DType dtype = DType::kF32;
  std::vector<uint8_t> stored;
  std::vector<float> values;
};

inline uint32_t FloatBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Random numbers in (-1, 1), exact in `dtype`: seven significant bits.
inline TestWeights RandomWeights(DType dtype, size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  TestWeights weights;
  weights.dtype = dtype;
  weights.stored.resize(size * DTypeBytes(dtype));
  weights.values.resize(size);
  for (size_t i = 0; i < size; ++i) {
    const auto steps = static_cast<int32_t>(random() % 255) - 127;
    const float value = static_cast<float>(steps) / 128.0f;
    weights.values[i] = value;
    uint8_t* at = weights.stored.data() + i * DTypeBytes(dtype);
    const uint32_t bits = FloatBits(value);
    if (dtype == DType::kF32) {
      std::memcpy(at, &bits, 4);
    } else if (dtype == DType::kBF16) {
      const auto half = static_cast<uint16_t>(bits >> 16);
      std::memcpy(at, &half, 2);
    } else {
      uint16_t half = static_cast<uint16_t>(bits >> 16 & 0x8000u);
      if (value != 0) {
        const uint32_t exponent = (bits >> 23 & 0xffu) - 112;
        half = static_cast<uint16_t>(half | exponent << 10 | (bits >> 13 & 0x3ffu));
      }
      std::memcpy(at, &half, 2);
    }
  }
  return weights;
}

inline std::vector<float> RandomFloats(size_t size, uint32_t seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(size);
  for (float& value : values) value = normal(random);
  return values;
}

inline std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (float value : values) bits.push_back(FloatBits(value));
  return bits;
}

}  // namespace expertflow

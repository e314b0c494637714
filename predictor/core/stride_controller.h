// How many layers ahead to prefetch. The controller that follows bandwidth, residency and the wait
// and overload counters (ARCHITECTURE 5) implements this interface later; a fixed stride does now.
// Pure: measurements come in as events.
#pragma once

#include <cstdint>

namespace expertflow {

// What a controller hears once per (step, layer).
struct StrideMeasurement {
  int32_t distinct_experts = 0;
  int32_t resident_experts = 0;  // of those, ready when asked for
  uint64_t bytes_copied = 0;     // over the link since the last measurement
  int64_t link_busy_ns = 0;
  int64_t layer_ns = 0;  // start of this layer to start of the next
  int64_t stall_ns = 0;  // of that, compute waited for an expert
  uint64_t bytes_wasted = 0;
};

class StrideController {
 public:
  virtual ~StrideController() = default;
  // Layers of lead now; 0: no prefetch.
  virtual int32_t stride() const = 0;
  virtual void OnLayer(const StrideMeasurement& measurement) = 0;
};

class FixedStride final : public StrideController {
 public:
  explicit FixedStride(int32_t stride) : stride_(stride) {}
  int32_t stride() const override { return stride_; }
  void OnLayer(const StrideMeasurement&) override {}

 private:
  int32_t stride_;
};

}  // namespace expertflow

// How many layers ahead to prefetch: fixed here, or following bandwidth, residency and the wait and
// overload counters (dynamic_stride.h). Pure: measurements come in as events.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace expertflow {

// What a controller hears once per (step, layer) of a step that only decodes.
struct StrideMeasurement {
  int32_t distinct_experts = 0;    // demanded
  int32_t cached_experts = 0;      // of those, ready without a prefetch
  int32_t prefetch_hits = 0;       // ready, by prefetch
  int32_t prefetch_late_hits = 0;  // by prefetch, and still on their way
  int32_t expected_experts = 0;    // that predictions for the next layer call likely; 0: not known
  uint64_t bytes_copied = 0;       // over the link since the last measurement
  uint64_t bytes_wasted = 0;       // prefetched, and known by now to be in vain
  int64_t link_busy_ns = 0;
  int64_t layer_ns = 0;  // end of the layer before to the end of this one; 0: not known
  int64_t stall_ns = 0;  // of that, compute waited for an expert
};

// Why a stride is what it is.
enum class StrideCause : uint8_t {
  kStart,      // before anything was measured
  kMeasured,   // copies and layers, as measured
  kLate,       // much of what was prefetched came too late
  kWaste,      // much of what was copied was in vain
  kLinkBound,  // misses ask for more than the link carries
};

struct StrideStep {
  uint64_t event = 0;  // measurements before it
  int32_t stride = 0;
  StrideCause cause = StrideCause::kStart;
};

// The latest are kept.
inline void AddStrideStep(const StrideStep& step, std::vector<StrideStep>* steps) {
  constexpr size_t kStepsKept = 16;
  if (steps->size() == kStepsKept) steps->erase(steps->begin());
  steps->push_back(step);
}

class StrideController {
 public:
  virtual ~StrideController() = default;
  // Layers of lead now; 0: no prefetch.
  virtual int32_t stride() const = 0;
  virtual void OnLayer(const StrideMeasurement& measurement) = 0;
  // The link cannot carry what is asked of it: speculation should be shed.
  virtual bool link_bound() const { return false; }
  virtual uint64_t changes() const { return 0; }
  // The start and the changes since, oldest first; only the latest ones are kept.
  virtual std::span<const StrideStep> steps() const { return {}; }
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

// The lead as somebody else decides it, for all workers of a job (global_stride.h); here is only
// measured. Pure, one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "predictor/core/dynamic_stride.h"
#include "predictor/core/published_stride.h"

namespace expertflow {

struct FollowedStrideOptions {
  int32_t moe_layers = 0;
  int32_t stride_min = 1;  // until there is news
  int32_t stride_max = 8;
  int32_t window_steps = 4;  // passes over the layers
};

class FollowedStride final : public StrideController {
 public:
  // REQUIRES: moe_layers > 0; 0 < stride_min <= stride_max
  explicit FollowedStride(const FollowedStrideOptions& options);

  // What is published now; nothing changes as long as nothing was.
  void Follow(const PublishedStride& published);
  // What was measured since the last call; nothing before a whole window was.
  std::optional<StrideWindow> TakeWindow();

  int32_t stride() const override { return stride_; }
  void OnLayer(const StrideMeasurement& measurement) override;
  bool link_bound() const override { return published_.link_bound; }
  uint64_t changes() const override { return changes_; }
  std::span<const StrideStep> steps() const override { return steps_; }

 private:
  const FollowedStrideOptions options_;
  PublishedStride published_;
  int32_t stride_;
  uint64_t changes_ = 0;
  uint64_t events_ = 0;
  std::vector<StrideStep> steps_;
  StrideWindow window_;
};

}  // namespace expertflow

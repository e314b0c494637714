// The stride that follows what is measured (ARCHITECTURE 5). A transfer needs a lead of
//     S0 = ceil((max(1, Ne * (1 - h)) + r / (2 (1 - r))) * Es / (Cs * Tl))
// layers: Ne experts that a layer is expected to use, Es bytes of one, h the share that is cached,
// Cs the link's rate under the present load, Tl the time that a layer computes. Where less than one
// expert misses on average, the one that does needs the lead of a whole copy; the second term is
// what a copy waits for others on a link that is busy for a share r of the time (a queue with
// constant service times, Pollaczek and Khinchine).
//
// S follows S0 when that has moved for a while. Two counters correct it, by at most two layers:
//   wait      much of what was prefetched came too late: one more
//   overload  much of what was copied was in vain: one less
// each only after several windows of a few steps in a row, and between the two is a wide band in
// which nothing changes, so that S settles.
//
// Where the link cannot carry what misses ask for, more lead only makes copies wait for each other:
// S is at most one more than a single copy needs, and link_bound() says so. Pure, one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "predictor/core/stride_controller.h"

namespace expertflow {

// Sums over (step, layer) events of steps that only decode, of one worker or of several.
struct StrideWindow {
  uint64_t events = 0;
  uint64_t timed_events = 0;
  uint64_t distinct = 0;
  uint64_t expected = 0;  // distinct where nothing was predicted
  uint64_t cached = 0;
  uint64_t prefetch_hits = 0;
  uint64_t prefetch_late = 0;
  uint64_t copied = 0;
  uint64_t wasted = 0;
  uint64_t busy_ns = 0;
  uint64_t layer_ns = 0;
  uint64_t stall_ns = 0;

  void Add(const StrideMeasurement& measurement);
  void Add(const StrideWindow& other);
};

struct DynamicStrideOptions {
  uint64_t expert_bytes = 0;
  int32_t moe_layers = 0;
  int32_t stride_min = 1;
  int32_t stride_max = 8;
  int32_t window_steps = 4;      // passes over the layers
  int32_t windows_in_a_row = 3;  // that a counter must be past its threshold
  double wait_share = 0.35;      // of the prefetched experts that were used
  double overload_share = 0.5;   // of the bytes that were copied
};

class DynamicStride final : public StrideController {
 public:
  // REQUIRES: expert_bytes, moe_layers > 0; 0 < stride_min <= stride_max
  explicit DynamicStride(const DynamicStrideOptions& options);

  int32_t stride() const override { return stride_; }
  // A window is full after some passes over the layers.
  void OnLayer(const StrideMeasurement& measurement) override;
  // A whole window at once, however long.
  void OnWindow(const StrideWindow& window);
  bool link_bound() const override { return link_bound_; }
  uint64_t changes() const override { return changes_; }
  std::span<const StrideStep> steps() const override { return steps_; }

 private:
  void Follow(double copy_layers);
  void Count(const StrideWindow& window);
  void Note();

  const DynamicStrideOptions options_;
  int32_t stride_;
  bool link_bound_ = false;
  uint64_t changes_ = 0;
  uint64_t events_ = 0;                      // of whole windows
  StrideCause cause_ = StrideCause::kStart;  // what moved the wanted stride last
  std::vector<StrideStep> steps_;

  StrideWindow window_;
  bool measured_ = false;
  // What the formula was given.
  double expected_ = 0;      // Ne
  double cached_share_ = 0;  // h
  double rate_ = 0;          // Cs, in bytes per ns
  double layer_ns_ = 0;      // Tl
  double busy_share_ = 0;    // r
  double formula_ = 0;       // S0 before rounding up

  double anchor_ = 0;               // formula_ when S followed it
  int32_t anchor_copy_layers_ = 0;  // then: layers that one copy takes
  bool anchor_bound_ = false;
  int32_t away_windows_ = 0;  // that formula_ has been away from it
  int32_t correction_ = 0;
  int32_t wait_windows_ = 0;
  int32_t overload_windows_ = 0;
};

}  // namespace expertflow

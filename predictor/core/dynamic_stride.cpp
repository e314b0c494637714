#include "predictor/core/dynamic_stride.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"

namespace expertflow {
namespace {

constexpr double kNewShare = 0.5;        // of a window in the smoothed figures
constexpr double kMovedBy = 0.4;         // layers that S0 must be away to be followed
constexpr int32_t kMovedForWindows = 2;  // and for how long
constexpr double kLinkFull = 0.97;       // busy for this share of the time
// Time to copy what a layer misses, over the time that it computes.
constexpr double kBoundFrom = 1.0;
constexpr double kBoundUntil = 0.75;
constexpr double kBusyMost = 0.9;  // that the queue's wait is worked out for
constexpr int32_t kCorrectionMost = 2;

double Smooth(double old, double now, bool first) {
  return first ? now : old + (now - old) * kNewShare;
}

}  // namespace

DynamicStride::DynamicStride(const DynamicStrideOptions& options)
    : options_(options), stride_(options.stride_min) {
  CHECK(options_.expert_bytes > 0 && options_.moe_layers > 0);
  CHECK(options_.stride_min > 0 && options_.stride_min <= options_.stride_max);
  Note();
}

void DynamicStride::OnLayer(const StrideMeasurement& m) {
  ++events_;
  ++sums_.events;
  sums_.distinct += m.distinct_experts;
  sums_.expected += m.expected_experts > 0 ? m.expected_experts : m.distinct_experts;
  sums_.cached += m.cached_experts;
  sums_.prefetch_hits += m.prefetch_hits;
  sums_.prefetch_late += m.prefetch_late_hits;
  sums_.copied += static_cast<double>(m.bytes_copied);
  sums_.wasted += static_cast<double>(m.bytes_wasted);
  sums_.busy_ns += static_cast<double>(m.link_busy_ns);
  if (m.layer_ns > 0) {
    ++sums_.timed_events;
    sums_.layer_ns += static_cast<double>(m.layer_ns);
    sums_.stall_ns += static_cast<double>(m.stall_ns);
  }
  if (sums_.events < options_.window_steps * options_.moe_layers) return;
  EndWindow();
  sums_ = {};
}

void DynamicStride::EndWindow() {
  if (sums_.timed_events == 0 || sums_.layer_ns <= 0 || sums_.distinct == 0) return;
  const bool first = !measured_;
  measured_ = true;
  expected_ = Smooth(expected_, sums_.expected / sums_.events, first);
  cached_share_ = Smooth(cached_share_, sums_.cached / sums_.distinct, first);
  layer_ns_ =
      Smooth(layer_ns_, std::max(sums_.layer_ns - sums_.stall_ns, 1.0) / sums_.timed_events, first);
  if (sums_.busy_ns > 0) rate_ = Smooth(rate_, sums_.copied / sums_.busy_ns, rate_ == 0);
  // All the time, the layers without a time of their own included.
  const double elapsed_ns = sums_.layer_ns / sums_.timed_events * sums_.events;
  busy_share_ = Smooth(busy_share_, std::min(sums_.busy_ns / elapsed_ns, 1.0), first);
  if (rate_ <= 0) return;  // nothing is copied: nothing to decide
  const double copy_layers = static_cast<double>(options_.expert_bytes) / (rate_ * layer_ns_);
  const double missing = expected_ * (1 - cached_share_);
  const double busy = std::min(busy_share_, kBusyMost);
  formula_ = (std::max(missing, 1.0) + busy / (2 * (1 - busy))) * copy_layers;
  const double load = missing * copy_layers;
  link_bound_ = busy_share_ > kLinkFull || load > (link_bound_ ? kBoundUntil : kBoundFrom);
  Follow(copy_layers);
  Count();
  int32_t wanted = static_cast<int32_t>(std::ceil(std::min(anchor_, 1e6))) + correction_;
  // More than one whole copy's lead only makes the copies wait for each other.
  if (anchor_bound_) wanted = std::min(wanted, 1 + anchor_copy_layers_);
  wanted = std::clamp(wanted, options_.stride_min, options_.stride_max);
  if (wanted == stride_) return;
  stride_ = wanted;
  ++changes_;
  Note();
}

void DynamicStride::Note() {
  constexpr size_t kStepsKept = 16;
  if (steps_.size() == kStepsKept) steps_.erase(steps_.begin());
  steps_.push_back({events_, stride_, cause_});
}

void DynamicStride::Follow(double copy_layers) {
  const bool away = std::abs(formula_ - anchor_) > std::max(kMovedBy, kMovedBy * anchor_ / 2) ||
                    link_bound_ != anchor_bound_;
  away_windows_ = away ? away_windows_ + 1 : 0;
  const bool start = anchor_ == 0;
  if (!start && away_windows_ < kMovedForWindows) return;
  anchor_ = formula_;
  anchor_copy_layers_ = static_cast<int32_t>(std::ceil(std::min(copy_layers, 1e6)));
  anchor_bound_ = link_bound_;
  cause_ = link_bound_ ? StrideCause::kLinkBound : StrideCause::kMeasured;
  away_windows_ = wait_windows_ = overload_windows_ = correction_ = 0;
}

void DynamicStride::Count() {
  const double prefetched = sums_.prefetch_hits + sums_.prefetch_late;
  const bool waits =
      prefetched > 0 && !link_bound_ && sums_.prefetch_late > options_.wait_share * prefetched;
  const bool overloads = sums_.copied > 0 && sums_.wasted > options_.overload_share * sums_.copied;
  wait_windows_ = waits && !overloads ? wait_windows_ + 1 : 0;
  overload_windows_ = overloads ? overload_windows_ + 1 : 0;
  if (wait_windows_ >= options_.windows_in_a_row && correction_ < kCorrectionMost) {
    ++correction_;
    cause_ = StrideCause::kLate;
    wait_windows_ = 0;
  } else if (overload_windows_ >= options_.windows_in_a_row && correction_ > -kCorrectionMost) {
    --correction_;
    cause_ = StrideCause::kWaste;
    overload_windows_ = 0;
  }
}

}  // namespace expertflow

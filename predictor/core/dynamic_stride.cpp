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

void StrideWindow::Add(const StrideMeasurement& m) {
  const auto whole = [](auto value) { return static_cast<uint64_t>(value); };
  ++events;
  distinct += whole(m.distinct_experts);
  expected += whole(m.expected_experts > 0 ? m.expected_experts : m.distinct_experts);
  cached += whole(m.cached_experts);
  prefetch_hits += whole(m.prefetch_hits);
  prefetch_late += whole(m.prefetch_late_hits);
  copied += m.bytes_copied;
  wasted += m.bytes_wasted;
  busy_ns += whole(m.link_busy_ns);
  if (m.layer_ns <= 0) return;
  ++timed_events;
  layer_ns += whole(m.layer_ns);
  stall_ns += whole(m.stall_ns);
}

void StrideWindow::Add(const StrideWindow& other) {
  events += other.events;
  timed_events += other.timed_events;
  distinct += other.distinct;
  expected += other.expected;
  cached += other.cached;
  prefetch_hits += other.prefetch_hits;
  prefetch_late += other.prefetch_late;
  copied += other.copied;
  wasted += other.wasted;
  busy_ns += other.busy_ns;
  layer_ns += other.layer_ns;
  stall_ns += other.stall_ns;
}

void DynamicStride::OnLayer(const StrideMeasurement& m) {
  window_.Add(m);
  if (window_.events <
      static_cast<uint64_t>(options_.window_steps) * static_cast<uint64_t>(options_.moe_layers)) {
    return;
  }
  OnWindow(window_);
  window_ = {};
}

void DynamicStride::OnWindow(const StrideWindow& window) {
  events_ += window.events;
  if (window.timed_events == 0 || window.layer_ns == 0 || window.distinct == 0) return;
  const bool first = !measured_;
  measured_ = true;
  const auto events = static_cast<double>(window.events);
  const auto timed = static_cast<double>(window.timed_events);
  const auto layer_ns = static_cast<double>(window.layer_ns);
  const auto busy_ns = static_cast<double>(window.busy_ns);
  expected_ = Smooth(expected_, static_cast<double>(window.expected) / events, first);
  cached_share_ =
      Smooth(cached_share_,
             static_cast<double>(window.cached) / static_cast<double>(window.distinct), first);
  layer_ns_ = Smooth(layer_ns_,
                     std::max(layer_ns - static_cast<double>(window.stall_ns), 1.0) / timed, first);
  if (busy_ns > 0) {
    rate_ = Smooth(rate_, static_cast<double>(window.copied) / busy_ns, rate_ == 0);
  }
  // All the time, the layers without a time of their own included.
  const double elapsed_ns = layer_ns / timed * events;
  busy_share_ = Smooth(busy_share_, std::min(busy_ns / elapsed_ns, 1.0), first);
  if (rate_ <= 0) return;  // nothing is copied: nothing to decide
  const double copy_layers = static_cast<double>(options_.expert_bytes) / (rate_ * layer_ns_);
  const double missing = expected_ * (1 - cached_share_);
  const double busy = std::min(busy_share_, kBusyMost);
  formula_ = (std::max(missing, 1.0) + busy / (2 * (1 - busy))) * copy_layers;
  const double load = missing * copy_layers;
  link_bound_ = busy_share_ > kLinkFull || load > (link_bound_ ? kBoundUntil : kBoundFrom);
  Follow(copy_layers);
  Count(window);
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
  AddStrideStep({events_, stride_, cause_}, &steps_);
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

void DynamicStride::Count(const StrideWindow& window) {
  const auto late = static_cast<double>(window.prefetch_late);
  const double prefetched = static_cast<double>(window.prefetch_hits) + late;
  const bool waits = prefetched > 0 && !link_bound_ && late > options_.wait_share * prefetched;
  const auto copied = static_cast<double>(window.copied);
  const bool overloads =
      copied > 0 && static_cast<double>(window.wasted) > options_.overload_share * copied;
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

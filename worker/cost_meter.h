// Whether a policy is worth its time: what it takes, as a share of the layers' time, over periods
// of some hundred layers. One thread.
#pragma once

#include <cstdint>

namespace expertflow {

class CostMeter {
 public:
  // `most`: the share that is still worth it.
  explicit CostMeter(double most) : most_(most) {}

  // One layer: what the policy took of it. A layer whose time is not known (0) does not count.
  // Returns true when a period has ended in which the policy took too much; early, when it took far
  // too much in nearly every layer so far.
  bool Add(int64_t cost_ns, int64_t layer_ns) {
    if (layer_ns <= 0) return false;
    cost_ns_ += cost_ns;
    layers_ns_ += layer_ns;
    const double allowed_ns = most_ * static_cast<double>(layer_ns);
    far_too_much_ += static_cast<double>(cost_ns) > kFarTooMuch * allowed_ns ? 1 : 0;
    ++layers_;
    const bool hopeless = layers_ == kFirstLookLayers && far_too_much_ > kFirstLookLayers * 3 / 4;
    if (layers_ < kPeriodLayers && !hopeless) return false;
    share_ = static_cast<double>(cost_ns_) / static_cast<double>(layers_ns_);
    cost_mean_ns_ = cost_ns_ / layers_;
    layer_mean_ns_ = layers_ns_ / layers_;
    layers_ = far_too_much_ = cost_ns_ = layers_ns_ = 0;
    return share_ > most_;
  }

  // Of the latest period.
  double share() const { return share_; }
  int64_t cost_mean_ns() const { return cost_mean_ns_; }
  int64_t layer_mean_ns() const { return layer_mean_ns_; }
  double most() const { return most_; }

 private:
  static constexpr int64_t kPeriodLayers = 512;
  static constexpr int64_t kFirstLookLayers = 64;
  static constexpr double kFarTooMuch = 2;

  const double most_;
  int64_t layers_ = 0;
  int64_t far_too_much_ = 0;
  int64_t cost_ns_ = 0;
  int64_t layers_ns_ = 0;
  double share_ = 0;
  int64_t cost_mean_ns_ = 0;
  int64_t layer_mean_ns_ = 0;
};

}  // namespace expertflow

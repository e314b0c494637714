#include "worker/policy/prefetch_trial.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"

namespace expertflow {
namespace {

constexpr double kLongestTypical = 4;  // typical layers that one counts as, at most
constexpr double kNewShare = 1.0 / 256;

}  // namespace

PrefetchTrial::PrefetchTrial(const PrefetchTrialOptions& options)
    : options_(options), hold_events_(int64_t{options.window_passes} * options.moe_layers * 4) {
  CHECK(options_.moe_layers > 0);
  CHECK(options_.settle_passes >= 0 && options_.settle_passes < options_.window_passes);
}

void PrefetchTrial::OnLayer(int64_t layer_ns) {
  const auto ns = static_cast<double>(layer_ns);
  if (layer_ns > 0) {
    // Follows the median: up and down by equal steps.
    if (typical_ns_ == 0) typical_ns_ = ns;
    typical_ns_ *= ns > typical_ns_ ? 1 + kNewShare : 1 - kNewShare;
  }
  ++events_;
  if (!running_) {
    if (events_ >= hold_events_) BeginTrial();
    return;
  }
  if (layer_ns > 0 && events_ > int64_t{options_.settle_passes} * options_.moe_layers) {
    const double counted = std::min(ns, kLongestTypical * typical_ns_);
    Sums& sums = window_on_ ? on_ : off_;
    ++sums.count;
    sums.sum += counted;
    sums.squares += counted * counted;
  }
  if (events_ >= int64_t{options_.window_passes} * options_.moe_layers) EndWindow();
}

void PrefetchTrial::BeginTrial() {
  running_ = true;
  window_ = 0;
  window_on_ = true;
  events_ = 0;
  on_ = off_ = {};
}

void PrefetchTrial::EndWindow() {
  events_ = 0;
  ++window_;
  window_on_ = window_ % 4 == 0 || window_ % 4 == 3;
  if (window_ % 4 != 0) return;
  const auto mean = [](const Sums& s) { return s.sum / std::max(s.count, 1.0); };
  const auto error = [&](const Sums& s) {
    const double variance = s.squares / std::max(s.count, 1.0) - mean(s) * mean(s);
    return std::max(variance, 0.0) / std::max(s.count, 1.0);
  };
  const double saved = mean(off_) * (1 + options_.cost_most) - mean(on_);
  if (std::abs(saved) > options_.sure * std::sqrt(error(on_) + error(off_))) {
    Conclude(saved > 0);
  } else if (window_ >= 4 * options_.rounds_most) {
    Conclude(chosen_);
  }
}

void PrefetchTrial::Conclude(bool choose) {
  running_ = false;
  const bool changed = choose != chosen_;
  const int64_t first = int64_t{options_.hold_passes} * options_.moe_layers;
  const int64_t most = int64_t{options_.hold_passes_most} * options_.moe_layers;
  hold_events_ = changed ? first : std::clamp(hold_events_ * 2, first, most);
  chosen_ = choose;
  switches_ += changed ? 1 : 0;
}

}  // namespace expertflow

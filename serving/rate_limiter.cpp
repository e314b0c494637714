#include "serving/rate_limiter.h"

#include <algorithm>

namespace expertflow {
namespace {

constexpr int64_t kMinuteNs = 60'000'000'000;

}  // namespace

void RateLimiter::SetRate(int64_t per_minute) {
  per_minute_ = per_minute;
  cost_ns_ = per_minute > 0 ? kMinuteNs / per_minute : 0;
  paid_ns_.clear();
}

std::optional<int64_t> RateLimiter::Take(size_t caller, int64_t now_ns) {
  if (per_minute_ <= 0) return std::nullopt;
  if (caller >= paid_ns_.size()) paid_ns_.resize(caller + 1);
  const int64_t paid_ns = std::max(paid_ns_[caller], now_ns) + cost_ns_;
  if (paid_ns - now_ns > kMinuteNs) return paid_ns - now_ns - kMinuteNs;
  paid_ns_[caller] = paid_ns;
  return std::nullopt;
}

}  // namespace expertflow

#include "predictor/core/followed_stride.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace expertflow {

FollowedStride::FollowedStride(const FollowedStrideOptions& options)
    : options_(options), stride_(options.stride_min) {
  CHECK(options_.moe_layers > 0);
  CHECK(options_.stride_min > 0 && options_.stride_min <= options_.stride_max);
  AddStrideStep({events_, stride_, StrideCause::kStart}, &steps_);
}

void FollowedStride::Follow(const PublishedStride& published) {
  if (published.number == 0 || published.number == published_.number) return;
  published_ = published;
  const int32_t wanted = std::clamp(published.stride, options_.stride_min, options_.stride_max);
  if (wanted == stride_) return;
  stride_ = wanted;
  ++changes_;
  AddStrideStep({events_, stride_, published.cause}, &steps_);
}

void FollowedStride::OnLayer(const StrideMeasurement& measurement) {
  ++events_;
  window_.Add(measurement);
}

std::optional<StrideWindow> FollowedStride::TakeWindow() {
  const auto full =
      static_cast<uint64_t>(options_.window_steps) * static_cast<uint64_t>(options_.moe_layers);
  if (window_.events < full) return std::nullopt;
  return std::exchange(window_, {});
}

}  // namespace expertflow

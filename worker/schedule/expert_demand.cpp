#include "worker/schedule/expert_demand.h"

#include <algorithm>

namespace expertflow {
namespace {

constexpr size_t kTableBytesMax = size_t{16} << 20;
constexpr size_t kBucketsLeast = 64;
constexpr uint16_t kCountMost = 1 << 14;  // then all of the bucket's are halved
constexpr size_t kTokensLooked = 64;
// A token that was seen so often weighs as much as what all tokens have in common.
constexpr float kPriorTokens = 2;

size_t BucketsFor(int32_t layers, int32_t experts, int64_t vocab) {
  const size_t bytes = sizeof(uint16_t) * static_cast<size_t>(std::max(1, layers)) *
                       static_cast<size_t>(experts + 1);
  const size_t fit = std::max(kTableBytesMax / bytes, kBucketsLeast);
  return std::min(fit, static_cast<size_t>(std::max<int64_t>(vocab, 1)));
}

}  // namespace

ExpertDemand::ExpertDemand(int32_t layers, int32_t experts, int64_t vocab)
    : layers_(layers),
      experts_(experts),
      buckets_(BucketsFor(layers, experts, vocab)),
      uses_(buckets_ * static_cast<size_t>(layers) * static_cast<size_t>(experts)),
      tokens_(buckets_ * static_cast<size_t>(layers)),
      all_uses_(static_cast<size_t>(layers) * static_cast<size_t>(experts)),
      all_tokens_(static_cast<size_t>(layers)) {}

void ExpertDemand::Observe(int32_t token, LayerId layer, std::span<const int32_t> experts) {
  const size_t bucket = static_cast<size_t>(token) % buckets_;
  const size_t cell = Cell(bucket, layer);
  uint16_t& count = tokens_[bucket * static_cast<size_t>(layers_) + layer.index()];
  if (count == kCountMost) {
    count /= 2;
    for (size_t e = 0; e < static_cast<size_t>(experts_); ++e) uses_[cell + e] /= 2;
  }
  ++count;
  ++all_tokens_[layer.index()];
  for (const int32_t expert : experts) {
    ++uses_[cell + static_cast<size_t>(expert)];
    ++all_uses_[Cell(0, layer) + static_cast<size_t>(expert)];
  }
}

std::vector<float> ExpertDemand::Predict(std::span<const int32_t> tokens) const {
  tokens = tokens.last(std::min(tokens.size(), kTokensLooked));
  std::vector<float> use(all_uses_.size());
  for (int32_t l = 0; l < layers_; ++l) {
    const LayerId layer(l);
    if (all_tokens_[layer.index()] == 0) continue;
    const size_t all = Cell(0, layer);
    const auto share = [](auto uses, auto of) {
      return static_cast<float>(uses) / static_cast<float>(of);
    };
    for (const int32_t token : tokens) {
      const size_t bucket = static_cast<size_t>(token) % buckets_;
      const size_t cell = Cell(bucket, layer);
      const auto seen =
          static_cast<float>(tokens_[bucket * static_cast<size_t>(layers_) + layer.index()]);
      const float weight = 1 / ((seen + kPriorTokens) * static_cast<float>(tokens.size()));
      for (size_t e = 0; e < static_cast<size_t>(experts_); ++e) {
        const float prior = share(all_uses_[all + e], all_tokens_[layer.index()]);
        use[all + e] += weight * (static_cast<float>(uses_[cell + e]) + kPriorTokens * prior);
      }
    }
  }
  return use;
}

float ExpertsAdded(std::span<const float> unused, std::span<const float> one) {
  float added = 0;
  for (size_t i = 0; i < one.size(); ++i) added += unused[i] * one[i];
  return added;
}

}  // namespace expertflow

// A small random MoE model (weights only) and scripts of layer calls on it, for executor tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "model/arch/moe_executor.h"
#include "worker/expert_block_source.h"

namespace expertflow::testing {

// Blocks of different sizes; one layer is dense.
class RandomMoe final : public ExpertBlockSource {
 public:
  static constexpr int32_t kHidden = 24;
  static constexpr int32_t kTopK = 3;
  static constexpr int32_t kExperts = 8;
  static constexpr int32_t kLayers = 5;
  static constexpr int32_t kDenseLayer = 1;

  explicit RandomMoe(DType dtype, uint64_t seed = 1) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0, 0.3F);
    for (int32_t l = 0; l < kLayers; ++l) {
      for (int32_t e = 0; e < kExperts; ++e) {
        const int32_t intermediate = 16 + 4 * l;
        ExpertBlock block;
        const uint64_t matrix = static_cast<uint64_t>(kHidden * intermediate) * DTypeBytes(dtype);
        block.hidden = kHidden;
        block.intermediate = intermediate;
        block.types = ExpertTypes::All(dtype);
        block.up_offset = matrix;
        block.down_offset = 2 * matrix;
        block.bytes = 3 * matrix;
        std::vector<uint8_t>& bytes = storage_.emplace_back(block.bytes);
        for (size_t i = 0; i < block.bytes; i += DTypeBytes(dtype)) {
          const float value = normal(random);
          uint32_t bits = 0;
          std::memcpy(&bits, &value, 4);
          if (dtype == DType::kBF16) bits >>= 16;
          std::memcpy(&bytes[i], &bits, DTypeBytes(dtype));
        }
        block.data = bytes.data();
        blocks_.push_back(block);
      }
    }
  }
  int32_t layers() const override { return kLayers; }
  int32_t experts(LayerId layer) const override {
    return layer.value == kDenseLayer ? 0 : kExperts;
  }
  ExpertBlock Block(ExpertKey key) const override {
    return blocks_[static_cast<size_t>(key.layer.value * kExperts + key.expert.value)];
  }
  static int32_t TotalExperts() { return (kLayers - 1) * kExperts; }

 private:
  std::vector<std::vector<uint8_t>> storage_;
  std::vector<ExpertBlock> blocks_;
};

// One step: routing of every layer is drawn beforehand, so that pre-gates can know the future.
class RandomStep {
 public:
  RandomStep(std::mt19937_64& random, bool allow_prefill) {
    m_ = static_cast<int32_t>(1 + random() % 5);
    const bool prefill = allow_prefill && random() % 5 == 0;
    if (prefill) m_ += 12;
    std::normal_distribution<float> normal;
    for (int32_t t = 0; t < m_; ++t) {
      prefill_.push_back(prefill && (t > 0 || random() % 2 == 0) ? 1 : 0);
      sequences_.push_back({prefill_.back() != 0 ? 100 : static_cast<uint64_t>(t)});
    }
    x_.resize(static_cast<size_t>(m_ * RandomMoe::kHidden));
    for (float& value : x_) value = normal(random);
    for (int32_t l = 0; l < RandomMoe::kLayers; ++l) {
      std::vector<float>& logits = logits_.emplace_back();
      std::vector<int32_t>& ids = ids_.emplace_back();
      for (int32_t t = 0; t < m_; ++t) {
        for (int32_t e = 0; e < RandomMoe::kExperts; ++e) logits.push_back(normal(random));
        for (int32_t s = 0; s < RandomMoe::kTopK; ++s) {
          // Skewed; a row may list an expert twice.
          const auto id = static_cast<int32_t>(random() % 2 == 0 ? random() % 3 : random() % 8);
          ids.push_back(id);
          // The pre-gate is right about most choices.
          if (random() % 4 != 0) logits[static_cast<size_t>(t * RandomMoe::kExperts + id)] += 3;
        }
      }
    }
    weights_.assign(static_cast<size_t>(m_ * RandomMoe::kTopK), 1.0F);
  }

  // The call of one layer; `out` is filled with garbage first.
  MoeLayerCall Call(int32_t layer, int32_t lookahead, std::vector<float>* out) {
    out->assign(static_cast<size_t>(m_ * RandomMoe::kTopK * RandomMoe::kHidden), -12345.0F);
    pre_gates_.clear();
    for (int32_t l = layer + 1; l < RandomMoe::kLayers && l <= layer + lookahead; ++l) {
      if (l == RandomMoe::kDenseLayer) continue;
      pre_gates_.push_back({LayerId(l), logits_[static_cast<size_t>(l)].data()});
    }
    MoeLayerCall call;
    call.layer = LayerId(layer);
    call.m = m_;
    call.top_k = RandomMoe::kTopK;
    call.experts = RandomMoe::kExperts;
    call.hidden = RandomMoe::kHidden;
    call.ids = ids_[static_cast<size_t>(layer)].data();
    call.weights = weights_.data();
    call.prefill = prefill_;
    call.pre_gate = pre_gates_;
    call.sequences = sequences_;
    call.x = x_.data();
    call.out = out->data();
    return call;
  }

 private:
  int32_t m_ = 0;
  std::vector<uint8_t> prefill_;
  std::vector<SequenceId> sequences_;
  std::vector<float> x_;
  std::vector<std::vector<float>> logits_;
  std::vector<std::vector<int32_t>> ids_;
  std::vector<float> weights_;
  std::vector<PreGate> pre_gates_;
};

}  // namespace expertflow::testing

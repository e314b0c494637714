// The parts of the hybrid predictor that are counted, not solved for: co-activation of experts, the
// prior of each token id, and probabilities from margins.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "predictor/core/hybrid_model.h"
#include "predictor/feature_trace.h"

namespace expertflow {

struct TableFitOptions {
  size_t tokens_max = 2048;
  int32_t token_count_min = 2;
};

// Fills base, co-activation and token prior. REQUIRES: the model's shape is the trace's
void FitTables(const FeatureTrace& trace, std::span<const size_t> sequences,
               const TableFitOptions& options, HybridModel* model);

// How often experts of a margin were used.
class MarginHistogram {
 public:
  void Add(float margin, bool used);
  void Add(const MarginHistogram& other);
  // The logistic curve of maximum likelihood; a flat one at the mean without enough to go by.
  Logistic FitLogistic() const;

 private:
  static constexpr size_t kBins = 256;
  static constexpr float kFrom = -8;
  static constexpr float kTo = 8;
  std::array<double, kBins> all_ = {};
  std::array<double, kBins> used_ = {};
};

}  // namespace expertflow

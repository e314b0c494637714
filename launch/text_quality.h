// What a change of a model's weights costs on a text: both models run over it side by side, in this
// process. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "common/status.h"
#include "launch/bench/bench_model.h"
#include "launch/text_windows.h"

namespace expertflow {

struct TextQuality {
  size_t scored = 0;      // tokens
  double nll_before = 0;  // mean negative log probability of a scored token, nats
  double nll_after = 0;
  // Kullback-Leibler divergence of what the model after predicts from what the one before does, at
  // the same positions, in nats.
  double divergence_mean = 0;
  double divergence_max = 0;
};

// sum p (log p - log q) over the softmaxes of two rows of logits of equal size.
double KlDivergence(std::span<const float> p_logits, std::span<const float> q_logits);

struct TextQualityOptions {
  int32_t threads = 0;                                                // 0: one for each core
  std::function<void(size_t done_windows, size_t windows)> progress;  // optional
};

// Log probabilities are those that `perplexity` counts, bit by bit. Logits of a few positions at a
// time are kept, whatever the length. REQUIRES: both models have the vocabulary of the text's
// tokens, and a window fits their context
Result<TextQuality> CompareOnText(const BenchModel& before, const BenchModel& after,
                                  const WindowedText& text, const TextQualityOptions& options);

}  // namespace expertflow

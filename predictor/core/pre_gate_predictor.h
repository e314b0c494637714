// Predicts from the pre-gate alone: the target layer's router applied to an earlier residual
// stream.
//
// The top k is decided by which logits exceed the k-th, so the chance of an expert being in it is
// taken from its distance to that edge:
//     p = sigmoid((logit - edge) / (scale * sigma) - bias)
// with edge midway between the k-th and (k+1)-th logit and sigma the standard deviation of the row.
// Scale and bias grow with the distance as the residual stream moves on. They follow from the
// measured recall of the pre-gate (PREDICTION 2, row "pre-gate B", distances 1 to 8): the target's
// logits are taken as the pre-gate's plus independent noise, of the strength that gives the
// measured recall@4 of 48, and the sigmoid is fitted to how often an expert is then included.
#pragma once

#include <cstdint>
#include <span>

namespace expertflow {

// probability_ppm[experts of the target]: of being used by at least one of `rows`, in millionths.
// logits[m, experts]: the target's router on the residual stream `distance` MoE layers before it.
void PredictFromPreGate(int32_t distance, int32_t top_k, std::span<const int32_t> rows,
                        const float* logits, std::span<uint32_t> probability_ppm);

}  // namespace expertflow

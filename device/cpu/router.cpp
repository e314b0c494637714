#include "device/cpu/router.h"

#include <algorithm>
#include <limits>

namespace expertflow::cpu {
namespace {

constexpr float kExcluded = -std::numeric_limits<float>::infinity();

// The k largest of p, by descending value, ties to the lower index; NaN counts as smallest but one
// of them may be chosen when nothing else is left.
void SelectTopK(const float* p, int32_t count, int32_t k, int32_t* ids) {
  const auto better = [p](int32_t a, int32_t b) {
    return p[a] > p[b] || (p[b] != p[b] && p[a] == p[a]);
  };
  for (int32_t i = 0; i < count; ++i) {
    if (i >= k && (k == 0 || !better(i, ids[k - 1]))) continue;
    int32_t at = std::min(i, k - 1);
    for (; at > 0 && better(i, ids[at - 1]); --at) ids[at] = ids[at - 1];
    ids[at] = i;
  }
}

float ScoreOfGroup(const float* scores, int32_t count, RouterShape::GroupScore kind) {
  float first = kExcluded;
  float second = kExcluded;
  for (int32_t i = 0; i < count; ++i) {
    if (scores[i] > first) {
      second = first;
      first = scores[i];
    } else if (scores[i] > second) {
      second = scores[i];
    }
  }
  return kind == RouterShape::GroupScore::kLargest || count == 1 ? first : first + second;
}

// Experts outside the best groups can no longer be chosen. `group_scores` holds [groups].
void KeepBestGroups(const RouterShape& router, float* group_scores, float* scores) {
  const int32_t size = router.experts / router.groups;
  for (int32_t g = 0; g < router.groups; ++g) {
    group_scores[g] = ScoreOfGroup(scores + g * size, size, router.group_score);
  }
  for (int32_t g = 0; g < router.groups; ++g) {
    int32_t better = 0;  // groups that go before this one
    for (int32_t other = 0; other < router.groups; ++other) {
      if (group_scores[other] > group_scores[g]) ++better;
      if (group_scores[other] == group_scores[g] && other < g) ++better;
    }
    if (better >= router.groups_kept) std::fill_n(scores + g * size, size, kExcluded);
  }
}

// Stable, so that the order of equal weights is that of the ids before.
void SortByWeight(const float* scores, int32_t k, int32_t* ids) {
  for (int32_t slot = 1; slot < k; ++slot) {
    const int32_t id = ids[slot];
    int32_t at = slot;
    for (; at > 0; --at) {
      const int32_t before = ids[at - 1];
      const bool stays =
          !(scores[id] > scores[before]) && (scores[id] != scores[before] || before < id);
      if (stays) break;
      ids[at] = before;
    }
    ids[at] = id;
  }
}

}  // namespace

void RouteRow(const KernelTable& kernels, const RouterShape& router, const float* correction,
              const float* logits, Scratch* scratch, int32_t* ids, float* weights) {
  const int32_t experts = router.experts;
  const int32_t k = router.top_k;
  float* scores =
      scratch->Get(2 * static_cast<size_t>(experts) + static_cast<size_t>(router.groups));
  float* choice = scores + experts;
  std::copy_n(logits, experts, scores);
  if (router.scores == RouterShape::Scores::kSoftmax) kernels.softmax(scores, experts);
  if (router.scores == RouterShape::Scores::kSigmoid) kernels.sigmoid(scores, experts);
  for (int32_t e = 0; e < experts; ++e) {
    choice[e] = correction == nullptr ? scores[e] : scores[e] + correction[e];
  }
  if (router.groups_kept < router.groups) KeepBestGroups(router, choice + experts, choice);
  SelectTopK(choice, experts, k, ids);
  if (correction != nullptr) SortByWeight(scores, k, ids);

  for (int32_t s = 0; s < k; ++s) weights[s] = scores[ids[s]];
  if (router.scores == RouterShape::Scores::kSoftmaxOfChosen && k > 0) kernels.softmax(weights, k);
  if (router.normalise) {
    float sum = 0;
    for (int32_t s = 0; s < k; ++s) sum += weights[s];
    sum += 1e-20f;  // no effect but on a sum of zero
    for (int32_t s = 0; s < k; ++s) weights[s] /= sum;
  }
  if (router.scale != 1) {
    for (int32_t s = 0; s < k; ++s) weights[s] *= router.scale;
  }
}

}  // namespace expertflow::cpu

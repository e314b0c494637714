#include "predictor/core/learnt_statistics.h"

#include <cstdlib>

#include "predictor/core/hybrid_model.h"

namespace expertflow {
namespace {

constexpr size_t kLeavesMax = size_t{kForestTreesMax} << kForestDepthMax;

Status Wrong(const char* what) {
  return InvalidArgument(std::string("what predictors learnt: ") + what);
}

Status CheckLeaves(const LearntStatistics& s) {
  if (s.leaf_count.size() != s.leaves.size() || s.leaf_rest.size() != s.leaves.size()) {
    return Wrong("lists of leaves of different sizes");
  }
  for (size_t i = 0; i < s.leaves.size(); ++i) {
    if (s.leaves[i] >= kLeavesMax) return Wrong("a leaf out of range");
    if (i > 0 && s.leaves[i] <= s.leaves[i - 1]) return Wrong("leaves must ascend");
    const int64_t most = int64_t{s.leaf_count[i]} * kRestUnit * static_cast<int64_t>(kRestMost);
    if (s.leaf_rest[i] < -most || s.leaf_rest[i] > most) {
      return Wrong("a rest of more than there can be");
    }
  }
  return OkStatus();
}

Status CheckTokens(const LearntStatistics& s) {
  if (s.token_count.size() != s.tokens.size() || s.token_experts.size() != s.tokens.size() ||
      s.uses.size() != s.experts.size()) {
    return Wrong("lists of tokens of different sizes");
  }
  size_t at = 0;
  for (size_t i = 0; i < s.tokens.size(); ++i) {
    if (s.tokens[i] < 0) return Wrong("a token id below 0");
    if (i > 0 && s.tokens[i] <= s.tokens[i - 1]) return Wrong("token ids must ascend");
    if (s.token_experts[i] > s.experts.size() - at) return Wrong("uses of no token");
    const size_t end = at + s.token_experts[i];
    for (size_t first = at; at < end; ++at) {
      if (at > first && s.experts[at] <= s.experts[at - 1]) return Wrong("experts must ascend");
    }
  }
  return at == s.experts.size() ? OkStatus() : Wrong("uses of no token");
}

}  // namespace

Status CheckLearnt(const LearntStatistics& statistics) {
  RETURN_IF_ERROR(CheckLeaves(statistics));
  RETURN_IF_ERROR(CheckTokens(statistics));
  const size_t distances = statistics.recall.size();
  if (distances != 0 && distances != kPredictDistances) return Wrong("recall: distances");
  return OkStatus();
}

Status CheckLearnt(const LearntVersion& version) {
  RETURN_IF_ERROR(CheckLearnt(version.totals));
  if (version.leaf_version.size() != version.totals.leaves.size() ||
      version.token_version.size() != version.totals.tokens.size()) {
    return Wrong("versions of other rows");
  }
  return OkStatus();
}

}  // namespace expertflow

#include "worker/logprobs.h"

#include <algorithm>
#include <cmath>

namespace expertflow {

std::vector<TokenLogprob> LogprobsOf(std::span<const float> logits, int32_t token, int32_t count) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  const double log_sum = largest + std::log(sum);
  const auto logprob = [&](int32_t id) {
    return TokenLogprob{id, static_cast<float>(static_cast<double>(logits[id]) - log_sum)};
  };
  std::vector<TokenLogprob> found = {logprob(token)};
  if (count <= 0) return found;

  std::vector<int32_t> likeliest;  // in order; few
  const auto more_likely = [&logits](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  for (int32_t id = 0; id < static_cast<int32_t>(logits.size()); ++id) {
    if (static_cast<int32_t>(likeliest.size()) == count) {
      if (!more_likely(id, likeliest.back())) continue;
      likeliest.pop_back();
    }
    likeliest.insert(std::upper_bound(likeliest.begin(), likeliest.end(), id, more_likely), id);
  }
  for (const int32_t id : likeliest) found.push_back(logprob(id));
  return found;
}

}  // namespace expertflow

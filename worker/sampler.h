// Token sampling. A token is a pure function of (logits, parameters, tokens before it): the random
// number comes from a counter (seed, position), never from a stream, and penalties are counted anew
// for each token. So a sequence that is re-run after a failure, in another batch or on another
// worker draws the same tokens.
//
// The order: repetition penalty, frequency and presence penalty, logit bias, grammar, temperature,
// top_k, top_p, min_p.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/status.h"
#include "transport/messages.h"

namespace expertflow {

// The tokens that a grammar allows.
struct AllowedTokens {
  std::span<const uint64_t> bits;  // one for each id
  std::span<const int32_t> also;
};

class Sampler {
 public:
  // The logits after penalties, bias and grammar; `logits` itself when there is nothing to do, else
  // a buffer that holds until the next call. `tokens`: of the sequence so far, the first
  // `prompt_tokens` of them given. Of each token t that occurs
  // - in `tokens`: a positive logit is divided by repetition_penalty, another one multiplied;
  // - behind the prompt: frequency_penalty times its count and presence_penalty are taken off.
  // Then logit_bias is added, and what is not `allowed` becomes minus infinity; null allows
  // everything. REQUIRES: token ids are within `logits`
  std::span<const float> Adjust(std::span<const float> logits, const SamplingParams& params,
                                std::span<const int32_t> tokens, size_t prompt_tokens,
                                const AllowedTokens* allowed = nullptr);

  // `position`: of the token that is drawn. Temperature 0 takes the largest logit, the lowest id
  // among equals. Otherwise softmax(logits / temperature), cut to the top_k most likely, then to
  // the smallest set whose probability reaches top_p, then to those that are at least min_p times
  // as likely as the most likely one. A NaN logit is an error, and so is sampling where the largest
  // is infinite.
  Result<int32_t> Sample(std::span<const float> logits, const SamplingParams& params,
                         uint32_t position);

 private:
  void Forbid(const AllowedTokens& allowed);
  // The `count` most likely ids, in this order, to the beginning of order_; the lowest id goes
  // first among equals. REQUIRES: no NaN
  void OrderByLikelihood(std::span<const float> logits, size_t count);

  std::vector<float> adjusted_;
  std::vector<uint32_t> counts_;  // by token; all 0 between calls
  std::vector<int32_t> order_;
  std::vector<int32_t> sorted_;  // the other buffer of a sort
  std::vector<uint32_t> keys_;   // by token
  std::vector<double> probability_;
};

// Errors name the parameter and its range.
Status CheckSamplingParams(const SamplingParams& params, int64_t vocab);

}  // namespace expertflow

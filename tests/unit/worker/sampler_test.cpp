// The sampler against exact probabilities, by counting over many positions.
#include "worker/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace expertflow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr uint32_t kDraws = 20'000;

int32_t MustSample(const std::vector<float>& logits, const SamplingParams& params,
                   uint32_t position = 0) {
  Sampler sampler;
  const auto token = sampler.Sample(logits, params, position);
  EXPECT_TRUE(token.ok()) << token.status().ToString();
  return token.ok() ? *token : -1;
}

TEST(Sampler, GreedyTakesTheLowestIdAmongEquals) {
  EXPECT_EQ(MustSample({1, 3, 2}, {}), 1);
  EXPECT_EQ(MustSample({1, 3, 3, 3}, {}), 1);
  EXPECT_EQ(MustSample({0, 0}, {}), 0);
  EXPECT_EQ(MustSample({-kInfinity, -5, -4}, {}), 2);
  EXPECT_EQ(MustSample({-kInfinity, -kInfinity}, {}), 0);
  // Greedy means that the other settings have no effect.
  EXPECT_EQ(MustSample({1, 3, 2}, {.temperature = 0, .top_p = 0.1f, .top_k = 3, .seed = 9}), 1);
}

TEST(Sampler, NanIsAnErrorWhereverItIs) {
  for (const float temperature : {0.0f, 1.0f}) {
    for (size_t at = 0; at < 3; ++at) {
      std::vector<float> logits = {1, 2, 3};
      logits[at] = kNan;
      Sampler sampler;
      const auto token = sampler.Sample(logits, {.temperature = temperature}, 0);
      ASSERT_FALSE(token.ok()) << temperature << " " << at;
      EXPECT_EQ(token.status().code(), StatusCode::kInternal);
      EXPECT_THAT(token.status().message(), HasSubstr("token " + std::to_string(at)));
    }
  }
}

// A softmax of these has no value; the most likely token would come out last.
TEST(Sampler, InfiniteLogits) {
  Sampler sampler;
  EXPECT_FALSE(sampler.Sample(std::vector<float>{1, kInfinity, 2}, {.temperature = 1}, 0).ok());
  EXPECT_FALSE(
      sampler.Sample(std::vector<float>{-kInfinity, -kInfinity}, {.temperature = 1}, 0).ok());
  for (uint32_t position = 0; position < 100; ++position) {
    EXPECT_EQ(MustSample({-kInfinity, 1, -kInfinity}, {.temperature = 1}, position), 1);
  }
}

struct Distribution {
  const char* what;
  SamplingParams params;
  std::vector<double> probability;  // of each token
};

// Logits are logarithms of 8, 4, 2, 1, 1 sixteenths, not in order.
const std::vector<float> kLogits = {std::log(2.0f), std::log(8.0f), std::log(1.0f), std::log(4.0f),
                                    std::log(1.0f)};

std::vector<double> Normalised(std::vector<double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= sum;
  return weights;
}

TEST(Sampler, CountsFollowTheProbabilities) {
  const double half = 1 / std::sqrt(2.0);
  const Distribution cases[] = {
      {"plain", {.temperature = 1}, Normalised({2, 8, 1, 4, 1})},
      {"cold", {.temperature = 0.5f}, Normalised({4, 64, 1, 16, 1})},
      {"hot", {.temperature = 2}, Normalised({2 * half, 4 * half, 1, 2, 1})},
      {"top 1", {.temperature = 1, .top_k = 1}, {0, 1, 0, 0, 0}},
      {"top 3", {.temperature = 1, .top_k = 3}, Normalised({2, 8, 0, 4, 0})},
      {"top 4: the lower id of equals",
       {.temperature = 1, .top_k = 4},
       Normalised({2, 8, 1, 4, 0})},
      {"top 99", {.temperature = 1, .top_k = 99}, Normalised({2, 8, 1, 4, 1})},
      // The smallest set that reaches p.
      {"p 0.1", {.temperature = 1, .top_p = 0.1f}, {0, 1, 0, 0, 0}},
      {"p 0.49", {.temperature = 1, .top_p = 0.49f}, {0, 1, 0, 0, 0}},
      {"p 0.6", {.temperature = 1, .top_p = 0.6f}, Normalised({0, 8, 0, 4, 0})},
      {"p 0.8", {.temperature = 1, .top_p = 0.8f}, Normalised({2, 8, 0, 4, 0})},
      {"p 0.9", {.temperature = 1, .top_p = 0.9f}, Normalised({2, 8, 1, 4, 0})},
      {"p 0.95", {.temperature = 1, .top_p = 0.95f}, Normalised({2, 8, 1, 4, 1})},
      // p counts among the top k: 8 of 12 is more than 0.6.
      {"top 2 and p 0.6", {.temperature = 1, .top_p = 0.6f, .top_k = 2}, {0, 1, 0, 0, 0}},
      {"top 3 and p 0.6",
       {.temperature = 1, .top_p = 0.6f, .top_k = 3},
       Normalised({0, 8, 0, 4, 0})},
      // Relative to the most likely one, after the temperature.
      {"min p 0.2", {.temperature = 1, .min_p = 0.2f}, Normalised({2, 8, 0, 4, 0})},
      {"min p 0.45", {.temperature = 1, .min_p = 0.45f}, Normalised({0, 8, 0, 4, 0})},
      {"min p 1", {.temperature = 1, .min_p = 1}, {0, 1, 0, 0, 0}},
      {"cold and min p 0.2", {.temperature = 0.5f, .min_p = 0.2f}, Normalised({0, 64, 0, 16, 0})},
      {"top 2 and min p 0.2",
       {.temperature = 1, .top_k = 2, .min_p = 0.2f},
       Normalised({0, 8, 0, 4, 0})},
      {"p 0.95 and min p 0.2",
       {.temperature = 1, .top_p = 0.95f, .min_p = 0.2f},
       Normalised({2, 8, 0, 4, 0})},
      // p applies after the temperature: 64 of 86 is more than 0.7.
      {"cold and p 0.7", {.temperature = 0.5f, .top_p = 0.7f}, {0, 1, 0, 0, 0}},
  };
  for (const Distribution& expected : cases) {
    for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{0xfedcba9876543210}}) {
      SamplingParams params = expected.params;
      params.seed = seed;
      Sampler sampler;
      std::vector<double> counts(kLogits.size());
      for (uint32_t position = 0; position < kDraws; ++position) {
        ++counts[*sampler.Sample(kLogits, params, position)];
      }
      double chi_square = 0;
      for (size_t i = 0; i < counts.size(); ++i) {
        const double mean = expected.probability[i] * kDraws;
        if (mean == 0) {
          EXPECT_EQ(counts[i], 0) << expected.what << ", token " << i;
          continue;
        }
        chi_square += (counts[i] - mean) * (counts[i] - mean) / mean;
      }
      // Four degrees of freedom: above 23.5 with probability 0.0001.
      EXPECT_LT(chi_square, 23.5) << expected.what << ", seed " << seed;
    }
  }
}

// The draw's random number, written out.
double UniformAt(uint64_t seed, uint32_t position) {
  const auto mix = [](uint64_t state) {
    state += 0x9e3779b97f4a7c15;
    state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
    state = (state ^ (state >> 27)) * 0x94d049bb133111eb;
    return state ^ (state >> 31);
  };
  return static_cast<double>(mix(mix(seed) ^ position) >> 11) * 0x1.0p-53;
}

// The definition in plain words: all tokens in order, probabilities summed in that order.
int32_t SampleBySorting(const std::vector<float>& logits, const SamplingParams& params,
                        double uniform) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (params.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(params.top_k)));
  std::vector<double> probability;
  for (const int32_t id : order) {
    probability.push_back(std::exp((double{logits[id]} - double{logits[order[0]]}) /
                                   static_cast<double>(params.temperature)));
  }
  double target = uniform * std::accumulate(probability.begin(), probability.end(), 0.0);
  for (size_t i = 0; i < order.size(); ++i) {
    target -= probability[i];
    if (target < 0) return order[i];
  }
  return order.back();
}

// Flat logits with equal ones, both zeros and infinities: whatever is out of order shows.
TEST(Sampler, LargeVocabulariesAreInOrder) {
  std::mt19937 random(5);
  for (const size_t vocab : {1u, 2u, 17u, 4096u, 5000u}) {
    std::vector<float> logits(vocab);
    for (float& logit : logits) {
      logit = static_cast<float>(static_cast<int>(random() % 4001) - 2000) / 1000.0f;
      if (logit == 0 && random() % 2 == 0) logit = -0.0f;
      if (random() % 50 == 0) logit = -kInfinity;
    }
    logits.back() = 1;
    for (const int32_t top_k : {0, 1, 40, 300, 4096}) {
      for (uint32_t position = 0; position < 50; ++position) {
        const SamplingParams params = {.temperature = 3, .top_k = top_k, .seed = 11};
        const double uniform = UniformAt(params.seed, position);
        ASSERT_EQ(MustSample(logits, params, position), SampleBySorting(logits, params, uniform))
            << vocab << " " << top_k << " " << position;
      }
    }
  }
}

// Neighbours in position and in seed are as good as independent.
TEST(Sampler, NeighboursAreIndependent) {
  const std::vector<float> logits = {0, 0, 0, 0};
  for (const bool by_seed : {false, true}) {
    std::vector<double> counts(16);
    Sampler sampler;
    for (uint32_t i = 0; i < kDraws; ++i) {
      SamplingParams params{.temperature = 1, .seed = by_seed ? i : 7};
      const int32_t first = *sampler.Sample(logits, params, by_seed ? 7 : i);
      if (by_seed) ++params.seed;
      const int32_t second = *sampler.Sample(logits, params, by_seed ? 7 : i + 1);
      ++counts[first * 4 + second];
    }
    double chi_square = 0;
    const double mean = kDraws / 16.0;
    for (const double count : counts) chi_square += (count - mean) * (count - mean) / mean;
    EXPECT_LT(chi_square, 44.3) << by_seed;  // 15 degrees of freedom, 0.0001
  }
}

TEST(Sampler, ATokenIsAFunctionOfSeedAndPosition) {
  const SamplingParams params{.temperature = 1, .seed = 5};
  std::vector<int32_t> forward(200);
  Sampler sampler;
  for (uint32_t i = 0; i < 200; ++i) forward[i] = *sampler.Sample(kLogits, params, i);
  // Backwards, with other work between, in another sampler.
  Sampler other;
  for (uint32_t i = 200; i-- > 0;) {
    (void)other.Sample(std::vector<float>(i + 1, 0.5f), {.temperature = 2, .seed = i}, i);
    EXPECT_EQ(*other.Sample(kLogits, params, i), forward[i]);
  }
  std::vector<int32_t> reseeded(200);
  for (uint32_t i = 0; i < 200; ++i) {
    reseeded[i] = *sampler.Sample(kLogits, {.temperature = 1, .seed = 6}, i);
  }
  EXPECT_NE(reseeded, forward);
}

TEST(Sampler, PenaltiesAndBiasHaveOneOrder) {
  Sampler sampler;
  const std::vector<float> logits = {4, -2, 3, 1, 0};
  const std::vector<int32_t> tokens = {0, 1, 1, 2, 3, 3};  // four of them are the prompt's
  const auto adjusted = [&](const SamplingParams& params) {
    const std::span<const float> span = sampler.Adjust(logits, params, tokens, 4);
    return std::vector<float>(span.begin(), span.end());
  };
  EXPECT_EQ(sampler.Adjust(logits, {.temperature = 1, .min_p = 0.5f}, tokens, 4).data(),
            logits.data());
  // What is in the prompt counts, and once.
  EXPECT_THAT(adjusted({.repetition_penalty = 2}), ElementsAre(2, -4, 1.5f, 0.5f, 0));
  // Only what was generated counts, each time.
  EXPECT_THAT(adjusted({.frequency_penalty = 0.5f}), ElementsAre(4, -2, 3, 0, 0));
  EXPECT_THAT(adjusted({.presence_penalty = 0.5f}), ElementsAre(4, -2, 3, 0.5f, 0));
  EXPECT_THAT(adjusted({.presence_penalty = -1}), ElementsAre(4, -2, 3, 2, 0));
  EXPECT_THAT(adjusted({.logit_bias = {{4, 7}, {0, -100}}}), ElementsAre(-96, -2, 3, 1, 7));
  // (1 / 2) - 2 * 0.25 - 0.5 + 3: a bias is never divided.
  EXPECT_THAT(adjusted({.repetition_penalty = 2,
                        .frequency_penalty = 0.25f,
                        .presence_penalty = 0.5f,
                        .logit_bias = {{3, 3}}}),
              ElementsAre(2, -4, 1.5f, 2.5f, 0));
  // What is forbidden cannot come back, however it is biased; NaN is an error still.
  const std::vector<uint64_t> bits = {0b00110};
  const std::vector<int32_t> also = {4};
  const AllowedTokens allowed{bits, also};
  const auto constrained = sampler.Adjust(std::vector<float>{4, -2, 3, kNan, 0},
                                          {.logit_bias = {{0, 100}, {2, 1}}}, tokens, 4, &allowed);
  EXPECT_EQ(constrained[0], -kInfinity);
  EXPECT_EQ(constrained[1], -2);
  EXPECT_EQ(constrained[2], 4);
  EXPECT_TRUE(std::isnan(constrained[3]));
  EXPECT_EQ(constrained[4], 0);
  // Nothing is left from one call to the next, and a larger vocabulary is no surprise.
  const std::vector<float> more(9, 1.0f);
  EXPECT_THAT(sampler.Adjust(more, {.frequency_penalty = 1}, std::vector<int32_t>{8, 8}, 1),
              ElementsAre(1, 1, 1, 1, 1, 1, 1, 1, 0));
  EXPECT_THAT(adjusted({.frequency_penalty = 0.5f}), ElementsAre(4, -2, 3, 0, 0));
}

TEST(Sampler, ParametersOutOfRangeAreNamed) {
  const auto message = [](const SamplingParams& params) {
    const Status status = CheckSamplingParams(params, 5);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(message({.temperature = -0.1f}), HasSubstr("temperature"));
  EXPECT_THAT(message({.temperature = 101}), HasSubstr("temperature"));
  EXPECT_THAT(message({.temperature = kNan}), HasSubstr("temperature"));
  EXPECT_THAT(message({.temperature = kInfinity}), HasSubstr("temperature"));
  EXPECT_THAT(message({.top_p = 0}), HasSubstr("top_p"));
  EXPECT_THAT(message({.top_p = 1.01f}), HasSubstr("top_p"));
  EXPECT_THAT(message({.top_p = kNan}), HasSubstr("top_p"));
  EXPECT_THAT(message({.top_k = -1}), HasSubstr("top_k"));
  EXPECT_TRUE(CheckSamplingParams({}, 5).ok());
  EXPECT_THAT(message({.min_p = 1.1f}), HasSubstr("min_p"));
  EXPECT_THAT(message({.min_p = kNan}), HasSubstr("min_p"));
  EXPECT_THAT(message({.repetition_penalty = 0}), HasSubstr("repetition_penalty"));
  EXPECT_THAT(message({.frequency_penalty = 2.1f}), HasSubstr("frequency_penalty"));
  EXPECT_THAT(message({.presence_penalty = kInfinity}), HasSubstr("presence_penalty"));
  EXPECT_THAT(message({.logit_bias = {{4, 101}}}), HasSubstr("logit_bias"));
  EXPECT_THAT(message({.logit_bias = {{5, 1}}}), HasSubstr("logit_bias: token id 5"));
  EXPECT_THAT(message({.logit_bias = {{-1, 1}}}), HasSubstr("logit_bias: token id -1"));
  EXPECT_TRUE(CheckSamplingParams({.temperature = 100, .top_p = 1e-6f, .top_k = 1 << 30}, 5).ok());
}

}  // namespace
}  // namespace expertflow

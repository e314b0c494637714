// What running adds to a forecaster: equal to its formula written out, shared by sequences, and
// nothing where it learns at a rate of zero.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "predictor/core/next_use_forecaster.h"
#include "tests/unit/predictor/random_forecaster.h"

namespace expertflow {
namespace {

constexpr int32_t kLayers = 3;
constexpr int32_t kExperts = 5;
constexpr size_t kAll = kLayers * kExperts;
constexpr size_t kInputs = kForecastOwnRates + 1;

std::shared_ptr<const NextUseModel> Model() {
  return std::make_shared<NextUseModel>(
      testing::RandomForecaster(std::vector<int32_t>(kLayers, kExperts), 4, 2));
}

struct Token {
  uint16_t chosen[kLayers][2];
  float weights[kLayers][2];
};

Token RandomToken(std::mt19937* random) {
  Token token;
  for (int32_t l = 0; l < kLayers; ++l) {
    token.chosen[l][0] = static_cast<uint16_t>((*random)() % kExperts);
    token.chosen[l][1] = static_cast<uint16_t>((token.chosen[l][0] + 1) % kExperts);
    token.weights[l][0] = 0.75f;
    token.weights[l][1] = 0.25f;
  }
  return token;
}

// Always the first two experts of each layer.
Token SameToken() {
  Token token;
  for (int32_t l = 0; l < kLayers; ++l) {
    for (int32_t j = 0; j < 2; ++j) {
      token.chosen[l][j] = static_cast<uint16_t>(j);
      token.weights[l][j] = 0.5f;
    }
  }
  return token;
}

void Decode(NextUseForecaster& forecaster, const Token& token) {
  for (int32_t l = 0; l < kLayers; ++l) forecaster.Observe(l, token.chosen[l], token.weights[l]);
}

void Prompt(NextUseForecaster& forecaster, const Token& token) {
  for (int32_t l = 0; l < kLayers; ++l) {
    const RoutedToken routed[] = {{token.chosen[l], token.weights[l]}};
    forecaster.ObservePrompt(l, routed);
  }
}

std::vector<float> Forecasts(const NextUseForecaster& forecaster) {
  std::vector<float> all(forecaster.next().begin(), forecaster.next().end());
  all.insert(all.end(), forecaster.later().begin(), forecaster.later().end());
  return all;
}

TEST(NextUseCorrectionsTest, ARateOfZeroLeavesTheForecastOfTheModel) {
  const auto model = Model();
  const NextUseMap map(model, 1.0);
  NextUseCorrections none(*model, 0);
  NextUseForecaster plain(map);
  NextUseForecaster corrected(map, &none);
  std::mt19937 random(1);
  for (int step = 0; step < 200; ++step) {
    const Token token = RandomToken(&random);
    if (step % 70 == 69) {
      plain.Reset();
      corrected.Reset();
    } else if (step % 20 == 0) {
      Prompt(plain, token);
      Prompt(corrected, token);
    } else {
      Decode(plain, token);
      Decode(corrected, token);
    }
    ASSERT_EQ(Forecasts(plain), Forecasts(corrected)) << step;
  }
  EXPECT_EQ(none.own, std::vector<float>(kInputs * 2 * kAll, 0.0f));
}

// A sequence beside its forecaster: the inputs as their definition has them.
struct Written {
  explicit Written(const NextUseMap& map, NextUseCorrections* corrections)
      : forecaster(map, corrections), x(kInputs * kAll, 0.0), z(kInputs * kAll, 0.0) {
    std::fill(x.end() - static_cast<ptrdiff_t>(kAll), x.end(), 1.0);
  }

  void Decode(const Token& token, double rate, double discount, std::vector<double>* own) {
    std::vector<double> used(kAll, 0.0);
    std::vector<double> next(kAll);
    std::vector<double> later(kAll);
    for (size_t e = 0; e < kAll; ++e) later[e] = forecaster.later()[e];
    for (int32_t l = 0; l < kLayers; ++l) {
      for (int32_t i = 0; i < kExperts; ++i) {
        const auto e = static_cast<size_t>(l * kExperts + i);
        next[e] = forecaster.next()[e];
        used[e] = token.chosen[l][0] == i || token.chosen[l][1] == i ? 1 : 0;
      }
      forecaster.Observe(l, token.chosen[l], token.weights[l]);
    }
    for (size_t h = 0; h < kInputs; ++h) {
      const double decay = h < kForecastOwnRates ? std::exp2(-1 / kForecastOwnHalfLives[h]) : 1;
      for (size_t e = 0; e < kAll; ++e) {
        double& rate_of = x[h * kAll + e];
        double& passed = z[h * kAll + e];
        (*own)[h * 2 * kAll + e] += rate * (used[e] - next[e]) * rate_of;
        (*own)[(h * 2 + 1) * kAll + e] += rate * (used[e] * passed - later[e] * rate_of);
        passed = discount * passed + (1 - discount) * rate_of;
        rate_of = decay * rate_of + (1 - decay) * used[e];
      }
    }
  }

  void Prompt(const Token& token) {
    expertflow::Prompt(forecaster, token);
    std::fill(z.begin(), z.end(), 0.0);
    for (size_t h = 0; h < kForecastOwnRates; ++h) {
      const double decay = std::exp2(-1 / kForecastOwnHalfLives[h]);
      for (size_t e = 0; e < kAll; ++e) x[h * kAll + e] *= decay;
      for (size_t l = 0; l < kLayers; ++l) {
        for (const uint16_t i : token.chosen[l]) x[h * kAll + l * kExperts + i] += 1 - decay;
      }
    }
  }

  NextUseForecaster forecaster;
  std::vector<double> x;
  std::vector<double> z;
};

TEST(NextUseCorrectionsTest, EqualTheFormulaWrittenOut) {
  const auto model = Model();
  const NextUseMap map(model, 1.0);
  constexpr float kRate = 0.01f;
  NextUseCorrections corrections(*model, kRate);
  Written a(map, &corrections);
  Written b(map, &corrections);
  std::vector<double> expected(kInputs * 2 * kAll, 0.0);
  std::mt19937 random(2);
  for (int step = 0; step < 100; ++step) {
    const Token token = RandomToken(&random);
    if (step % 30 == 10) {
      a.Prompt(token);
    } else {
      (step % 3 == 0 ? b : a).Decode(token, kRate, map.discount(), &expected);
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(corrections.own[i], expected[i], 1e-5) << "step " << step << ", number " << i;
    }
  }
}

// What a forecast says after 40 of the same tokens in a sequence of its own.
std::vector<float> ForecastOfSameTokens(const NextUseMap& map, NextUseCorrections* corrections) {
  NextUseForecaster forecaster(map, corrections);
  for (int token = 0; token < 40; ++token) Decode(forecaster, SameToken());
  return Forecasts(forecaster);
}

TEST(NextUseCorrectionsTest, OtherSequencesKnowHowOftenExpertsCame) {
  const auto model = Model();
  const NextUseMap map(model, 1.0);
  NextUseCorrections corrections(*model, 0.01f);
  const std::vector<float> before = ForecastOfSameTokens(map, nullptr);
  for (int sequence = 0; sequence < 100; ++sequence) ForecastOfSameTokens(map, &corrections);
  const std::vector<float> after = ForecastOfSameTokens(map, &corrections);
  double error_before = 0;
  for (size_t i = 0; i < after.size(); ++i) {
    const double truth = i % kExperts < 2 ? 1 : 0;  // of `next` and of `later`
    error_before += std::abs(before[i] - truth) / static_cast<double>(after.size());
    EXPECT_LT(std::abs(after[i] - truth), 0.15) << i;
  }
  EXPECT_GT(error_before, 0.3);
}

TEST(NextUseCorrectionsTest, TheSameTokensLeaveTheSameBits) {
  const auto model = Model();
  const NextUseMap map(model, 0.7);
  NextUseCorrections first(*model, 0.01f);
  NextUseCorrections second(*model, 0.01f);
  for (NextUseCorrections* corrections : {&first, &second}) {
    NextUseForecaster a(map, corrections);
    NextUseForecaster b(map, corrections);
    std::mt19937 random(3);
    for (int step = 0; step < 300; ++step) Decode(step % 4 == 0 ? b : a, RandomToken(&random));
  }
  EXPECT_EQ(first.own, second.own);
}

TEST(NextUseCorrectionsTest, ARoutersFaultEndsWithItsSequence) {
  const auto model = Model();
  const NextUseMap map(model, 1.0);
  NextUseCorrections corrections(*model, 0.01f);
  NextUseForecaster forecaster(map, &corrections);
  Token wild = SameToken();
  wild.chosen[0][0] = kExperts + 3;
  wild.chosen[1][1] = wild.chosen[1][0];
  wild.weights[2][1] = 1e20f;
  for (int token = 0; token < 50; ++token) Decode(forecaster, wild);
  ASSERT_GT(std::abs(forecaster.next()[0]), 1e6f);
  forecaster.Reset();
  for (const float value : corrections.own) ASSERT_LE(std::abs(value), 50 * 0.01f * 3);
  for (const float value : Forecasts(forecaster)) ASSERT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace expertflow

// The forecaster and its fit: equal to the regression written out plainly, better than guessing on
// sequences that the fit never saw, and safe with bad input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "predictor/core/next_use_forecaster.h"
#include "predictor/next_use_fit.h"

namespace expertflow {
namespace {

using testing::HasSubstr;

constexpr int32_t kLayers = 3;
constexpr int32_t kExperts = 4;
constexpr int32_t kTopK = 2;
constexpr size_t kAll = kLayers * kExperts;
constexpr size_t kWidth = kLayers * kTopK;
// A map keeps its large matrices in bytes.
constexpr double kByteTolerance = 5e-3;
const std::vector<int32_t> kShape(kLayers, kExperts);

struct Recorded {
  std::vector<uint16_t> chosen;
  std::vector<float> weights;
  size_t rows() const { return chosen.size() / kWidth; }
};

// A hidden topic that changes now and then picks the experts: past and earlier layers tell it.
std::vector<Recorded> MakeSequences(size_t count, size_t rows, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Recorded> sequences(count);
  for (Recorded& sequence : sequences) {
    uint32_t topic = random() % 2;
    for (size_t row = 0; row < rows; ++row) {
      if (random() % 2 == 0) topic = random() % 2;
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        const auto first = static_cast<uint16_t>(
            random() % 8 == 0 ? random() % kExperts
                              : (2 * topic + static_cast<uint32_t>(layer)) % kExperts);
        const auto second =
            static_cast<uint16_t>((first + 1 + random() % (kExperts - 1)) % kExperts);
        sequence.chosen.insert(sequence.chosen.end(), {first, second});
        const float weight = static_cast<float>(50 + random() % 50) / 100.0f;
        sequence.weights.insert(sequence.weights.end(), {weight, 1.0f - weight});
      }
    }
  }
  return sequences;
}

std::vector<FitSequence> Views(const std::vector<Recorded>& sequences) {
  std::vector<FitSequence> views;
  for (const Recorded& sequence : sequences) views.push_back({sequence.chosen, sequence.weights});
  return views;
}

using Matrix = std::vector<std::vector<double>>;

// Solves a x = b by elimination with pivots; columns of b apart.
Matrix Solve(Matrix a, Matrix b) {
  const size_t n = a.size();
  for (size_t i = 0; i < n; ++i) {
    size_t pivot = i;
    for (size_t r = i; r < n; ++r) {
      if (std::abs(a[r][i]) > std::abs(a[pivot][i])) pivot = r;
    }
    std::swap(a[i], a[pivot]);
    std::swap(b[i], b[pivot]);
    for (size_t r = 0; r < n; ++r) {
      if (r == i) continue;
      const double factor = a[r][i] / a[i][i];
      for (size_t c = i; c < n; ++c) a[r][c] -= factor * a[i][c];
      for (size_t c = 0; c < b[r].size(); ++c) b[r][c] -= factor * b[i][c];
    }
  }
  for (size_t i = 0; i < n; ++i) {
    for (double& value : b[i]) value /= a[i][i];
  }
  return b;
}

// The rows of the regression as its definition has them: inputs (rates before the row, then uses of
// the row), uses, and discounted futures after the row.
struct Plain {
  Matrix inputs;
  Matrix uses;
  Matrix futures;  // of the middle horizon
};

Plain PlainRows(const std::vector<Recorded>& sequences) {
  Plain plain;
  for (const Recorded& sequence : sequences) {
    const size_t first = plain.uses.size();
    std::vector<double> rates(kForecastFeatures * kAll, 0.0);
    for (size_t row = 0; row < sequence.rows(); ++row) {
      std::vector<double> use(kAll, 0.0);
      std::vector<double> weight(kAll, 0.0);
      for (size_t i = 0; i < kWidth; ++i) {
        const size_t e = i / kTopK * kExperts + sequence.chosen[row * kWidth + i];
        use[e] = 1;
        weight[e] = sequence.weights[row * kWidth + i];
      }
      std::vector<double> input = rates;
      input.insert(input.end(), use.begin(), use.end());
      plain.inputs.push_back(input);
      plain.uses.push_back(use);
      for (size_t f = 0; f < kForecastFeatures; ++f) {
        const double decay = std::exp2(-1 / kForecastHalfLives[f]);
        const auto& in = f + 1 == kForecastFeatures ? weight : use;
        for (size_t e = 0; e < kAll; ++e) {
          rates[f * kAll + e] = decay * rates[f * kAll + e] + (1 - decay) * in[e];
        }
      }
    }
    const double g = kForecastDiscounts[1];
    std::vector<double> future(kAll, 0.0);
    plain.futures.resize(plain.uses.size());
    for (size_t row = plain.uses.size(); row-- > first;) {
      plain.futures[row] = future;
      for (size_t e = 0; e < kAll; ++e) future[e] = (1 - g) * plain.uses[row][e] + g * future[e];
    }
  }
  return plain;
}

// Ridge regression of `targets` on the first `count` inputs; returns the fitted value of each row.
Matrix PlainFit(const Plain& plain, size_t count, const Matrix& targets,
                const NextUseFitOptions& options) {
  const auto rows = static_cast<double>(plain.inputs.size());
  std::vector<double> mean(count, 0.0);
  std::vector<double> target_mean(targets[0].size(), 0.0);
  for (size_t r = 0; r < plain.inputs.size(); ++r) {
    for (size_t i = 0; i < count; ++i) mean[i] += plain.inputs[r][i] / rows;
    for (size_t t = 0; t < target_mean.size(); ++t) target_mean[t] += targets[r][t] / rows;
  }
  Matrix gram(count, std::vector<double>(count, 0.0));
  Matrix cross(count, std::vector<double>(target_mean.size(), 0.0));
  for (size_t r = 0; r < plain.inputs.size(); ++r) {
    for (size_t i = 0; i < count; ++i) {
      const double x = plain.inputs[r][i] - mean[i];
      for (size_t j = 0; j < count; ++j) gram[i][j] += x * (plain.inputs[r][j] - mean[j]);
      for (size_t t = 0; t < target_mean.size(); ++t)
        cross[i][t] += x * (targets[r][t] - target_mean[t]);
    }
  }
  for (size_t i = 0; i < count; ++i) {
    const size_t f = i / kAll;
    gram[i][i] +=
        (f < kForecastFeatures ? options.ridge[f] : options.ridge_layers) * gram[i][i] / rows +
        1e-3;
  }
  const Matrix weights = Solve(gram, cross);
  Matrix fitted;
  for (const auto& input : plain.inputs) {
    std::vector<double> value = target_mean;
    for (size_t i = 0; i < count; ++i) {
      for (size_t t = 0; t < value.size(); ++t) value[t] += (input[i] - mean[i]) * weights[i][t];
    }
    fitted.push_back(value);
  }
  return fitted;
}

NextUseFitOptions FullRank() {
  NextUseFitOptions options;
  options.rank = kForecastFeatures * kAll;
  options.gain_rank = kExperts;
  options.own_share = 0;
  std::fill(std::begin(options.ridge), std::end(options.ridge), 30.0);
  options.ridge_layers = 20;
  return options;
}

// g = 0.5 is one of the fitted horizons: slots/demand of 1.
TEST(NextUseFitTest, EqualsTheRegressionWrittenOut) {
  const std::vector<Recorded> sequences = MakeSequences(6, 60, 1);
  const NextUseFitOptions options = FullRank();
  auto fitted = FitNextUse(kShape, kTopK, Views(sequences), options);
  ASSERT_TRUE(fitted.ok()) << fitted.status().ToString();
  const NextUseMap map(std::make_shared<NextUseModel>(*fitted), 1.0);
  EXPECT_DOUBLE_EQ(map.discount(), 0.5);
  const Plain plain = PlainRows(sequences);
  // After layer l of a row the inputs are the rates and the uses of layers 0..l.
  std::vector<Matrix> next;
  std::vector<Matrix> later;
  for (int32_t seen = 0; seen < kLayers; ++seen) {
    const size_t count = kForecastFeatures * kAll + static_cast<size_t>(seen * kExperts);
    next.push_back(PlainFit(plain, count, plain.uses, options));
    later.push_back(PlainFit(plain, count, plain.futures, options));
  }
  size_t row = 0;
  for (const Recorded& sequence : sequences) {
    NextUseForecaster forecaster(map);
    for (size_t r = 0; r < sequence.rows(); ++r, ++row) {
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        const auto seen = static_cast<size_t>(layer);
        for (size_t e = seen * kExperts; e < kAll; ++e) {
          ASSERT_NEAR(forecaster.next()[e], next[seen][row][e], kByteTolerance)
              << "row " << row << ", layer " << layer << ", expert " << e;
        }
        for (size_t e = 0; e < kAll; ++e) {
          ASSERT_NEAR(forecaster.later()[e], later[seen][row][e], kByteTolerance)
              << "row " << row << ", layer " << layer << ", expert " << e;
        }
        const size_t at = r * kWidth + seen * kTopK;
        forecaster.Observe(layer, std::span(sequence.chosen).subspan(at, kTopK),
                           std::span(sequence.weights).subspan(at, kTopK));
      }
    }
  }
}

double MeanSquaredError(const NextUseMap& map, const std::vector<Recorded>& sequences) {
  double sum = 0;
  size_t count = 0;
  for (const Recorded& sequence : sequences) {
    NextUseForecaster forecaster(map);
    for (size_t r = 0; r < sequence.rows(); ++r) {
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        const size_t at = r * kWidth + static_cast<size_t>(layer) * kTopK;
        for (int32_t e = 0; e < kExperts; ++e) {
          const bool used = sequence.chosen[at] == e || sequence.chosen[at + 1] == e;
          const double error =
              forecaster.next()[static_cast<size_t>(layer * kExperts + e)] - (used ? 1 : 0);
          sum += error * error;
          ++count;
        }
        forecaster.Observe(layer, std::span(sequence.chosen).subspan(at, kTopK),
                           std::span(sequence.weights).subspan(at, kTopK));
      }
    }
  }
  return sum / static_cast<double>(count);
}

TEST(NextUseFitTest, ForecastsUnseenSequencesAndGainsFromLayersAlreadySeen) {
  NextUseFitOptions options = FullRank();
  options.rank = 24;
  const auto train = MakeSequences(60, 60, 2);
  const auto test = MakeSequences(10, 60, 3);
  auto fitted = FitNextUse(kShape, kTopK, Views(train), options);
  ASSERT_TRUE(fitted.ok());
  const NextUseMap map(std::make_shared<NextUseModel>(*fitted), 1.0);
  const double error = MeanSquaredError(map, test);
  std::fill(fitted->gain_out.begin(), fitted->gain_out.end(), 0.0f);
  const NextUseMap blind(std::make_shared<NextUseModel>(*fitted), 1.0);
  const double error_blind = MeanSquaredError(blind, test);
  EXPECT_LT(error_blind, 0.25);  // half of the experts at random: 0.25
  EXPECT_LT(error, error_blind - 0.01);
}

TEST(NextUseFitTest, SameInputSameModel) {
  const auto sequences = MakeSequences(6, 60, 4);
  const auto a = FitNextUse(kShape, kTopK, Views(sequences), {});
  const auto b = FitNextUse(kShape, kTopK, Views(sequences), {});
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->state_in, b->state_in);
  EXPECT_EQ(a->gain_out, b->gain_out);
  EXPECT_EQ(a->own, b->own);
}

TEST(NextUseFitTest, BadTrainingDataIsRefused) {
  auto sequences = MakeSequences(6, 60, 5);
  EXPECT_THAT(FitNextUse(kShape, kTopK, Views(MakeSequences(1, 10, 1)), {}).status().message(),
              HasSubstr("10 tokens"));
  EXPECT_THAT(FitNextUse(std::vector<int32_t>(100, 64), kTopK, {}, {}).status().message(),
              HasSubstr("6400 experts"));
  sequences[2].chosen[7] = kExperts;
  EXPECT_THAT(FitNextUse(kShape, kTopK, Views(sequences), {}).status().message(),
              HasSubstr("does not have"));
}

TEST(NextUseForecasterTest, ModelsOfWrongSizesOrValuesAreRefused) {
  const auto fitted = FitNextUse(kShape, kTopK, Views(MakeSequences(6, 60, 6)), {});
  ASSERT_TRUE(fitted.ok());
  EXPECT_TRUE(CheckNextUseModel(*fitted).ok());
  NextUseModel model = *fitted;
  model.gain_in.pop_back();
  EXPECT_THAT(CheckNextUseModel(model).message(), HasSubstr("gain_in"));
  model = *fitted;
  model.bias[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(CheckNextUseModel(model).message(), HasSubstr("bias"));
  model = *fitted;
  model.experts[0] = 0;
  EXPECT_FALSE(CheckNextUseModel(model).ok());
}

TEST(NextUseForecasterTest, DistancesCountLayersAndStayInRangeForAnyInput) {
  const auto fitted = FitNextUse(kShape, kTopK, Views(MakeSequences(6, 60, 7)), {});
  ASSERT_TRUE(fitted.ok());
  const NextUseMap map(std::make_shared<NextUseModel>(*fitted), 0.3);
  NextUseForecaster a(map);
  NextUseForecaster b(map);
  std::mt19937 random(8);
  std::vector<uint32_t> alone(kAll);
  std::vector<uint32_t> both(kAll);
  for (int step = 0; step < 2000; ++step) {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      // Out of range, twice the same, wild weights: a router's fault must not become ours.
      const uint16_t chosen[2] = {static_cast<uint16_t>(random() % 6),
                                  static_cast<uint16_t>(random() % 6)};
      const float weights[2] = {static_cast<float>(random() % 3), 0.5f};
      a.Observe(layer, chosen, weights);
      b.Observe(layer, chosen, weights);
      const NextUseForecaster* one[] = {&a};
      const NextUseForecaster* two[] = {&a, &b};
      ExpectedDistances(map, layer, one, alone);
      ExpectedDistances(map, layer, two, both);
      for (size_t e = 0; e < kAll; ++e) {
        const auto target = static_cast<int32_t>(e / kExperts);
        const int32_t ahead = target > layer ? target - layer : target - layer + kLayers;
        ASSERT_GE(alone[e], static_cast<uint32_t>(1024 * ahead / kLayers));
        ASSERT_LE(alone[e], 1024u * 1002u);
        ASSERT_LE(both[e], alone[e]);
      }
    }
  }
}

}  // namespace
}  // namespace expertflow

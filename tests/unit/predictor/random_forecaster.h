// A next-use forecaster with random weights, for tests of what uses one.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "predictor/core/next_use_forecaster.h"

namespace expertflow::testing {

inline NextUseModel RandomForecaster(const std::vector<int32_t>& experts, int32_t rank,
                                     int32_t gain_rank) {
  NextUseModel model;
  model.experts = experts;
  model.rank = rank;
  model.gain_rank = gain_rank;
  std::mt19937 random(1);
  // Small enough that forecasts stay between 0 and 1, where everything counts.
  const auto fill = [&](std::vector<float>* values, size_t count, float least, float most) {
    for (size_t i = 0; i < count; ++i) {
      values->push_back(least + (most - least) * static_cast<float>(random() % 100) / 100);
    }
  };
  const auto n = static_cast<size_t>(model.experts_total());
  const size_t targets = model.targets();
  fill(&model.bias, targets, 0.3F, 0.6F);
  fill(&model.state_in, kForecastFeatures * n * static_cast<size_t>(rank), -0.5F, 0.5F);
  fill(&model.state_out, static_cast<size_t>(rank) * targets, -0.2F, 0.2F);
  fill(&model.own, (kForecastOwnRates + 1) * targets, -0.05F, 0.05F);
  fill(&model.gain_in, n * static_cast<size_t>(gain_rank), -0.2F, 0.2F);
  fill(&model.gain_out, experts.size() * static_cast<size_t>(gain_rank) * targets, -0.2F, 0.2F);
  return model;
}

}  // namespace expertflow::testing

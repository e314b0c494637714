// A hybrid predictor that is fitted once for all tests of a program.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "predictor/hybrid_file.h"
#include "predictor/hybrid_fit.h"
#include "tests/unit/predictor/synthetic_features.h"

namespace expertflow::testing {

inline HybridFitOptions SmallFit(int32_t threads = 1) {
  HybridFitOptions options;
  options.width = 8;
  options.rank = 8;
  options.penalty_rows = 3;
  options.context_penalty_rows = 10;
  options.forest_rows = 40'000;
  options.trees = 6;
  options.depth = 5;
  options.threads = threads;
  return options;
}

inline HybridFile FitFile(const FeatureTrace& trace, int32_t threads = 1) {
  HybridFitReport report;
  auto model = FitHybrid(trace, SmallFit(threads), &report, {});
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  HybridFile file;
  file.model = std::move(model).value();
  file.identity = ModelIdentity(trace.shape());
  file.trained_tokens = trace.tokens();
  file.trained_on = {3, 5};
  return file;
}

inline const HybridFile& FittedFile() {
  static const HybridFile* const kFile = new HybridFile(FitFile(*MakeFeatures({.sequences = 80})));
  return *kFile;
}

inline std::shared_ptr<const HybridModel> FittedModel() {
  static const auto* const kModel =
      new std::shared_ptr<const HybridModel>(new HybridModel(FittedFile().model));
  return *kModel;
}

}  // namespace expertflow::testing

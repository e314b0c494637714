// The fitted hybrid predictor on text that it has not seen, of a model whose rules are known.
#include "predictor/hybrid_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "predictor/hybrid_eval.h"
#include "predictor/hybrid_tables.h"
#include "tests/unit/predictor/hybrid_testing.h"

namespace expertflow {
namespace {

using testing::FitFile;
using testing::FittedModel;
using ::testing::HasSubstr;
using testing::MakeFeatures;

constexpr StateKind kBoth[] = {StateKind::kRouter, StateKind::kExperts};

TEST(HybridFitTest, EachPartIsWorthSomething) {
  const auto unseen = MakeFeatures({.sequences = 30, .seed = 2});
  const HybridJudgement found = JudgeHybrid(FittedModel(), *unseen, {.threads = 2});
  EXPECT_EQ(found.tokens, unseen->tokens());
  for (const StateKind kind : kBoth) {
    for (int32_t d = 1; d <= 4; ++d) {
      const auto recall = [&](JudgedArm arm) { return found.MeanRecall(arm, kind, d); };
      EXPECT_EQ(recall(JudgedArm::kOracle), 1);
      // Two of eight by chance.
      EXPECT_NEAR(recall(JudgedArm::kPreviousToken), 0.25, 0.12);
      EXPECT_LT(recall(JudgedArm::kFrequency), 0.5);
      EXPECT_GT(recall(JudgedArm::kPreGate), d == 1 ? 0.55 : 0.1);
      EXPECT_GT(recall(JudgedArm::kProbe), recall(JudgedArm::kPreGate) + 0.05) << d;
      EXPECT_GT(recall(JudgedArm::kProbe), 0.8) << d;
      EXPECT_GT(recall(JudgedArm::kForest), recall(JudgedArm::kPreGate) + 0.03) << d;
      EXPECT_GT(recall(JudgedArm::kForestProbe), recall(JudgedArm::kProbe) - 0.02) << d;
      EXPECT_GE(found.MeanCoverage(JudgedArm::kForestProbe, kind, d),
                recall(JudgedArm::kForestProbe));
    }
    EXPECT_LT(found.CalibrationError(JudgedArm::kForestProbe, kind, 400), 0.08);
  }
}

TEST(HybridFitTest, ATraceAndASeedGiveTheSameFileOnAnyNumberOfThreads) {
  const auto trace = MakeFeatures({.sequences = 30});
  EXPECT_EQ(EncodeHybrid(FitFile(*trace, 1)), EncodeHybrid(FitFile(*trace, 3)));
}

TEST(HybridFitTest, TooLittleIsRefused) {
  HybridFitReport report;
  const auto few = FitHybrid(*MakeFeatures({.sequences = 3}), {}, &report, {});
  EXPECT_THAT(few.status().message(), HasSubstr("120 tokens"));
  const auto flat = FitHybrid(*MakeFeatures({.layers = 1}), {}, &report, {});
  EXPECT_THAT(flat.status().message(), HasSubstr("nothing lies ahead"));
}

TEST(HybridFitTest, TracesFollowEachOtherAndOthersAreRefused) {
  FeatureTrace trace;
  TraceShape shape = MakeFeatures({.sequences = 1})->shape();
  ASSERT_TRUE(trace.Begin(shape).ok());
  TraceShape other = shape;
  other.fingerprint[3] = 1;
  EXPECT_THAT(trace.Begin(other).message(), HasSubstr("same model"));
  other = shape;
  other.columns = 0;
  other.hidden = 0;
  EXPECT_THAT(FeatureTrace().Begin(other).message(), HasSubstr("--record-features"));
}

TEST(MarginHistogramTest, FindsTheLogisticCurve) {
  MarginHistogram histogram;
  for (int i = -300; i <= 300; ++i) {
    const auto margin = static_cast<float>(i) / 100;
    const double share = 1 / (1 + std::exp(-(2.0 * margin - 1)));
    for (int n = 0; n < 200; ++n) histogram.Add(margin, n < 200 * share);
  }
  const Logistic fit = histogram.FitLogistic();
  EXPECT_NEAR(fit.slope, 2, 0.05);
  EXPECT_NEAR(fit.offset, -1, 0.05);
  // Nothing to go by: finite all the same.
  EXPECT_EQ(MarginHistogram().FitLogistic().slope, 0);
}

}  // namespace
}  // namespace expertflow

// The dynamic stride where link, batch or prompts change: never much worse than the fixed stride
// that was best, and settled soon.
#include "sim/stride_phases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

namespace expertflow {
namespace {

class StridePhasesTest : public ::testing::TestWithParam<StridePhasesSetting> {};

TEST_P(StridePhasesTest, IsCloseToTheBestFixedOneOfEachPhaseAndSettles) {
  const StridePhases phases(GetParam());
  const auto dynamic = phases.RunDynamic();
  ASSERT_TRUE(dynamic.ok()) << dynamic.status().ToString();
  double best[StridePhases::kPhases] = {1, 1, 1};
  for (const int32_t fixed : StridePhases::FixedStrides()) {
    const auto result = phases.Run(std::make_unique<FixedStride>(fixed), {});
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    for (size_t phase = 0; phase < StridePhases::kPhases; ++phase) {
      best[phase] = std::min(best[phase], StallShare(*result, phase));
    }
  }
  for (size_t phase = 0; phase < StridePhases::kPhases; ++phase) {
    // Ten percent of the stall, or one of the time where there is hardly any.
    EXPECT_LE(StallShare(*dynamic, phase), std::max(best[phase] * 1.1, best[phase] + 0.01))
        << "phase " << phase;
    EXPECT_LE(LateMoves(*dynamic, phase), 4) << "phase " << phase;
  }
}

INSTANTIATE_TEST_SUITE_P(All, StridePhasesTest, ::testing::ValuesIn(StridePhases::Settings()),
                         [](const auto& info) {
                           std::string name = info.param.Description();
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

}  // namespace
}  // namespace expertflow

#include "launch/model_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/launch/launch_testing.h"

namespace expertflow {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const char kGolden[] = EXPERTFLOW_SOURCE_DIR "/tests/golden/checkpoints/qwen2_moe";
const char kTinyConfig[] = EXPERTFLOW_SOURCE_DIR "/models/tiny-moe/config.json";

Result<bool> InPlace(const std::vector<std::string>& words) {
  const Result<Options> options = LoadOptions(Command::kRun, words);
  EXPECT_TRUE(options.ok()) << options.status().ToString();
  return ComputesInPlace(*options);
}

TEST(ComputesInPlaceTest, HostUnlessAnArenaIsAskedFor) {
  EXPECT_TRUE(*InPlace({}));
  EXPECT_TRUE(*InPlace({"--device-memory", "host"}));
  EXPECT_FALSE(*InPlace({"--device-memory", "private"}));
  EXPECT_FALSE(*InPlace({"--expert-memory", "30%"}));
  EXPECT_FALSE(*InPlace({"--link", "4GB/s,10us"}));
}

TEST(ComputesInPlaceTest, ContradictionNamesBothOptions) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--expert-memory", "30%"}, {"--link", "4GB/s"}}) {
    std::vector<std::string> all = {"--device-memory", "host"};
    all.insert(all.end(), words.begin(), words.end());
    const Result<bool> in_place = InPlace(all);
    ASSERT_EQ(in_place.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(in_place.status().message(),
                AllOf(HasSubstr(words[0]), HasSubstr("--device-memory")));
  }
}

TEST(OpenModelTest, CheckpointIsDescribedFromItsHeaders) {
  const Result<ModelSource> model = OpenModel(kGolden);
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_TRUE(model->has_weights);
  EXPECT_TRUE(model->store_file.empty());
  EXPECT_EQ(model->sizes.expert_count(), 27);
  EXPECT_EQ(model->expert_dtypes, std::vector<DType>{DType::kBF16});
}

TEST(OpenModelTest, ConfigAloneWillDoForTheShapes) {
  const Result<ModelSource> model = OpenModelOrConfig(kTinyConfig);
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_EQ(model->sizes.expert_count(), 12 * 48);

  const ScratchFolder folder;
  const std::string config = folder.Write("config.json", model->config_json);
  const Result<ModelSource> alone = OpenModelOrConfig(config);
  ASSERT_TRUE(alone.ok()) << alone.status().ToString();
  EXPECT_FALSE(alone->has_weights);
  EXPECT_EQ(OpenModelOrConfig(folder.path()).value().sizes.expert_bytes, alone->sizes.expert_bytes);
  EXPECT_FALSE(OpenModel(folder.path()).ok());
}

// A plan from the config alone is the plan of the weights.
TEST(OpenModelTest, SizesFromTheConfigAreThoseOfTheCheckpoint) {
  const Result<ModelSource> weights = OpenModel(kGolden);
  const Result<ModelSource> shapes = OpenModelOrConfig(std::string(kGolden) + "/config.json");
  ASSERT_TRUE(weights.ok() && shapes.ok());
  EXPECT_FALSE(shapes->has_weights);
  EXPECT_EQ(shapes->sizes.expert_block_bytes(), weights->sizes.expert_block_bytes());
  EXPECT_EQ(shapes->sizes.expert_bytes, weights->sizes.expert_bytes);
}

TEST(OpenModelTest, MissingFolderIsNamed) {
  EXPECT_THAT(OpenModel("/nowhere/model").status().message(), HasSubstr("/nowhere/model"));
  EXPECT_THAT(OpenModel("").status().message(), HasSubstr("--model"));
}

TEST(PlanForTest, BudgetForLessThanOneExpertIsRefused) {
  const Result<ModelSource> model = OpenModel(kGolden);
  ASSERT_TRUE(model.ok());
  const Result<Options> options = LoadOptions(Command::kRun, {"--expert-memory", "1KB"});
  ASSERT_TRUE(options.ok());
  const Result<MemoryPlan> plan = PlanFor(*options, *model);
  ASSERT_EQ(plan.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(plan.status().message(), HasSubstr("expert-memory"));
}

}  // namespace
}  // namespace expertflow

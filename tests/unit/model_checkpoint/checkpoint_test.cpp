#include "model/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint_files.h"
#include "model/checkpoint/model_tensors.h"
#include "model/checkpoint/safetensors_writer.h"

namespace expertflow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ReadFile;
using testing::TemporaryFolder;

constexpr const char* kGolden = EXPERTFLOW_SOURCE_DIR "/tests/golden/checkpoints/";

void WriteTensors(const std::string& path, const std::vector<TensorDeclaration>& tensors) {
  auto writer = SafetensorsWriter::Create(path, tensors);
  ASSERT_TRUE(writer.ok()) << writer.status().ToString();
  for (const TensorDeclaration& tensor : tensors) {
    const auto bytes = TensorBytes(tensor.shape, ElementTypeBytes(tensor.type));
    ASSERT_TRUE(bytes.ok());
    ASSERT_TRUE(writer->Append(std::vector<uint8_t>(*bytes)).ok());
  }
  ASSERT_TRUE(writer->Finish().ok());
}

// One layer, one expert, one norm.
std::vector<TensorDeclaration> SmallTensors() {
  return {{"norm", ElementType::kF32, {4}},
          {"gate", ElementType::kBF16, {2, 4}},
          {"up", ElementType::kBF16, {2, 4}},
          {"down", ElementType::kBF16, {4, 2}}};
}

WeightPlan SmallPlan() {
  WeightPlan plan;
  plan.layers = 1;
  plan.experts_per_layer = 1;
  plan.dense = {{"norm", {4}}};
  plan.experts = {{.key = {LayerId(0), ExpertId(0)},
                   .gate = {"gate", {2, 4}},
                   .up = {"up", {2, 4}},
                   .down = {"down", {4, 2}}}};
  return plan;
}

// Validation of SmallPlan against a checkpoint of these tensors.
Status ValidateTensors(const std::vector<TensorDeclaration>& tensors) {
  const TemporaryFolder folder;
  WriteTensors(folder.File("model.safetensors"), tensors);
  const auto checkpoint = Checkpoint::Open(folder.path());
  if (!checkpoint.ok()) return checkpoint.status();
  return ModelTensors::Resolve(SmallPlan(), *checkpoint).status();
}

TEST(Checkpoint, OpensOneFile) {
  const auto checkpoint = Checkpoint::Open(std::string(kGolden) + "qwen2_moe");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  EXPECT_EQ(checkpoint->tensors().size(), 126u);
  const TensorInfo* gate = checkpoint->Find("model.layers.2.mlp.experts.8.gate_proj.weight");
  ASSERT_NE(gate, nullptr);
  EXPECT_EQ(gate->shape, (std::vector<int64_t>{26, 56}));
  EXPECT_EQ(gate->data.size(), 26u * 56u * 2u);
  EXPECT_EQ(checkpoint->Find("model.layers.3.mlp.gate.weight"), nullptr);
}

TEST(Checkpoint, OpensShardsThroughTheIndex) {
  const auto checkpoint = Checkpoint::Open(std::string(kGolden) + "qwen2_moe_gqa");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  const TensorInfo* head = checkpoint->Find("lm_head.weight");
  ASSERT_NE(head, nullptr);
  EXPECT_THAT(head->file->path(), HasSubstr("model-00003-of-00003.safetensors"));
  EXPECT_GT(checkpoint->file_bytes(), 420672u);
}

class IndexTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const auto& entry :
         std::filesystem::directory_iterator(std::string(kGolden) + "qwen2_moe_gqa")) {
      std::filesystem::copy(entry.path(), folder_.path());
    }
    index_ = ReadFile(folder_.File("model.safetensors.index.json"));
  }
  // Replaces one shard's name in the index where `tensor` is listed.
  void Redirect(const std::string& tensor, const std::string& file) {
    const size_t key = index_.find("\"" + tensor + "\"");
    ASSERT_NE(key, std::string::npos);
    const size_t begin = index_.find("\"model-", key);
    index_.replace(begin, index_.find('"', begin + 1) + 1 - begin, "\"" + file + "\"");
    folder_.Write("model.safetensors.index.json", index_);
  }
  std::string OpenError() {
    const auto checkpoint = Checkpoint::Open(folder_.path());
    EXPECT_FALSE(checkpoint.ok());
    return checkpoint.status().message();
  }

  TemporaryFolder folder_;
  std::string index_;
};

TEST_F(IndexTest, AMissingShardIsNamed) {
  std::filesystem::remove(folder_.File("model-00002-of-00003.safetensors"));
  EXPECT_THAT(OpenError(), AllOf(HasSubstr("index.json"), HasSubstr("model-00002-of-00003"),
                                 HasSubstr("tensor 'model.")));
}

TEST_F(IndexTest, FIELD_63_ATruncatedShardIsRefused) {
  const std::string path = folder_.File("model-00002-of-00003.safetensors");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_THAT(OpenError(), AllOf(HasSubstr("model-00002-of-00003"), HasSubstr("truncated")));
}

TEST_F(IndexTest, AFileOutsideTheFolderIsRefused) {
  Redirect("lm_head.weight", "../model-00003-of-00003.safetensors");
  EXPECT_THAT(OpenError(), AllOf(HasSubstr("lm_head.weight"), HasSubstr("../model-00003")));
}

TEST_F(IndexTest, FIELD_67_ATensorThatItsShardLacksIsNamed) {
  Redirect("lm_head.weight", "model-00001-of-00003.safetensors");
  EXPECT_THAT(OpenError(), AllOf(HasSubstr("'lm_head.weight'"), HasSubstr("model-00001-of-00003")));
}

TEST_F(IndexTest, ATensorInTwoShardsIsRefused) {
  WriteTensors(folder_.File("model-00004.safetensors"),
               {{"lm_head.weight", ElementType::kBF16, {1}}, {"x", ElementType::kF32, {1}}});
  index_.insert(index_.find("\"lm_head.weight\""), "\"x\": \"model-00004.safetensors\",");
  folder_.Write("model.safetensors.index.json", index_);
  EXPECT_THAT(OpenError(), HasSubstr("tensor 'lm_head.weight' is in two files"));
}

TEST_F(IndexTest, BadIndexesAreRefused) {
  for (const char* text :
       {"", "[]", "5", "{}", R"({"weight_map": []})", R"({"weight_map": {"a": 1}})",
        R"({"weight_map": {"a": {"b": "c"}}})", R"({"weight_map": {"a": "f", "a": "g"}})",
        R"({"weight_map": {}, "weight_map": {}})", R"({"weight_map": {"a": ""}})",
        R"({"weight_map": {"a": ".."}})", R"({"weight_map": {"a": "x\u0000"}})",
        R"({"weight_map": {"a": "/etc/passwd"}})"}) {
    SCOPED_TRACE(text);
    const auto map = ParseCheckpointIndex(text, "i.json");
    EXPECT_EQ(map.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(map.status().message(), HasSubstr("i.json"));
  }
  EXPECT_FALSE(ParseCheckpointIndex(std::string(50'000'000, '['), "i.json").ok());
  const auto map = ParseCheckpointIndex(
      R"({"metadata": {"total_size": 1, "weight_map": {"x": 5}, "l": [{}]}, "weight_map": {"b": "f", "a": "g"}})",
      "i.json");
  ASSERT_TRUE(map.ok()) << map.status().ToString();
  EXPECT_EQ(*map, (WeightMap{{"a", "g"}, {"b", "f"}}));
}

TEST(Checkpoint, AFolderWithoutTensorsIsNamed) {
  const TemporaryFolder folder;
  EXPECT_THAT(Checkpoint::Open(folder.path()).status().message(), HasSubstr(folder.path()));
  EXPECT_FALSE(Checkpoint::Open(folder.File("none")).ok());
}

TEST(Validate, AcceptsWhatIsPlanned) {
  EXPECT_TRUE(ValidateTensors(SmallTensors()).ok());
}

TEST(Validate, FIELD_67_AMissingTensorIsNamed) {
  auto tensors = SmallTensors();
  tensors.erase(tensors.begin() + 2);
  EXPECT_THAT(ValidateTensors(tensors).message(),
              HasSubstr("tensor 'up' of shape [2, 4] is missing"));
}

TEST(Validate, FIELD_5_AMisshapenTensorIsNamed) {
  auto tensors = SmallTensors();
  tensors[3].shape = {2, 4};
  EXPECT_THAT(ValidateTensors(tensors).message(),
              AllOf(HasSubstr("'down'"), HasSubstr("expected shape [4, 2], found [2, 4]")));
}

TEST(Validate, FIELD_5_AnUnsupportedTypeIsNamed) {
  auto tensors = SmallTensors();
  tensors[0].type = ElementType::kI32;
  EXPECT_THAT(ValidateTensors(tensors).message(), AllOf(HasSubstr("'norm'"), HasSubstr("'I32'")));
}

TEST(Validate, ExpertsOfTwoTypesAreRefused) {
  auto tensors = SmallTensors();
  tensors[2].type = ElementType::kF16;
  EXPECT_THAT(ValidateTensors(tensors).message(), AllOf(HasSubstr("'up'"), HasSubstr("one type")));
}

TEST(Validate, FIELD_66_ATensorThatTheConfigDoesNotDescribeIsNamed) {
  auto tensors = SmallTensors();
  tensors.push_back({"layers.1.norm", ElementType::kF32, {4}});
  EXPECT_THAT(ValidateTensors(tensors).message(), HasSubstr("'layers.1.norm'"));
}

TEST(Validate, IgnoredPrefixesAndRepeatedPlans) {
  const TemporaryFolder folder;
  auto tensors = SmallTensors();
  tensors.push_back({"mtp.x", ElementType::kI64, {4}});
  WriteTensors(folder.File("model.safetensors"), tensors);
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint.ok());
  WeightPlan plan = SmallPlan();
  EXPECT_FALSE(ModelTensors::Resolve(plan, *checkpoint).ok());
  plan.ignored_prefixes = {"rotary", "mtp."};
  EXPECT_TRUE(ModelTensors::Resolve(plan, *checkpoint).ok());
  plan.dense.push_back(plan.dense.front());
  EXPECT_THAT(ModelTensors::Resolve(plan, *checkpoint).status().message(),
              HasSubstr("'norm' is planned twice"));
}

}  // namespace
}  // namespace expertflow

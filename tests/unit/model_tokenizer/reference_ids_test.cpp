// Ids against vectors that the reference library produced.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace expertflow {
namespace {

using nlohmann::json;

const std::string kSource = EXPERTFLOW_SOURCE_DIR;

std::vector<json> ReadLines(const std::string& path) {
  std::ifstream file(path);
  std::vector<json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
  return lines;
}

std::string SharedFolder(const std::string& name) {
  return kSource + "/../shared/tokenizers/" + name;
}

class ReferenceIds : public testing::TestWithParam<const char*> {};

TEST_P(ReferenceIds, FIELD_68_EveryVectorOfARealTokenizer) {
  const std::string folder = SharedFolder(GetParam());
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
  const auto tokenizer = Tokenizer::Load(folder + "/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const auto vectors = ReadLines(folder + "/vectors.jsonl");
  ASSERT_FALSE(vectors.empty());
  for (const json& vector : vectors) {
    const auto text = vector["text"].get<std::string>();
    const auto expected = vector["ids"].get<std::vector<int32_t>>();
    const auto ids = (*tokenizer)->Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status().message();
    EXPECT_EQ(*ids, expected) << vector["src"] << " " << vector["text"];
    EXPECT_EQ((*tokenizer)->Decode(expected, false) == text,
              vector["decoded_equals_text"].get<bool>())
        << vector["src"] << " " << vector["text"];
  }
}

INSTANTIATE_TEST_SUITE_P(Shared, ReferenceIds,
                         testing::Values("qwen1_5", "qwen3", "gpt2", "deepseek_v3", "olmoe",
                                         "granite31moe", "mistral_v0.1"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

TEST(ReferenceIdsTest, FIELD_69_GoldenCases) {
  const auto tokenizer =
      Tokenizer::Load(kSource + "/tests/golden/checkpoints/qwen2_moe/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  std::ifstream file(kSource + "/tests/golden/tokenizer_cases.json");
  const json golden = json::parse(file);
  ASSERT_FALSE(golden["cases"].empty());
  for (const json& entry : golden["cases"]) {
    const auto ids = (*tokenizer)->Encode(entry["text"].get<std::string>());
    ASSERT_TRUE(ids.ok()) << ids.status().message();
    EXPECT_EQ(*ids, entry["ids"].get<std::vector<int32_t>>()) << entry["text"];
    EXPECT_EQ((*tokenizer)->Decode(*ids, false), entry["decoded"].get<std::string>());
    EXPECT_EQ((*tokenizer)->Decode(*ids, true), entry["decoded_skip_special"].get<std::string>());
  }
}

TEST(ReferenceIdsTest, BundledModelPrompts) {
  const auto tokenizer = Tokenizer::Load(kSource + "/models/tiny-moe/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ((*tokenizer)->vocab_size(), 4096);
  EXPECT_EQ((*tokenizer)->TokenToId("<|endoftext|>"), 4093);
  EXPECT_TRUE((*tokenizer)->IsSpecial(4095));
}

}  // namespace
}  // namespace expertflow

// Ids and texts of the reference library for the bundled tokenizer with other pipelines: patterns
// of other models, every split behaviour, flags of added tokens
// (tests/golden/tokenizer_variants.jsonl).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace expertflow {
namespace {

using nlohmann::json;

constexpr char kTokenizer[] = EXPERTFLOW_SOURCE_DIR "/models/tiny-moe/tokenizer.json";
constexpr char kVectors[] = EXPERTFLOW_SOURCE_DIR "/tests/golden/tokenizer_vectors.jsonl";
constexpr char kVariants[] = EXPERTFLOW_SOURCE_DIR "/tests/golden/tokenizer_variants.jsonl";

void ExpectCase(const Tokenizer& tokenizer, const json& expected) {
  SCOPED_TRACE(expected["text"].dump());
  const auto ids = tokenizer.Encode(expected["text"].get<std::string>());
  ASSERT_TRUE(ids.ok()) << ids.status().ToString();
  EXPECT_EQ(*ids, expected["ids"].get<std::vector<int32_t>>());
  const auto want = expected["ids"].get<std::vector<int32_t>>();
  if (expected.contains("decoded")) {
    EXPECT_EQ(tokenizer.Decode(want, false), expected["decoded"]);
  }
  if (expected.contains("decoded_skip_special")) {
    EXPECT_EQ(tokenizer.Decode(want, true), expected["decoded_skip_special"]);
  }
}

TEST(ReferenceVariants, FIELD_68_VectorsOfTheBundledTokenizer) {
  const auto tokenizer = Tokenizer::Load(kTokenizer);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  std::ifstream file(kVectors);
  std::string line;
  ASSERT_TRUE(std::getline(file, line)) << kVectors;  // what produced the file
  int cases = 0;
  for (; std::getline(file, line); ++cases) ExpectCase(**tokenizer, json::parse(line));
  EXPECT_GT(cases, 0);
}

TEST(ReferenceVariants, FIELD_69_PatternsComeFromTheFile) {
  std::ifstream base_file(kTokenizer);
  const json base = json::parse(base_file);
  std::ifstream file(kVariants);
  std::string line;
  ASSERT_TRUE(std::getline(file, line)) << kVariants;
  int variants = 0;
  for (; std::getline(file, line); ++variants) {
    const json variant = json::parse(line);
    SCOPED_TRACE(variant["name"].dump());
    json patched = base;
    patched.merge_patch(variant["patch"]);
    const auto tokenizer = Tokenizer::Parse(patched.dump(), "variant");
    if (variant["name"] == "dot matches newline") {  // (?m) is refused by name
      EXPECT_FALSE(tokenizer.ok());
      continue;
    }
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
    for (const json& expected : variant["cases"]) ExpectCase(**tokenizer, expected);
  }
  EXPECT_GT(variants, 0);
}

}  // namespace
}  // namespace expertflow

// Which tokens a model puts around a prompt: tokenizer_config.json wins over tokenizer.json.
#include "coordinator/model_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace expertflow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ModelTokenizerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = (std::filesystem::temp_directory_path() / "tokenizer-XXXXXX").string();
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    std::filesystem::copy(EXPERTFLOW_SOURCE_DIR "/tests/golden/checkpoints/mixtral/tokenizer.json",
                          folder_ + "/tokenizer.json");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Ids of the prompt "a", whose own id is 64.
  std::vector<int32_t> Ids(const std::string& config) {
    std::ofstream(folder_ + "/tokenizer_config.json") << config;
    const auto tokenizer = LoadModelTokenizer(folder_, "");
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
    return tokenizer.ok() ? *(*tokenizer)->EncodePrompt("a") : std::vector<int32_t>();
  }
  std::string Error(const std::string& config) {
    std::ofstream(folder_ + "/tokenizer_config.json") << config;
    return LoadModelTokenizer(folder_, "").status().message();
  }
  std::string folder_;
};

TEST_F(ModelTokenizerTest, TheConfigSaysWhatStandsAroundAPrompt) {
  const auto without = LoadModelTokenizer(folder_, "");
  ASSERT_TRUE(without.ok());
  EXPECT_THAT(*(*without)->EncodePrompt("a"), ElementsAre(64));
  EXPECT_THAT(Ids("{}"), ElementsAre(64));
  EXPECT_THAT(Ids(R"({"add_bos_token": true, "bos_token": "<|endoftext|>"})"),
              ElementsAre(296, 64));
  EXPECT_THAT(Ids(R"({"add_bos_token": true, "add_eos_token": true,
                      "bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>"})"),
              ElementsAre(297, 64, 298));
  EXPECT_THAT(Ids(R"({"add_bos_token": null, "bos_token": "<|endoftext|>"})"), ElementsAre(64));
  // Encode() adds nothing, and neither does a file that was named.
  const auto named = LoadModelTokenizer(folder_, folder_ + "/tokenizer.json");
  EXPECT_THAT(*(*named)->EncodePrompt("a"), ElementsAre(64));
}

TEST_F(ModelTokenizerTest, FalseTakesWhatThePostProcessorAdds) {
  std::ifstream file(folder_ + "/tokenizer.json");
  std::string json((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t begin = json.find("\"post_processor\"");
  ASSERT_NE(begin, std::string::npos);
  const size_t end = json.find('}', begin);
  json.replace(begin, end + 1 - begin,
               R"("post_processor": {"type": "TemplateProcessing",
                  "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
                             {"Sequence": {"id": "A", "type_id": 0}}],
                  "pair": [], "special_tokens": {"<|im_start|>":
                  {"id": "<|im_start|>", "ids": [297], "tokens": ["<|im_start|>"]}}})");
  std::ofstream(folder_ + "/tokenizer.json") << json;
  EXPECT_THAT(Ids("{}"), ElementsAre(297, 64));
  EXPECT_THAT(Ids(R"({"add_bos_token": false})"), ElementsAre(64));
  EXPECT_THAT(Ids(R"({"add_bos_token": true, "bos_token": "<|im_start|>"})"), ElementsAre(297, 64));
}

TEST_F(ModelTokenizerTest, BadConfigsAreNamed) {
  EXPECT_THAT(Error("[]"), HasSubstr("tokenizer_config.json: expected a JSON object"));
  EXPECT_THAT(Error(R"({"add_bos_token": true})"),
              HasSubstr("add_bos_token: true, but bos_token is no token"));
  EXPECT_THAT(Error(R"({"add_eos_token": true, "eos_token": "nothing"})"),
              HasSubstr("'nothing', which every prompt should have, is no token"));
}

}  // namespace
}  // namespace expertflow

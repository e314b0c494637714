// Quantised checkpoints through the whole set-up: inspect, run, pack, and run from the packed file
// give what the same values as float32 give.
#include "tests/golden/gguf_models.h"
#include "tests/golden/quantised_checkpoint.h"
#include "tests/process/folder_test.h"

namespace expertflow::testing {
namespace {

class QuantisedRunTest : public FolderTest {
 protected:
  std::string Run(const std::string& model, const std::vector<std::string>& extra) {
    return Output({"run", "--model", model, "--tokenizer", kTokenizer, "--prompt", "The river",
                   "--max-tokens", "24"},
                  extra);
  }

  void ExpectSameText(const char* method, const char* dtype) {
    const std::string quantised = folder_ + "/quantised";
    const std::string packed = folder_ + "/packed";
    const auto inspected = nlohmann::json::parse(Output({"inspect", quantised, "--json", "-"}));
    EXPECT_EQ(inspected["quantisation"], method);
    EXPECT_EQ(inspected["expert_dtype"], dtype);
    const std::string expected = Run(folder_ + "/plain", {"--workers", "1"});
    EXPECT_GT(expected.size(), 24u);
    EXPECT_EQ(Run(quantised, {"--workers", "2", "--expert-memory", "30%"}), expected);
    Output({"pack", quantised, "-o", packed});
    Output({"inspect", packed, "--verify"});
    EXPECT_EQ(Run(packed, {"--workers", "2", "--expert-memory", "30%"}), expected);
  }

  const std::string kSource = EXPERTFLOW_SOURCE_DIR "/tests/golden/checkpoints/";
  const std::string kTokenizer = kSource + "mixtral/tokenizer.json";
};

TEST_F(QuantisedRunTest, Gptq) {
  WriteQuantisedPair(
      kSource + "qwen2_moe_gqa", folder_,
      {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 8}, {"desc_act", true}},
      [](const MatrixToQuantise& matrix) { return QuantiseIntegers(matrix, {.act_order = true}); });
  ExpectSameText("gptq", "F32");
}

// Experts stay in four bits, and a config alone gives the same plan.
TEST_F(QuantisedRunTest, GptqInWholeGroups) {
  WriteQuantisedPair(kSource + "mixtral", folder_,
                     {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}},
                     [](const MatrixToQuantise& matrix) {
                       return QuantiseIntegers(matrix, {.group_size = 32, .symmetric = true});
                     });
  ExpectSameText("gptq", "INT4");
  std::filesystem::create_directory(folder_ + "/config");
  std::filesystem::copy(folder_ + "/quantised/config.json", folder_ + "/config/config.json");
  const auto planned =
      nlohmann::json::parse(Output({"inspect", folder_ + "/config", "--json", "-"}));
  const auto found =
      nlohmann::json::parse(Output({"inspect", folder_ + "/quantised", "--json", "-"}));
  for (const char* key : {"expert_dtype", "expert_block_bytes", "expert_bytes"}) {
    EXPECT_EQ(planned[key], found[key]) << key;
  }
  EXPECT_NEAR(planned["dense_bytes"].get<double>() / found["dense_bytes"].get<double>(), 1, 0.02);
  EXPECT_EQ(found["expert_block_bytes"], 3 * (64 * 32 / 2 + 64 * 32 / 32 * 4));
}

TEST_F(QuantisedRunTest, Fp8) {
  WriteQuantisedPair(
      kSource + "deepseek_v3", folder_,
      {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}},
      [](const MatrixToQuantise& matrix) { return QuantiseFp8(matrix, 128, 128, "_scale_inv"); });
  ExpectSameText("fp8", "F32, F8_E4M3");
}

// With the file's own tokenizer.
TEST_F(QuantisedRunTest, Gguf) {
  GgufPair pair = QwenAsGguf(kSource + "qwen2_moe_gqa", "qwen2moe", GgufQ8_0());
  const std::string tokenizer = kSource + "qwen2_moe_gqa/tokenizer.json";
  WriteGgufTokenizer(ReadAll(tokenizer), "qwen2", &pair.gguf);
  const std::string file = folder_ + "/model.gguf";
  std::ofstream(file, std::ios::binary) << pair.gguf.Content();
  WriteTestCheckpoint(folder_ + "/plain", pair.plain, pair.config);
  std::filesystem::copy(tokenizer, folder_ + "/plain/tokenizer.json");
  const auto inspected = nlohmann::json::parse(Output({"inspect", file, "--json", "-"}));
  EXPECT_EQ(inspected["source"], "GGUF");
  EXPECT_EQ(inspected["quantisation"], "gguf");
  EXPECT_EQ(inspected["tokenizer_vocab"], 299);
  const auto run = [&](const std::string& model, const std::string& workers) {
    return Output({"run", "--model", model, "--prompt", "The river", "--max-tokens", "24",
                   "--workers", workers, "--expert-memory", "30%"});
  };
  const std::string expected = run(folder_ + "/plain", "1");
  EXPECT_GT(expected.size(), 24u);
  EXPECT_EQ(run(file, "2"), expected);
  Output({"pack", file, "-o", folder_ + "/packed"});
  EXPECT_EQ(run(folder_ + "/packed", "2"), expected);
}

}  // namespace
}  // namespace expertflow::testing

// `perplexity` against the logits that transformers computed, and its windows against a plain
// forward pass in double precision.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/golden/naive_decoder.h"
#include "tests/golden/quantised_checkpoint.h"
#include "tests/process/folder_test.h"

namespace expertflow::testing {
namespace {

std::string Golden(const std::string& name) {
  return EXPERTFLOW_SOURCE_DIR "/tests/golden/checkpoints/" + name;
}

// Of `token` after these logits.
template <typename Row>
double NegativeLogprob(const Row& logits, int32_t token) {
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit);
  return std::log(sum) - logits[static_cast<size_t>(token)];
}

class PerplexityTest : public FolderTest {
 protected:
  nlohmann::json Measure(const std::string& model, const std::string& text,
                         const std::vector<std::string>& extra) {
    const std::string file = folder_ + "/text";
    std::ofstream(file) << text;
    return nlohmann::json::parse(
        Output({"perplexity", "--model", model, "--text", file, "--json", "-"}, extra));
  }

  // Prompt p2 of a reference: its text, and what its logits say.
  void ExpectReference(const std::string& model, const std::vector<std::string>& extra) {
    const auto json = nlohmann::json::parse(ReadAll(model + "/reference.json"));
    const auto file = SafetensorsFile::Open(model + "/reference.safetensors");
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    const TensorInfo& logits = *file->Find("p2.logits");
    const TensorInfo& ids = *file->Find("p2.input_ids");
    const auto n = static_cast<size_t>(logits.shape[0]),
               vocab = static_cast<size_t>(logits.shape[1]);
    std::vector<float> values(n * vocab);
    std::vector<int32_t> tokens(n);
    std::memcpy(values.data(), logits.data.data(), logits.bytes);
    std::memcpy(tokens.data(), ids.data.data(), ids.bytes);
    double sum = 0;
    for (size_t t = 0; t + 1 < n; ++t) {
      sum += NegativeLogprob(
          std::vector<double>(values.begin() + static_cast<ptrdiff_t>(t * vocab),
                              values.begin() + static_cast<ptrdiff_t>((t + 1) * vocab)),
          tokens[t + 1]);
    }
    const double expected = std::exp(sum / static_cast<double>(n - 1));
    const auto found = Measure(model, json["prompts"][2]["text"], extra);
    EXPECT_EQ(found["tokens"], n);
    EXPECT_EQ(found["tokens_scored"], n - 1);
    EXPECT_EQ(found["windows"], 1);
    const double error = found["perplexity"].get<double>() / expected - 1;
    EXPECT_LT(std::fabs(error), 1e-3);
    std::printf("perplexity %.8g, the reference's logits give %.8g: %.2g apart\n",
                found["perplexity"].get<double>(), expected, error);
  }
};

TEST_F(PerplexityTest, FIELD_70_EqualsTheReferenceOfEachModel) {
  ExpectReference(kModel, {"--workers", "2", "--expert-memory", "30%"});
  for (const char* family : {"qwen2_moe", "qwen3_moe", "mixtral", "olmoe", "glm4_moe", "gpt_oss",
                             "granite_moe", "deepseek_v2_lite", "deepseek_v3"}) {
    SCOPED_TRACE(family);
    ExpectReference(Golden(family), {});
  }
}

// The recipe of transformers' documentation, written out: windows, of which the part is scored that
// no window before has scored.
TEST_F(PerplexityTest, WindowsAreThoseOfTheRecipe) {
  const std::string model = Golden("qwen2_moe_gqa");
  const auto config = nlohmann::json::parse(ReadAll(model + "/config.json"));
  PlainTensors tensors;
  for (const auto& [name, tensor] : ReadTestTensors(model)) {
    tensors[name] = {tensor.shape, FloatsOf(tensor)};
  }
  const NaiveDecoder naive(config, tensors);
  const auto reference = nlohmann::json::parse(ReadAll(model + "/reference.json"));
  const auto file = SafetensorsFile::Open(model + "/reference.safetensors");
  ASSERT_TRUE(file.ok());
  std::vector<int32_t> tokens(48);
  std::memcpy(tokens.data(), file->Find("p2.input_ids")->data.data(), 48 * sizeof(int32_t));
  const struct { size_t length, stride; } cases[] = {{16, 8}, {16, 16}, {20, 7}};
  for (const auto [length, stride] : cases) {
    SCOPED_TRACE(length);
    double sum = 0;
    size_t scored = 0, previous_end = 0;
    for (size_t begin = 0; begin < tokens.size(); begin += stride) {
      const size_t end = std::min(begin + length, tokens.size());
      const std::vector<int32_t> input(tokens.begin() + static_cast<ptrdiff_t>(begin),
                                       tokens.begin() + static_cast<ptrdiff_t>(end));
      const auto logits = naive.Forward(input);
      for (size_t t = 1; t < input.size(); ++t) {
        if (begin + t < previous_end) continue;
        sum += NegativeLogprob(logits[t - 1], input[t]);
        ++scored;
      }
      previous_end = end;
      if (end == tokens.size()) break;
    }
    const auto found =
        Measure(model, reference["prompts"][2]["text"],
                {"--window", std::to_string(length), "--window-step", std::to_string(stride)});
    EXPECT_EQ(found["tokens_scored"], scored);
    EXPECT_NEAR(found["nll"].get<double>(), sum / static_cast<double>(scored), 1e-4);
  }
}

// pack --quant reports what it did, with the perplexities that `perplexity` finds; the model stays
// nearly as good, and its text does not depend on how it is run.
TEST_F(PerplexityTest, QuantisedStoresAreNearlyAsGood) {
  const auto reference = nlohmann::json::parse(ReadAll(kModel + "/reference.json"));
  std::string text;
  for (const auto& prompt : reference["prompts"]) {
    text += prompt["text"].get<std::string>() + prompt["greedy_text"].get<std::string>() + "\n";
  }
  const double before = Measure(kModel, text, {})["nll"];
  const struct {
    const char *quant, *dtype;
    double bytes, nll;  // share of the bf16 experts; nats lost at most
  } cases[] = {{"int8", "INT8", 0.58, 0.002},
               {"int4", "INT4", 0.34, 0.03},
               {"uint4", "UINT4", 0.35, 0.03},
               {"mxfp4", "MXFP4", 0.28, 0.06},
               {"fp8", "F8_E4M3", 0.58, 0.005}};
  for (const auto& test : cases) {
    SCOPED_TRACE(test.quant);
    const std::string packed = folder_ + "/" + test.quant;
    Program pack({"pack", kModel, "-o", packed, "--quant", test.quant, "--text", folder_ + "/text",
                  "--json", "-"});
    ASSERT_EQ(pack.Wait(), 0) << pack.err();
    const auto json = nlohmann::json::parse(pack.out());
    const auto& report = json["quantisation"];
    const auto& quality = json["quality"];
    EXPECT_EQ(report["expert_dtype"], test.dtype);
    EXPECT_EQ(report["tensors"].size(), 12u * 48 * 3);
    EXPECT_LT(report["expert_bytes"].get<double>(),
              test.bytes * report["expert_bytes_kept"].get<double>());
    const auto after = Measure(packed, text, {"--workers", "2", "--expert-memory", "30%"});
    EXPECT_EQ(after["nll"], Measure(packed, text, {"--workers", "1"})["nll"]);
    EXPECT_LT(after["nll"].get<double>() - before, test.nll);
    EXPECT_EQ(quality["nll_before"], before);
    EXPECT_EQ(quality["nll_after"], after["nll"]);
    EXPECT_EQ(quality["tokens_scored"], after["tokens_scored"]);
    const auto divergence = quality["kl_divergence_mean"].get<double>();
    EXPECT_GT(divergence, 0);
    EXPECT_LT(divergence, test.nll);
    EXPECT_GT(quality["kl_divergence_max"].get<double>(), divergence);
    EXPECT_FALSE(std::filesystem::exists(packed + "/model.before.efstore"));
    std::printf("%s: nll %.5f, %.5f before, KL %.3g nats\n", test.quant, after["nll"].get<double>(),
                before, divergence);
  }
}

// A smaller KV cache costs next to nothing, whoever computes, and holds more tokens.
TEST_F(PerplexityTest, SmallerKvCachesAreNearlyAsGood) {
  const auto reference = nlohmann::json::parse(ReadAll(kModel + "/reference.json"));
  std::string text;
  for (const auto& prompt : reference["prompts"]) {
    text += prompt["text"].get<std::string>() + prompt["greedy_text"].get<std::string>() + "\n";
  }
  const double before = Measure(kModel, text, {})["nll"];
  Program whole({"inspect", kModel, "--json", "-"});
  ASSERT_EQ(whole.Wait(), 0) << whole.err();
  const auto tokens = nlohmann::json::parse(whole.out())["kv_bytes_per_token"].get<double>();
  const struct {
    const char *option, *dtype;
    double bytes, nll;  // share of the bytes; nats lost or won at most
  } cases[] = {{"bf16", "BF16", 0.5, 1e-3}, {"int8", "INT8", 0.282, 3e-3}};
  for (const auto& test : cases) {
    SCOPED_TRACE(test.option);
    Program inspect({"inspect", kModel, "--kv-dtype", test.option, "--json", "-"});
    ASSERT_EQ(inspect.Wait(), 0) << inspect.err();
    const auto plan = nlohmann::json::parse(inspect.out());
    EXPECT_EQ(plan["memory_plan"]["kv_dtype"], test.dtype);
    EXPECT_LE(plan["kv_bytes_per_token"].get<double>(), test.bytes * tokens);
    const auto after = Measure(
        kModel, text, {"--kv-dtype", test.option, "--workers", "2", "--expert-memory", "30%"});
    EXPECT_EQ(after["nll"], Measure(kModel, text, {"--kv-dtype", test.option})["nll"]);
    EXPECT_NE(after["nll"].get<double>(), before);
    EXPECT_NEAR(after["nll"].get<double>(), before, test.nll);
    std::printf("KV cache %s: nll %.6f, %.6f before\n", test.dtype, after["nll"].get<double>(),
                before);
  }
}

// Activations as integers cost little, and the same whoever computes with whatever instructions.
TEST_F(PerplexityTest, IntegerProductsAreNearlyAsGood) {
  const auto reference = nlohmann::json::parse(ReadAll(kModel + "/reference.json"));
  std::string text;
  for (const auto& prompt : reference["prompts"]) {
    text += prompt["text"].get<std::string>() + prompt["greedy_text"].get<std::string>() + "\n";
  }
  text.resize(std::min<size_t>(text.size(), 600));
  for (const std::string quant : {"int8", "int4", "uint4", "mxfp4"}) {
    SCOPED_TRACE(quant);
    const std::string packed = folder_ + "/" + quant;
    Program pack({"pack", kModel, "-o", packed, "--quant", quant});
    ASSERT_EQ(pack.Wait(), 0) << pack.err();
    const double before = Measure(packed, text, {})["nll"];
    const auto after = Measure(
        packed, text,
        {"--activations", "int8", "--workers", "2", "--expert-memory", "30%", "--threads", "1"});
    for (const std::string kernels : {"scalar", "auto"}) {
      if (kernels == "scalar" && quant != "int4") continue;  // slow
      EXPECT_EQ(
          Measure(packed, text,
                  {"--activations", "int8", "--kernels", kernels, "--prefill-tokens", "7"})["nll"],
          after["nll"]);
    }
    EXPECT_NE(after["nll"].get<double>(), before);
    EXPECT_NEAR(after["nll"].get<double>(), before, 5e-3);
    std::printf("%s: nll %.6f, %.6f before\n", quant.c_str(), after["nll"].get<double>(), before);
  }
}

TEST_F(PerplexityTest, BadInputIsNamed) {
  const auto refused = [&](const std::vector<std::string>& extra) {
    std::vector<std::string> arguments = {"perplexity", "--model", kModel};
    arguments.insert(arguments.end(), extra.begin(), extra.end());
    Program program(arguments);
    EXPECT_EQ(program.Wait(), 2);
    return program.err();
  };
  const std::string one = folder_ + "/one", long_text = folder_ + "/long";
  std::ofstream(one) << "a";
  std::ofstream(long_text) << "The river was wide.";
  EXPECT_NE(refused({}).find("--text"), std::string::npos);
  Program pack({"pack", kModel, "-o", folder_ + "/packed", "--text", folder_ + "/none"});
  EXPECT_EQ(pack.Wait(), 2);
  EXPECT_NE(pack.err().find("none"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/packed"));
  EXPECT_NE(refused({"--text", folder_ + "/none"}).find("none"), std::string::npos);
  EXPECT_NE(refused({"--text", one}).find("at least 2"), std::string::npos);
  EXPECT_NE(refused({"--text", long_text, "--window", "4096"}).find("context"), std::string::npos);
  EXPECT_NE(
      refused({"--text", long_text, "--window", "8", "--window-step", "9"}).find("--window-step"),
      std::string::npos);
}

}  // namespace
}  // namespace expertflow::testing

// Settings of a config.json, turned one by one on the reference checkpoints: the engine against the
// plain forward pass, and each setting must matter.
#include <cmath>
#include <map>

#include "tests/golden/golden_model.h"
#include "tests/golden/naive_decoder.h"

namespace expertflow::testing {
namespace {

constexpr double kTolerance = 5e-4;  // on logits of about 20
constexpr size_t kTokens = 40;       // more than a window

struct Switch {
  const char* checkpoint;
  const char* changes;  // merged into config.json
};

void PrintTo(const Switch& change, std::ostream* out) {
  *out << change.checkpoint << " " << change.changes;
}

PlainTensors ReadTensors(const std::string& folder) {
  PlainTensors tensors;
  const auto checkpoint = Checkpoint::Open(folder);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  for (const TensorInfo* info : checkpoint->tensors()) {
    PlainTensor tensor{info->shape, {}};
    const size_t width = ElementTypeBytes(info->type);
    for (size_t at = 0; at < info->bytes; at += width) {
      uint32_t bits = 0;
      std::memcpy(&bits, info->data.data() + at, width);
      if (width == 2) bits <<= 16;  // bfloat16
      float value = 0;
      std::memcpy(&value, &bits, sizeof(value));
      tensor.values.push_back(value);
    }
    tensors.emplace(info->name, std::move(tensor));
  }
  return tensors;
}

std::vector<std::vector<float>> EngineLogits(const GoldenModel& model,
                                             const std::vector<int32_t>& ids) {
  GoldenEngine golden(model, {.prefill_tokens = 20});
  StartSequence start;
  start.sequence = {1};
  start.tokens = ids;
  start.prompt_tokens = static_cast<uint32_t>(ids.size());
  start.max_new_tokens = 1;
  start.capture_logits = true;
  EXPECT_TRUE(golden.engine().Start(start).ok());
  std::vector<std::vector<float>> logits(ids.size());
  for (const CapturedPosition& captured : golden.RunToEnd().captured) {
    logits.at(captured.position) = captured.logits;
  }
  return logits;
}

// The largest difference of two logits of one position.
template <typename A, typename B>
double Difference(const A& a, const B& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t t = 0; t < a.size(); ++t) {
    EXPECT_EQ(a[t].size(), b[t].size());
    for (size_t i = 0; i < a[t].size() && i < b[t].size(); ++i) {
      const double difference = std::fabs(static_cast<double>(a[t][i]) - b[t][i]);
      largest = std::isnan(difference) ? 1e9 : std::max(largest, difference);
    }
  }
  return largest;
}

class SwitchTest : public ::testing::TestWithParam<Switch> {};

TEST_P(SwitchTest, IsHonoured) {
  const std::string folder =
      EXPERTFLOW_SOURCE_DIR "/tests/golden/checkpoints/" + std::string(GetParam().checkpoint);
  const auto text = ReadFileToString(folder + "/config.json", 1 << 20);
  ASSERT_TRUE(text.ok());
  const auto original = nlohmann::json::parse(*text);
  auto changed = original;
  changed.merge_patch(nlohmann::json::parse(GetParam().changes));
  const PlainTensors tensors = ReadTensors(folder);
  std::vector<int32_t> ids = LoadReference(folder)[3].ids;
  ids.resize(kTokens);

  const auto expected = NaiveDecoder(changed, tensors).Forward(ids);
  const GoldenModel model(folder, changed.dump());
  const double difference = Difference(EngineLogits(model, ids), expected);
  EXPECT_LT(difference, kTolerance);
  static std::map<std::string, NaiveDecoder::Rows> originals;  // logits by checkpoint
  NaiveDecoder::Rows& unchanged = originals[folder];
  if (unchanged.empty()) unchanged = NaiveDecoder(original, tensors).Forward(ids);
  const double effect = Difference(unchanged, expected);
  EXPECT_GT(effect, 0.1) << "the setting changes nothing";
  std::printf("max |logit diff| %.2g, the setting changes logits by up to %.2g\n", difference,
              effect);
}

constexpr Switch kSwitches[] = {
    {"qwen2_moe", R"({"rms_norm_eps": 1e-5})"},
    {"qwen2_moe", R"({"norm_topk_prob": true})"},
    {"qwen2_moe", R"({"rope_scaling": {"type": "yarn", "factor": 4.0,
                                       "original_max_position_embeddings": 32}})"},
    {"qwen3_moe", R"({"num_experts_per_tok": 4})"},
    {"qwen3_moe", R"({"norm_topk_prob": false})"},
    {"qwen3_moe", R"({"rope_theta": null, "rope_parameters": {"rope_theta": 10000.0}})"},
    {"qwen3_moe", R"({"rope_scaling": {"rope_type": "linear", "factor": 3.0}})"},
    {"qwen3_moe", R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16,
                                       "beta_slow": 2, "attention_factor": 1.3,
                                       "original_max_position_embeddings": 32}})"},
    {"mixtral", R"({"sliding_window": 32})"},
    {"mixtral", R"({"sliding_window": 1})"},
    {"mixtral", R"({"num_experts_per_tok": 3})"},
    {"olmoe", R"({"clip_qkv": 0.6})"},
    {"olmoe", R"({"norm_topk_prob": true})"},
    {"olmoe", R"({"rms_norm_eps": 1e-6})"},
    {"glm4_moe", R"({"partial_rotary_factor": 1.0})"},
    {"glm4_moe", R"({"partial_rotary_factor": 0.25})"},
    {"glm4_moe", R"({"norm_topk_prob": false})"},
    {"glm4_moe", R"({"routed_scaling_factor": 2.5})"},
    {"glm4_moe", R"({"n_group": 4, "topk_group": 2})"},
    {"gpt_oss", R"({"layer_types": ["full_attention", "sliding_attention", "full_attention",
                                    "sliding_attention"]})"},
    {"gpt_oss", R"({"sliding_window": 31})"},
    {"gpt_oss", R"({"swiglu_limit": 0.5})"},
    {"gpt_oss", R"({"rope_scaling": {"truncate": true}})"},
    {"gpt_oss", R"({"rope_scaling": {"attention_factor": 1.0}})"},
    {"gpt_oss", R"({"rope_scaling": {"factor": 16.0, "beta_slow": 4.0}})"},
    {"gpt_oss", R"({"rope_scaling": null})"},
    {"granite_moe", R"({"embedding_multiplier": 0.5})"},
    {"granite_moe", R"({"residual_multiplier": 1.0})"},
    {"granite_moe", R"({"attention_multiplier": 0.0625})"},
    {"granite_moe", R"({"logits_scaling": 4.0})"},
    {"granite_moe", R"({"num_experts_per_tok": 4})"},
    {"granite_moe", R"({"rope_theta": 1000000.0})"},
    {"deepseek_v2_lite", R"({"topk_method": "group_limited_greedy", "n_group": 4,
                             "topk_group": 2})"},
    {"deepseek_v2_lite", R"({"routed_scaling_factor": 16.0})"},
    {"deepseek_v2_lite", R"({"rope_scaling": {"mscale_all_dim": 1.0}})"},
    {"deepseek_v2_lite", R"({"rope_scaling": {"factor": 20}})"},
    {"deepseek_v2_lite", R"({"rope_scaling": null})"},
    {"deepseek_v3", R"({"rope_interleave": false})"},
    {"deepseek_v3", R"({"n_group": 1, "topk_group": 1})"},
    {"deepseek_v3", R"({"n_group": 6, "topk_group": 3})"},
    {"deepseek_v3", R"({"norm_topk_prob": false, "routed_scaling_factor": 1.0})"},
    {"deepseek_v3", R"({"rope_scaling": {"original_max_position_embeddings": 256}})"},
};

INSTANTIATE_TEST_SUITE_P(All, SwitchTest, ::testing::ValuesIn(kSwitches), [](const auto& info) {
  return std::string(info.param.checkpoint) + "_" + std::to_string(info.index);
});

}  // namespace
}  // namespace expertflow::testing

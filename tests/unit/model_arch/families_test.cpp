// The families beside Qwen2-MoE: each setting of their configs is honoured or refused by its name,
// tensors have the published names, and real models have the sizes that their publishers state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "model/arch/architecture.h"

namespace expertflow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Result<std::unique_ptr<Architecture>> MakeFrom(const nlohmann::json& config) {
  ASSIGN_OR_RETURN(const JsonConfig json, JsonConfig::Parse(config.dump(), "config.json"));
  return MakeArchitecture(json);
}

// The config of a checkpoint in tests/golden, with changes.
nlohmann::json GoldenConfig(const std::string& name, const std::string& changes) {
  const auto config =
      JsonConfig::Load(EXPERTFLOW_SOURCE_DIR "/tests/golden/checkpoints/" + name + "/config.json");
  EXPECT_TRUE(config.ok()) << config.status().ToString();
  auto json = nlohmann::json::parse(config->text());
  json.update(nlohmann::json::parse(changes));
  return json;
}

struct Refusal {
  const char* checkpoint;
  const char* key;  // that the message names
  const char* changes;
};

TEST(Families, RefuseByNameWhatTheyDoNotHonour) {
  const Refusal refusals[] = {
      {"qwen3_moe", "use_sliding_window",
       R"({"use_sliding_window": true, "sliding_window": 32, "max_window_layers": 1})"},
      {"qwen3_moe", "shared_expert_intermediate_size", R"({"shared_expert_intermediate_size": 8})"},
      {"qwen3_moe", "attention_bias", R"({"attention_bias": 1})"},
      {"mixtral", "sliding_window", R"({"sliding_window": 0})"},
      {"mixtral", "num_experts", R"({"num_experts": 8})"},
      {"mixtral", "norm_topk_prob", R"({"norm_topk_prob": false})"},
      {"mixtral", "num_local_experts", R"({"num_local_experts": null})"},
      {"mixtral", "layer_types", R"({"layer_types": ["full_attention"]})"},
      {"olmoe", "clip_qkv", R"({"clip_qkv": -1})"},
      {"olmoe", "clip_qkv", R"({"clip_qkv": "8"})"},
      {"olmoe", "sliding_window", R"({"sliding_window": 32})"},
      {"glm4_moe", "n_group", R"({"n_group": 3})"},
      {"glm4_moe", "n_group", R"({"n_group": 8, "topk_group": 4})"},
      {"glm4_moe", "topk_group", R"({"n_group": 4, "topk_group": 1})"},
      {"glm4_moe", "topk_group", R"({"topk_group": 2})"},
      {"glm4_moe", "partial_rotary_factor", R"({"partial_rotary_factor": 0.2})"},
      {"glm4_moe", "partial_rotary_factor", R"({"partial_rotary_factor": 1.5})"},
      {"glm4_moe", "rope_parameters.partial_rotary_factor",
       R"({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}})"},
      {"glm4_moe", "moe_layer_freq", R"({"moe_layer_freq": 2})"},
      {"glm4_moe", "scoring_func", R"({"scoring_func": "softmax"})"},
      {"glm4_moe", "first_k_dense_replace", R"({"first_k_dense_replace": 4})"},
      {"gpt_oss", "quantization_config", R"({"quantization_config": {"quant_method": "fp8"}})"},
      {"gpt_oss", "swiglu_alpha", R"({"swiglu_alpha": 1.0})"},
      {"gpt_oss", "swiglu_limit", R"({"swiglu_limit": 0})"},
      {"gpt_oss", "experts_per_token", R"({"num_experts_per_tok": 4})"},
      {"gpt_oss", "layer_types", R"({"layer_types": ["full_attention"]})"},
      {"gpt_oss", "layer_types",
       R"({"layer_types": ["chunked_attention", "full_attention", "full_attention",
                           "full_attention"]})"},
      {"gpt_oss", "rope_scaling.rope_type", R"({"rope_scaling": {"rope_type": "longrope"}})"},
      {"gpt_oss", "norm_topk_prob", R"({"norm_topk_prob": false})"},
      {"granite_moe", "quantization_config", R"({"quantization_config": {"quant_method": "fp8"}})"},
      {"granite_moe", "residual_multiplier", R"({"residual_multiplier": 0})"},
      {"granite_moe", "logits_scaling", R"({"logits_scaling": "6"})"},
      {"granite_moe", "activation_function", R"({"activation_function": "gelu"})"},
      {"granite_moe", "shared_intermediate_size", R"({"shared_intermediate_size": 32})"},
      {"granite_moe", "norm_topk_prob", R"({"norm_topk_prob": true})"},
      {"deepseek_v2_lite", "norm_topk_prob", R"({"norm_topk_prob": true})"},
      {"deepseek_v2_lite", "topk_method", R"({"topk_method": "noaux_tc"})"},
      {"deepseek_v2_lite", "scoring_func", R"({"scoring_func": "sigmoid"})"},
      {"deepseek_v2_lite", "rope_interleave", R"({"rope_interleave": false})"},
      {"deepseek_v2_lite", "num_key_value_heads", R"({"num_key_value_heads": 2})"},
      {"deepseek_v2_lite", "head_dim", R"({"head_dim": 24})"},
      {"deepseek_v2_lite", "kv_lora_rank", R"({"kv_lora_rank": null})"},
      {"deepseek_v2_lite", "qk_rope_head_dim", R"({"qk_rope_head_dim": 15})"},
      {"deepseek_v2_lite", "mlp_bias", R"({"mlp_bias": true})"},
      {"deepseek_v2_lite", "rope_scaling.mscale_all_dim",
       R"({"rope_scaling": {"type": "yarn", "factor": 40, "mscale_all_dim": 1}})"},
      {"deepseek_v3", "topk_method", R"({"topk_method": "greedy"})"},
      {"deepseek_v3", "scoring_func", R"({"scoring_func": "softmax"})"},
      {"deepseek_v3", "n_group", R"({"n_group": 5})"},
      {"deepseek_v3", "num_hidden_layers",
       R"({"num_hidden_layers": 1024, "n_routed_experts": 4096})"},
      {"deepseek_v3", "rope_theta", R"({"rope_theta": 1})"},
      {"deepseek_v3", "topk_group", R"({"topk_group": 1})"},
      {"deepseek_v3", "use_qk_norm", R"({"use_qk_norm": true})"},
      {"deepseek_v3", "quantization_config.fmt",
       R"({"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}})"},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.checkpoint + std::string(": ") + refusal.changes);
    const auto made = MakeFrom(GoldenConfig(refusal.checkpoint, refusal.changes));
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(made.status().message(), HasSubstr("config.json: " + std::string(refusal.key)));
  }
}

// Whatever a key holds: an architecture, or a line that names a key. No crash, no endless plan.
TEST(Families, AnyValueOfAnyKeyIsHonouredOrRefused) {
  const nlohmann::json values[] = {nullptr,
                                   0,
                                   1,
                                   -1,
                                   7,
                                   4096,
                                   1 << 20,
                                   int64_t{1} << 40,
                                   0.5,
                                   -0.5,
                                   1e300,
                                   true,
                                   false,
                                   "default",
                                   "x",
                                   "",
                                   {},
                                   {1},
                                   {-1, 1 << 30},
                                   {"sliding_attention"},
                                   nlohmann::json::object(),
                                   {{"type", "yarn"}, {"factor", 1e6}}};
  int honoured = 0;
  for (const char* checkpoint : {"qwen2_moe", "qwen3_moe", "mixtral", "olmoe", "glm4_moe",
                                 "gpt_oss", "granite_moe", "deepseek_v2_lite", "deepseek_v3"}) {
    const nlohmann::json config = GoldenConfig(checkpoint, "{}");
    for (const auto& entry : config.items()) {
      for (const nlohmann::json& value : values) {
        nlohmann::json changed = config;
        changed[entry.key()] = value;
        const auto made = MakeFrom(changed);
        if (made.ok()) ++honoured;
        if (!made.ok()) {
          ASSERT_THAT(made.status().message(), StartsWith("config.json: ")) << changed.dump();
        }
      }
    }
  }
  EXPECT_GT(honoured, 1000);  // inert keys, and values that fit
}

// As transformers 5 writes configs: dtype and rope_parameters, with what used to be beside them.
TEST(Families, NewSpellings) {
  const struct {
    const char* checkpoint;
    const char* changes;
  } cases[] = {
      {"mixtral", R"({"torch_dtype": null, "dtype": "bfloat16", "rope_theta": null,
                      "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}})"},
      {"glm4_moe", R"({"rope_theta": null, "partial_rotary_factor": null,
                       "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default",
                                           "partial_rotary_factor": 0.5}})"},
      {"gpt_oss", R"({"rope_theta": null, "rope_scaling": null,
                      "rope_parameters": {"rope_theta": 150000, "rope_type": "yarn",
                        "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
                        "original_max_position_embeddings": 64}})"},
      {"deepseek_v3", R"({"topk_method": null, "scoring_func": null, "head_dim": 16,
                          "qk_head_dim": 32, "rope_interleave": true})"},
      {"deepseek_v2_lite", R"({"architectures": null})"},
  };
  for (const auto& [checkpoint, changes] : cases) {
    const auto made = MakeFrom(GoldenConfig(checkpoint, changes));
    EXPECT_TRUE(made.ok()) << checkpoint << ": " << made.status().ToString();
  }
}

TEST(Families, YarnExtendsAContextThatTheConfigLeaves) {
  const char* const scaled =
      R"({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
          "original_max_position_embeddings": 4096}})";
  const auto made = MakeFrom(GoldenConfig("qwen3_moe", scaled));
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ((*made)->shape().context, 16384);
}

std::map<std::string, std::vector<int64_t>> DenseTable(const WeightPlan& plan) {
  std::map<std::string, std::vector<int64_t>> table;
  for (const TensorSpec& spec : plan.dense) table[spec.name] = spec.shape;
  return table;
}

TEST(Families, LatentCacheHoldsOneVectorOfAllHeads) {
  const auto made = MakeFrom(GoldenConfig("deepseek_v2_lite", "{}"));
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const ModelShape& shape = (*made)->shape();
  EXPECT_EQ(shape.kv.heads, 1);
  EXPECT_EQ(shape.kv.head_dim, 36);
  EXPECT_EQ(shape.kv.shared_dim, 20);
  EXPECT_EQ(shape.kv_bytes_per_token(), 3u * 36 * 4);
  EXPECT_EQ(shape.kv_bytes_per_token(DType::kBF16), 3u * 36 * 2);
  EXPECT_EQ(shape.kv_bytes_per_token(DType::kInt8), 3u * 2 * (32 + 4));  // whole groups
  EXPECT_THAT(shape.moe_layers, ElementsAre(1, 2));
  EXPECT_EQ(shape.context, 2560);
}

TEST(Families, FusedExpertsAreSlices) {
  const auto made = MakeFrom(GoldenConfig("gpt_oss", "{}"));
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const ExpertSpec& spec = (*made)->weights().experts[8 + 3];  // layer 1, expert 3
  EXPECT_TRUE(spec.has_biases);
  EXPECT_EQ(spec.up.source(), "model.layers.1.mlp.experts.gate_up_proj");
  EXPECT_THAT(spec.up.source_shape(), ElementsAre(8, 64, 40));
  EXPECT_THAT(spec.up.shape, ElementsAre(20, 64));
  EXPECT_EQ(spec.up.slice->offset, 3 * 64 * 40 + 1);
  EXPECT_THAT(spec.up.slice->strides, ElementsAre(2, 40));
  EXPECT_THAT(spec.down.shape, ElementsAre(64, 20));
  EXPECT_THAT(spec.down.slice->strides, ElementsAre(1, 64));
  EXPECT_EQ(spec.gate_bias.slice->offset, 3 * 40);
}

TEST(Families, TheMtpLayerIsIgnored) {
  const auto made = MakeFrom(GoldenConfig("glm4_moe", "{}"));
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_THAT((*made)->weights().ignored_prefixes, ElementsAre("model.layers.3."));
  const auto table = DenseTable((*made)->weights());
  EXPECT_THAT(table.at("model.layers.1.mlp.gate.e_score_correction_bias"), ElementsAre(8));
  EXPECT_FALSE(table.contains("model.layers.0.mlp.gate.weight"));
}

struct RealModel {
  const char* name;
  const char* config;
  int64_t parameters;
  int64_t expert_parameters;  // of one expert
  int64_t experts;            // of all layers
  uint64_t kv_bytes_per_token;
};

// Parameters as the publishers' checkpoints have them, without layers for further tokens; the rest
// by hand: an expert is 3 H I (gpt-oss: and 2 I + H), the cache 4 bytes x layers x 2 K D, or the
// latent vector and the rotated key.
constexpr RealModel kRealModels[] = {
    {"Qwen3-30B-A3B",
     R"({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "head_dim": 128,
         "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
         "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": true,
         "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
         "num_hidden_layers": 48, "num_key_value_heads": 4, "rope_theta": 1000000.0,
         "vocab_size": 151936})",
     30'532'122'624, 4'718'592, 48 * 128, 196'608},
    {"Mixtral-8x7B",
     R"({"architectures": ["MixtralForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
         "max_position_embeddings": 32768, "num_attention_heads": 32, "num_experts_per_tok": 2,
         "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
         "sliding_window": null, "vocab_size": 32000})",
     46'702'792'704, 176'160'768, 32 * 8, 262'144},
    {"Mixtral-8x22B",
     R"({"architectures": ["MixtralForCausalLM"], "hidden_size": 6144, "intermediate_size": 16384,
         "max_position_embeddings": 65536, "num_attention_heads": 48, "num_experts_per_tok": 2,
         "num_hidden_layers": 56, "num_key_value_heads": 8, "num_local_experts": 8,
         "vocab_size": 32000})",
     140'620'634'112, 301'989'888, 56 * 8, 458'752},
    {"OLMoE-1B-7B",
     R"({"architectures": ["OlmoeForCausalLM"], "hidden_size": 2048, "intermediate_size": 1024,
         "max_position_embeddings": 4096, "num_attention_heads": 16, "num_experts": 64,
         "num_experts_per_tok": 8, "num_hidden_layers": 16, "num_key_value_heads": 16,
         "vocab_size": 50304})",
     6'919'161'856, 6'291'456, 16 * 64, 262'144},
    {"GLM-4.5-Air",
     R"({"architectures": ["Glm4MoeForCausalLM"], "attention_bias": true, "head_dim": 128,
         "hidden_size": 4096, "partial_rotary_factor": 0.5, "intermediate_size": 10944,
         "max_position_embeddings": 131072, "moe_intermediate_size": 1408,
         "num_attention_heads": 96, "n_routed_experts": 128, "n_shared_experts": 1,
         "num_experts_per_tok": 8, "first_k_dense_replace": 1, "num_hidden_layers": 46,
         "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "rope_theta": 1000000,
         "vocab_size": 151552})",
     106'852'251'264, 17'301'504, 45 * 128, 376'832},
    {"gpt-oss-20b",
     R"({"architectures": ["GptOssForCausalLM"], "head_dim": 64, "hidden_size": 2880,
         "intermediate_size": 2880, "max_position_embeddings": 131072, "num_attention_heads": 64,
         "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8,
         "num_local_experts": 32, "sliding_window": 128, "vocab_size": 201088})",
     20'914'757'184, 24'891'840, 24 * 32, 98'304},
    {"granite-3.1-1b-a400m",
     R"({"architectures": ["GraniteMoeForCausalLM"], "attention_multiplier": 0.015625,
         "embedding_multiplier": 12.0, "hidden_size": 1024, "intermediate_size": 512,
         "logits_scaling": 6.0, "max_position_embeddings": 131072, "num_attention_heads": 16,
         "num_experts_per_tok": 8, "num_hidden_layers": 24, "num_key_value_heads": 8,
         "num_local_experts": 32, "residual_multiplier": 0.22, "rope_theta": 1500000.0,
         "tie_word_embeddings": true, "vocab_size": 49155})",
     1'334'628'352, 1'572'864, 24 * 32, 98'304},
    {"DeepSeek-V2-Lite",
     R"({"architectures": ["DeepseekV2ForCausalLM"], "first_k_dense_replace": 1,
         "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512,
         "max_position_embeddings": 163840, "moe_intermediate_size": 1408,
         "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 16,
         "num_experts_per_tok": 6, "num_hidden_layers": 27, "q_lora_rank": null,
         "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
         "vocab_size": 102400})",
     15'706'484'224, 8'650'752, 26 * 64, 62'208},
    {"DeepSeek-R1 without its quantization",
     R"({"architectures": ["DeepseekV3ForCausalLM"], "first_k_dense_replace": 3,
         "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
         "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "n_group": 8,
         "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 128,
         "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_nextn_predict_layers": 1,
         "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
         "routed_scaling_factor": 2.5, "topk_group": 4, "v_head_dim": 128,
         "vocab_size": 129280})",
     671'026'419'200, 44'040'192, 58 * 256, 140'544},
};

int64_t Elements(const TensorSpec& spec) {
  int64_t count = 1;
  for (const int64_t size : spec.shape) count *= size;
  return count;
}

TEST(Families, SizesOfRealModels) {
  for (const RealModel& model : kRealModels) {
    SCOPED_TRACE(model.name);
    const auto made = MakeFrom(nlohmann::json::parse(model.config));
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    const WeightPlan& plan = (*made)->weights();
    int64_t parameters = 0;
    for (const TensorSpec& spec : plan.dense) parameters += Elements(spec);
    for (const ExpertSpec& spec : plan.experts) {
      int64_t expert = 0;
      for (const TensorSpec* part : spec.parts()) expert += Elements(*part);
      ASSERT_EQ(expert, model.expert_parameters);
      parameters += expert;
    }
    EXPECT_EQ(parameters, model.parameters);
    EXPECT_EQ(static_cast<int64_t>(plan.experts.size()), model.experts);
    EXPECT_EQ((*made)->shape().kv_bytes_per_token(), model.kv_bytes_per_token);
  }
}

// Configs that people run: each is planned, or refused with the reason.
TEST(Families, RealConfigsArePlannedOrRefusedByName) {
  const std::filesystem::path folder = EXPERTFLOW_SOURCE_DIR "/../shared/hf-configs";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
  std::vector<std::string> planned;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string path = entry.is_directory() ? entry.path() / "config.json" : entry.path();
    if (!path.ends_with(".json")) continue;
    SCOPED_TRACE(path);
    const auto config = JsonConfig::Load(path);
    ASSERT_TRUE(config.ok()) << config.status().ToString();
    const auto made = MakeArchitecture(*config);
    if (made.ok()) {
      planned.push_back(entry.path().filename().string());
      continue;
    }
    const auto json = nlohmann::json::parse(config->text());
    std::string rest = made.status().message();
    ASSERT_THAT(rest, StartsWith(path + ": "));
    rest = rest.substr(path.size() + 2);
    const std::string key = rest.substr(0, rest.find_first_of(".:"));
    EXPECT_TRUE(key == "architectures" || json.contains(key)) << rest;
  }
  std::sort(planned.begin(), planned.end());
  EXPECT_THAT(planned,
              ElementsAre("DeepSeek-R1.config.json", "DeepSeek-V2-Lite.config.json",
                          "Mixtral-8x7B-v0.1.config.json", "OLMoE-1B-7B-0125.config.json",
                          "PowerMoE-3b.config.json", "Qwen1.5-MoE-A2.7B.config.json",
                          "Qwen2-57B-A14B.config.json", "Qwen3-30B-A3B.config.json", "gpt-oss-20b",
                          "gpt-oss-20b.config.json", "granite-3.1-1b-a400m-instruct.config.json",
                          "mixtral-8x22b_WizardLM-2"));
}

}  // namespace
}  // namespace expertflow

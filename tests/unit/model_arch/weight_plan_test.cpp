// The tensor table: names and shapes as checkpoints have them, and the sizes of real models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "config_text.h"

namespace expertflow {
namespace {

using testing::ChangedConfig;
using testing::MakeFrom;
using Shape = std::vector<int64_t>;
using Table = std::map<std::string, Shape>;

std::unique_ptr<Architecture> MustMake(const std::string& changes) {
  auto made = MakeFrom(ChangedConfig(changes));
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return std::move(made).value();
}

Table DenseTable(const WeightPlan& plan) {
  Table table;
  for (const TensorSpec& spec : plan.dense) {
    EXPECT_TRUE(table.emplace(spec.name, spec.shape).second) << spec.name << " twice";
  }
  return table;
}

Table AttentionTable(const std::string& layer) {
  return {
      {layer + "input_layernorm.weight", {32}},
      {layer + "post_attention_layernorm.weight", {32}},
      {layer + "self_attn.q_proj.weight", {24, 32}},
      {layer + "self_attn.q_proj.bias", {24}},
      {layer + "self_attn.k_proj.weight", {12, 32}},
      {layer + "self_attn.k_proj.bias", {12}},
      {layer + "self_attn.v_proj.weight", {12, 32}},
      {layer + "self_attn.v_proj.bias", {12}},
      {layer + "self_attn.o_proj.weight", {32, 24}},
  };
}

TEST(Qwen2MoeWeights, NamesAndShapesWithADenseLayer) {
  // A head_dim of its own, so that q and o are not square.
  const auto architecture =
      MustMake(R"({"num_hidden_layers": 2, "mlp_only_layers": [0], "head_dim": 6})");
  Table expected = {
      {"model.embed_tokens.weight", {50, 32}},
      {"model.norm.weight", {32}},
      {"lm_head.weight", {50, 32}},
      {"model.layers.0.mlp.gate_proj.weight", {40, 32}},
      {"model.layers.0.mlp.up_proj.weight", {40, 32}},
      {"model.layers.0.mlp.down_proj.weight", {32, 40}},
      {"model.layers.1.mlp.gate.weight", {8, 32}},
      {"model.layers.1.mlp.shared_expert_gate.weight", {1, 32}},
      {"model.layers.1.mlp.shared_expert.gate_proj.weight", {20, 32}},
      {"model.layers.1.mlp.shared_expert.up_proj.weight", {20, 32}},
      {"model.layers.1.mlp.shared_expert.down_proj.weight", {32, 20}},
  };
  expected.merge(AttentionTable("model.layers.0."));
  expected.merge(AttentionTable("model.layers.1."));
  const WeightPlan& plan = architecture->weights();
  EXPECT_EQ(DenseTable(plan), expected);
  EXPECT_EQ(plan.layers, 2);
  EXPECT_EQ(plan.experts_per_layer, 8);
  EXPECT_TRUE(plan.ignored_prefixes.empty());

  ASSERT_EQ(plan.experts.size(), 8u);
  for (int32_t e = 0; e < 8; ++e) {
    const ExpertSpec& spec = plan.experts[e];
    const std::string prefix = "model.layers.1.mlp.experts." + std::to_string(e) + ".";
    EXPECT_EQ(spec.key, (ExpertKey{LayerId(1), ExpertId(e)}));
    EXPECT_EQ(spec.gate.name, prefix + "gate_proj.weight");
    EXPECT_EQ(spec.gate.shape, (Shape{12, 32}));
    EXPECT_EQ(spec.up.name, prefix + "up_proj.weight");
    EXPECT_EQ(spec.up.shape, (Shape{12, 32}));
    EXPECT_EQ(spec.down.name, prefix + "down_proj.weight");
    EXPECT_EQ(spec.down.shape, (Shape{32, 12}));
  }
}

TEST(Qwen2MoeWeights, TiedEmbeddingsIgnoreALmHead) {
  const auto architecture = MustMake(R"({"tie_word_embeddings": true})");
  EXPECT_FALSE(DenseTable(architecture->weights()).contains("lm_head.weight"));
  EXPECT_THAT(architecture->weights().ignored_prefixes, ::testing::ElementsAre("lm_head.weight"));
}

TEST(Qwen2MoeWeights, WithoutBiases) {
  for (const auto& [name, shape] : DenseTable(MustMake(R"({"qkv_bias": false})")->weights())) {
    EXPECT_THAT(name, ::testing::Not(::testing::HasSubstr("bias")));
  }
}

int64_t Elements(const TensorSpec& spec) {
  return std::accumulate(spec.shape.begin(), spec.shape.end(), int64_t{1}, std::multiplies<>());
}

struct RealModel {
  const char* name;
  const char* changes;
  int64_t parameters;
  int64_t expert_parameters;  // of one expert
  int64_t experts;            // of all layers
  uint64_t kv_bytes_per_token;
};

// Added up by hand from the published shapes: embeddings 2 V H + H; per layer q, o = H H, k, v =
// H K D, biases H + 2 K D, norms 2 H, router E H, shared gate H, shared expert 3 H S, and E experts
// of 3 H I. Bytes are twice that in bfloat16. KV: 2 x 4 bytes x layers x K D.
constexpr RealModel kRealModels[] = {
    {"Qwen1.5-MoE-A2.7B",
     R"({"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16,
         "num_key_value_heads": 16, "vocab_size": 151936, "max_position_embeddings": 8192,
         "intermediate_size": 5632, "moe_intermediate_size": 1408,
         "shared_expert_intermediate_size": 5632, "num_experts": 60, "num_experts_per_tok": 4,
         "rope_theta": 1000000.0, "decoder_sparse_step": 1, "max_window_layers": 21,
         "sliding_window": 32768, "use_sliding_window": false, "eos_token_id": 151643})",
     14'315'784'192, 8'650'752, 24 * 60, 393'216},
    {"Qwen2-57B-A14B",
     R"({"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
         "num_key_value_heads": 4, "vocab_size": 151936, "max_position_embeddings": 131072,
         "intermediate_size": 18944, "moe_intermediate_size": 2560,
         "shared_expert_intermediate_size": 20480, "num_experts": 64, "num_experts_per_tok": 8,
         "rope_theta": 1000000.0, "decoder_sparse_step": 1, "max_window_layers": 28,
         "sliding_window": 131072, "use_sliding_window": false, "eos_token_id": 151643})",
     57'408'658'944, 27'525'120, 28 * 64, 114'688},
};

TEST(Qwen2MoeWeights, SizesOfRealModels) {
  for (const RealModel& model : kRealModels) {
    SCOPED_TRACE(model.name);
    const auto architecture = MustMake(model.changes);
    const WeightPlan& plan = architecture->weights();
    int64_t parameters = 0;
    for (const TensorSpec& spec : plan.dense) parameters += Elements(spec);
    for (const ExpertSpec& spec : plan.experts) {
      const int64_t expert = Elements(spec.gate) + Elements(spec.up) + Elements(spec.down);
      ASSERT_EQ(expert, model.expert_parameters);
      parameters += expert;
    }
    EXPECT_EQ(parameters, model.parameters);
    EXPECT_EQ(static_cast<int64_t>(plan.experts.size()), model.experts);
    EXPECT_EQ(architecture->shape().kv_bytes_per_token(), model.kv_bytes_per_token);
  }
}

}  // namespace
}  // namespace expertflow

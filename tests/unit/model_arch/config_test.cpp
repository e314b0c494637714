// What a config.json may say: each setting is honoured, or refused by its name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config_text.h"

namespace expertflow {
namespace {

using testing::ChangedConfig;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MakeFrom;

ModelShape ShapeOf(const std::string& changes) {
  const auto made = MakeFrom(ChangedConfig(changes));
  EXPECT_TRUE(made.ok()) << changes << ": " << made.status().ToString();
  return made.ok() ? (*made)->shape() : ModelShape();
}

struct Refusal {
  const char* key;  // that the message names
  const char* changes;
};

TEST(Qwen2MoeConfig, RefusesByNameWhatItDoesNotHonour) {
  const Refusal refusals[] = {
      {"quantization_config.bits",
       R"({"quantization_config": {"quant_method": "gptq", "bits": 3}})"},
      {"quantization_config.quant_method",
       R"({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}})"},
      {"quantization_config", R"({"quantization_config": {"quant_method": "mxfp4"}})"},
      {"quantization_config.smooth",
       R"({"quantization_config": {"quant_method": "awq", "bits": 4, "smooth": 2}})"},
      {"quantization_config", R"({"quantization_config": {}})"},
      {"compression_config", R"({"compression_config": {"format": "int"}})"},
      {"quantization", R"({"quantization": "awq"})"},
      {"torch_dtype", R"({"torch_dtype": "int8"})"},
      {"torch_dtype", R"({"torch_dtype": 16})"},
      {"dtype", R"({"dtype": "float8_e4m3fn"})"},
      {"hidden_act", R"({"hidden_act": "gelu"})"},
      {"is_encoder_decoder", R"({"is_encoder_decoder": true})"},
      {"add_cross_attention", R"({"add_cross_attention": true})"},
      {"pruned_heads", R"({"pruned_heads": {"1": [0, 2]}})"},
      {"attention_sink", R"({"attention_sink": true})"},
      {"attention_bias", R"({"attention_bias": true})"},
      {"n_group", R"({"n_group": 4})"},
      // Attention windows.
      {"use_sliding_window",
       R"({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2})"},
      {"layer_types",
       R"({"layer_types": ["full_attention", "sliding_attention", "full_attention"],
           "use_sliding_window": true, "sliding_window": 8})"},
      {"layer_types", R"({"layer_types": ["linear_attention", "full_attention",
                                          "full_attention"]})"},
      {"layer_types", R"({"layer_types": "full_attention"})"},
      // Rotary embedding, in both spellings of the object and of the type.
      {"rope_scaling.factor", R"({"rope_scaling": {"type": "yarn"}})"},
      {"rope_scaling.mscale", R"({"rope_scaling": {"type": "yarn", "factor": 4, "mscale": 0.7}})"},
      {"rope_scaling.finetuned",
       R"({"rope_scaling": {"type": "yarn", "factor": 4, "finetuned": true}})"},
      {"rope_scaling.rope_type", R"({"rope_scaling": {"type": "dynamic", "factor": 2.0}})"},
      {"rope_scaling.rope_type", R"({"rope_scaling": {"rope_type": "llama3"}})"},
      {"rope_parameters.truncate",
       R"({"rope_parameters": {"rope_type": "yarn", "factor": 4, "truncate": 1}})"},
      {"rope_parameters.rope_theta",
       R"({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}})"},
      {"rope_parameters",
       R"({"rope_scaling": {"type": "linear", "factor": 2},
           "rope_parameters": {"rope_type": "linear", "factor": 4}})"},
      {"rope_scaling.rope_type",
       R"({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2}})"},
      {"rope_parameters.rope_type", R"({"rope_parameters": {"rope_type": "dynamic"}})"},
      {"rope_parameters.rope_theta",
       R"({"rope_parameters": {"rope_type": "default", "rope_theta": -1}})"},
      {"rope_parameters.partial_rotary_factor",
       R"({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}})"},
      {"rope_scaling.factor", R"({"rope_scaling": {"type": "linear"}})"},
      {"rope_scaling.factor", R"({"rope_scaling": {"type": "linear", "factor": 0.5}})"},
      {"rope_scaling.factor", R"({"rope_scaling": {"type": "linear", "factor": "4"}})"},
      {"rope_scaling.type", R"({"rope_scaling": {"type": 3}})"},
      {"rope_scaling.mscale", R"({"rope_scaling": {"type": "linear", "factor": 2, "mscale": 1}})"},
      {"rope_scaling", R"({"rope_scaling": "linear"})"},
      {"rope_theta", R"({"rope_theta": 0})"},
      // Heads.
      {"num_attention_heads", R"({"num_attention_heads": 5})"},
      {"num_key_value_heads", R"({"num_key_value_heads": 3})"},
      {"num_key_value_heads", R"({"num_key_value_heads": 8})"},
      {"head_dim", R"({"head_dim": 15})"},
      {"head_dim", R"({"head_dim": 0})"},
      {"head_dim", R"({"hidden_size": 36, "num_attention_heads": 4})"},
      // Experts.
      {"num_experts_per_tok", R"({"num_experts_per_tok": 9})"},
      {"num_experts_per_tok", R"({"num_experts_per_tok": 0})"},
      {"num_experts", R"({"num_experts": 0})"},
      {"num_experts", R"({"num_experts": "8"})"},
      {"num_experts", R"({"num_experts": null})"},
      {"moe_intermediate_size", R"({"moe_intermediate_size": -12})"},
      {"shared_expert_intermediate_size", R"({"shared_expert_intermediate_size": 0})"},
      {"norm_topk_prob", R"({"norm_topk_prob": 1})"},
      {"decoder_sparse_step", R"({"decoder_sparse_step": 0})"},
      {"mlp_only_layers", R"({"mlp_only_layers": [3]})"},
      {"mlp_only_layers", R"({"mlp_only_layers": [-1]})"},
      {"mlp_only_layers", R"({"mlp_only_layers": [0.5]})"},
      // Sizes and types.
      {"hidden_size", R"({"hidden_size": 32.5})"},
      {"hidden_size", R"({"hidden_size": 1000000000000})"},
      {"num_hidden_layers", R"({"num_hidden_layers": null})"},
      {"num_hidden_layers", R"({"num_hidden_layers": -3})"},
      {"vocab_size", R"({"vocab_size": 0})"},
      {"max_position_embeddings", R"({"max_position_embeddings": 0})"},
      {"intermediate_size", R"({"intermediate_size": [40]})"},
      {"rms_norm_eps", R"({"rms_norm_eps": -1e-6})"},
      {"rms_norm_eps", R"({"rms_norm_eps": "1e-6"})"},
      {"tie_word_embeddings", R"({"tie_word_embeddings": "yes"})"},
      {"qkv_bias", R"({"qkv_bias": 0})"},
      {"eos_token_id", R"({"eos_token_id": 50})"},
      {"eos_token_id", R"({"eos_token_id": [1, -2]})"},
      {"eos_token_id", R"({"eos_token_id": ["</s>"]})"},
      // The architecture itself.
      {"architectures", R"({"architectures": ["LlamaForCausalLM"]})"},
      {"architectures", R"({"architectures": "Qwen2MoeForCausalLM"})"},
      {"architectures", R"({"architectures": null, "model_type": "llama"})"},
      {"architectures", R"({"architectures": null, "model_type": null})"},
      {"model_type", R"({"model_type": 2})"},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.changes);
    const auto made = MakeFrom(ChangedConfig(refusal.changes));
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(made.status().message(), HasSubstr("config.json: " + std::string(refusal.key)));
  }
}

TEST(Qwen2MoeConfig, AcceptsWhatHasNoEffect) {
  for (
      const char* changes : {
          R"({})",
          R"({"architectures": null})",
          R"({"dtype": "float16", "torch_dtype": null})",
          R"({"dtype": "float32", "torch_dtype": "float32"})",
          R"({"is_encoder_decoder": false, "add_cross_attention": false, "pruned_heads": {},
               "quantization_config": null})",
          R"({"_name_or_path": "x", "auto_map": {"AutoConfig": "y"}, "id2label": {"0": "a"},
               "bos_token_id": 1, "initializer_range": 0.02, "attention_dropout": 0.0,
               "output_router_logits": false, "router_aux_loss_coef": 0.001,
               "transformers_version": "4.40.1", "use_cache": true})",
          R"({"use_sliding_window": false, "sliding_window": 4, "max_window_layers": 0})",
          R"({"use_sliding_window": true, "sliding_window": 4, "max_window_layers": 3})",
          R"({"use_sliding_window": true, "sliding_window": 64, "max_window_layers": 0})",
          R"({"use_sliding_window": false, "sliding_window": null})",
          R"({"layer_types": ["full_attention", "full_attention", "full_attention"],
               "use_sliding_window": true, "sliding_window": 4, "max_window_layers": 0})",
          R"({"rope_scaling": null, "rope_parameters": null})",
          R"({"rope_scaling": {"type": "default"}})",
          R"({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}})",
          R"({"rope_theta": null, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}})",
          R"({"rope_scaling": {"type": "linear", "factor": 2},
               "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}})",
      }) {
    EXPECT_EQ(ShapeOf(changes).hidden, 32) << changes;
  }
}

TEST(Qwen2MoeConfig, FillsTheShape) {
  const ModelShape shape = ShapeOf(R"({"eos_token_id": 7})");
  EXPECT_EQ(shape.architecture, "Qwen2MoeForCausalLM");
  EXPECT_EQ(shape.layers, 3);
  EXPECT_THAT(shape.moe_layers, ElementsAre(0, 1, 2));
  EXPECT_EQ(shape.experts, 8);
  EXPECT_EQ(shape.top_k, 3);
  EXPECT_EQ(shape.heads, 4);
  EXPECT_EQ(shape.kv_heads, 2);
  EXPECT_EQ(shape.head_dim, 8);
  EXPECT_EQ(shape.vocab, 50);
  EXPECT_EQ(shape.context, 64);
  EXPECT_EQ(shape.intermediate_max, 20);
  EXPECT_EQ(shape.expert_intermediate, 12);
  EXPECT_THAT(shape.stop_tokens, ElementsAre(7));
  EXPECT_EQ(shape.kv_bytes_per_token(), 2u * 4 * 3 * 2 * 8);
}

TEST(Qwen2MoeConfig, DefaultsAreThoseOfTheArchitecture) {
  EXPECT_EQ(ShapeOf(R"({"num_key_value_heads": null})").kv_heads, 4);
  EXPECT_EQ(ShapeOf(R"({"head_dim": 6})").head_dim, 6);
  EXPECT_EQ(ShapeOf(R"({"head_dim": 6, "num_attention_heads": 5, "num_key_value_heads": 5})").heads,
            5);
  EXPECT_THAT(ShapeOf(R"({"eos_token_id": null})").stop_tokens, IsEmpty());
  EXPECT_THAT(ShapeOf(R"({"eos_token_id": [3, 1]})").stop_tokens, ElementsAre(3, 1));
}

TEST(Qwen2MoeConfig, DenseLayers) {
  EXPECT_THAT(ShapeOf(R"({"decoder_sparse_step": 2})").moe_layers, ElementsAre(1));
  EXPECT_THAT(ShapeOf(R"({"decoder_sparse_step": 3})").moe_layers, ElementsAre(2));
  EXPECT_THAT(ShapeOf(R"({"mlp_only_layers": [1]})").moe_layers, ElementsAre(0, 2));
  EXPECT_THAT(ShapeOf(R"({"mlp_only_layers": [1], "decoder_sparse_step": 2})").moe_layers,
              IsEmpty());
  EXPECT_EQ(ShapeOf(R"({"mlp_only_layers": [1]})").intermediate_max, 40);
  EXPECT_EQ(ShapeOf(R"({"mlp_only_layers": [0, 1, 2], "shared_expert_intermediate_size": 99})")
                .intermediate_max,
            40);
}

}  // namespace
}  // namespace expertflow

// The reference checkpoints as GGUF files, laid out and named as the published converters do it.
#pragma once

#include <fmt/format.h>

#include <string>

#include "tests/golden/gguf_writer.h"

namespace expertflow::testing {

inline void MoveTop(GgufConverter* to, const std::string& architecture) {
  GgufPair& pair = to->pair();
  const nlohmann::json& config = pair.config;
  to->Move("model.embed_tokens.weight", "token_embd.weight");
  to->Move("model.norm.weight", "output_norm.weight");
  to->Move("lm_head.weight", "output.weight");
  to->Int("block_count", to->Config("num_hidden_layers"));
  to->Int("context_length", to->Config("max_position_embeddings"));
  to->Int("embedding_length", to->Config("hidden_size"));
  to->Int("feed_forward_length", to->Config("intermediate_size"));
  to->Int("attention.head_count", to->Config("num_attention_heads"));
  to->Float("attention.layer_norm_rms_epsilon", config["rms_norm_eps"]);
  to->Float("rope.freq_base", config["rope_theta"]);
  to->Int("expert_used_count", to->Config("num_experts_per_tok"));
  to->Int("vocab_size", to->Config("vocab_size"));
  pair.gguf.Int("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(to->Config("eos_token_id")));
  pair.gguf.Int("general.file_type", 1);
  static_cast<void>(architecture);
}

// Norms and grouped-query attention of a layer.
inline void MoveAttention(GgufConverter* to, const std::string& from, const std::string& into,
                          int64_t rotated_head = 0) {
  for (const char* part : {"weight", "bias"}) {
    to->MoveIfThere(from + "self_attn.q_proj." + part, into + "attn_q." + part, rotated_head);
    to->MoveIfThere(from + "self_attn.k_proj." + part, into + "attn_k." + part, rotated_head);
    to->MoveIfThere(from + "self_attn.v_proj." + part, into + "attn_v." + part);
    to->MoveIfThere(from + "self_attn.o_proj." + part, into + "attn_output." + part);
  }
  to->MoveIfThere(from + "self_attn.q_norm.weight", into + "attn_q_norm.weight");
  to->MoveIfThere(from + "self_attn.k_norm.weight", into + "attn_k_norm.weight");
  to->Move(from + "input_layernorm.weight", into + "attn_norm.weight");
}

inline void MoveExpertsOf(GgufConverter* to, const std::string& from, const std::string& into,
                          int64_t experts, const std::vector<const char*>& names) {
  const char* const gguf[] = {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"};
  for (size_t i = 0; i < 3; ++i) {
    to->MoveExperts([&](int64_t e) { return fmt::format("{}{}.{}.weight", from, e, names[i]); },
                    into + gguf[i] + ".weight", experts);
  }
}

inline GgufPair QwenAsGguf(const std::string& source, const std::string& architecture,
                           const GgufForm& form) {
  GgufConverter to(source, architecture, form);
  MoveTop(&to, architecture);
  to.Int("attention.head_count_kv", to.Config("num_key_value_heads"));
  to.Int("expert_count", to.Config("num_experts"));
  to.Int("expert_feed_forward_length", to.Config("moe_intermediate_size"));
  if (architecture == "qwen2moe") {
    to.Int("expert_shared_feed_forward_length", to.Config("shared_expert_intermediate_size"));
  } else {
    to.Int("attention.key_length", to.Config("head_dim"));
    to.Int("attention.value_length", to.Config("head_dim"));
  }
  for (int64_t layer = 0; layer < to.Config("num_hidden_layers"); ++layer) {
    const std::string from = fmt::format("model.layers.{}.", layer);
    const std::string into = fmt::format("blk.{}.", layer);
    MoveAttention(&to, from, into);
    to.Move(from + "post_attention_layernorm.weight", into + "ffn_norm.weight");
    to.Move(from + "mlp.gate.weight", into + "ffn_gate_inp.weight");
    MoveExpertsOf(&to, from + "mlp.experts.", into, to.Config("num_experts"),
                  {"gate_proj", "up_proj", "down_proj"});
    if (architecture != "qwen2moe") continue;
    to.Move(from + "mlp.shared_expert_gate.weight", into + "ffn_gate_inp_shexp.weight", 0, true);
    for (const char* matrix : {"gate", "up", "down"}) {
      to.Move(fmt::format("{}mlp.shared_expert.{}_proj.weight", from, matrix),
              fmt::format("{}ffn_{}_shexp.weight", into, matrix));
    }
  }
  return to.pair();
}

inline GgufPair MixtralAsGguf(const std::string& source, const GgufForm& form,
                              const std::optional<GgufForm>& of_some = std::nullopt) {
  GgufConverter to(source, "llama", form, of_some);
  MoveTop(&to, "llama");
  const int64_t head = to.Config("hidden_size") / to.Config("num_attention_heads");
  to.Int("attention.head_count_kv", to.Config("num_key_value_heads"));
  to.Int("expert_count", to.Config("num_local_experts"));
  to.Int("rope.dimension_count", head);
  for (int64_t layer = 0; layer < to.Config("num_hidden_layers"); ++layer) {
    const std::string from = fmt::format("model.layers.{}.", layer);
    const std::string into = fmt::format("blk.{}.", layer);
    MoveAttention(&to, from, into, head);
    to.Move(from + "post_attention_layernorm.weight", into + "ffn_norm.weight");
    to.Move(from + "block_sparse_moe.gate.weight", into + "ffn_gate_inp.weight");
    MoveExpertsOf(&to, from + "block_sparse_moe.experts.", into, to.Config("num_local_experts"),
                  {"w1", "w3", "w2"});
  }
  return to.pair();
}

inline GgufPair OlmoeAsGguf(const std::string& source, const GgufForm& form) {
  GgufConverter to(source, "olmoe", form);
  MoveTop(&to, "olmoe");
  to.Int("attention.head_count_kv", to.Config("num_key_value_heads"));
  to.Int("expert_count", to.Config("num_experts"));
  for (int64_t layer = 0; layer < to.Config("num_hidden_layers"); ++layer) {
    const std::string from = fmt::format("model.layers.{}.", layer);
    const std::string into = fmt::format("blk.{}.", layer);
    MoveAttention(&to, from, into);
    to.Move(from + "post_attention_layernorm.weight", into + "ffn_norm.weight");
    to.Move(from + "mlp.gate.weight", into + "ffn_gate_inp.weight");
    MoveExpertsOf(&to, from + "mlp.experts.", into, to.Config("num_experts"),
                  {"gate_proj", "up_proj", "down_proj"});
  }
  return to.pair();
}

// kv_b_proj apart: keys [heads, rank, nope], values [heads, value, rank].
inline void SplitKv(GgufConverter* to, const std::string& from, const std::string& into) {
  GgufPair& pair = to->pair();
  const TestTensor& tensor = pair.plain.at(from);
  const int64_t heads = to->Config("num_attention_heads"), nope = to->Config("qk_nope_head_dim");
  const int64_t value = to->Config("v_head_dim"), rank = to->Config("kv_lora_rank");
  const std::vector<float> all = FloatsOf(tensor);
  std::vector<float> keys(heads * rank * nope), values(heads * value * rank);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t r = 0; r < rank; ++r) {
      const auto at = [&](int64_t row) { return all[(h * (nope + value) + row) * rank + r]; };
      for (int64_t i = 0; i < nope; ++i) keys[(h * rank + r) * nope + i] = at(i);
      for (int64_t i = 0; i < value; ++i) values[(h * value + i) * rank + r] = at(nope + i);
    }
  }
  const auto put = [&](const std::string& name, const std::vector<float>& floats,
                       std::vector<int64_t> shape) {
    std::string bytes(reinterpret_cast<const char*>(floats.data()), floats.size() * sizeof(float));
    pair.gguf.tensors()[name] = {0, std::move(shape), std::move(bytes)};
  };
  put(into + "attn_k_b.weight", keys, {heads, rank, nope});
  put(into + "attn_v_b.weight", values, {heads, value, rank});
}

inline GgufPair DeepseekAsGguf(const std::string& source, const GgufForm& form, bool split_kv) {
  GgufConverter to(source, "deepseek2", form);
  MoveTop(&to, "deepseek2");
  const nlohmann::json& config = to.pair().config;
  const bool v3 = config["model_type"] == "deepseek_v3";
  const int64_t rotated = to.Config("qk_rope_head_dim"), rank = to.Config("kv_lora_rank");
  const int64_t key = to.Config("qk_nope_head_dim") + rotated, value = to.Config("v_head_dim");
  to.Int("attention.head_count_kv", split_kv ? 1 : to.Config("num_attention_heads"));
  to.Int("attention.kv_lora_rank", rank);
  if (v3) to.Int("attention.q_lora_rank", to.Config("q_lora_rank"));
  to.Int("attention.key_length", split_kv ? rank + rotated : key);
  to.Int("attention.value_length", split_kv ? rank : value);
  if (split_kv) {
    to.Int("attention.key_length_mla", key);
    to.Int("attention.value_length_mla", value);
  }
  to.Int("rope.dimension_count", rotated);
  to.Int("leading_dense_block_count", to.Config("first_k_dense_replace"));
  to.Int("expert_count", to.Config("n_routed_experts"));
  to.Int("expert_shared_count", to.Config("n_shared_experts"));
  to.Int("expert_feed_forward_length", to.Config("moe_intermediate_size"));
  to.Float("expert_weights_scale", config["routed_scaling_factor"]);
  to.pair().gguf.Bool("deepseek2.expert_weights_norm", config["norm_topk_prob"]);
  if (v3) {
    to.Int("expert_gating_func", 2);
    to.Int("expert_group_count", to.Config("n_group"));
    to.Int("expert_group_used_count", to.Config("topk_group"));
  }
  const nlohmann::json& scaling = config["rope_scaling"];
  to.pair().gguf.Text("deepseek2.rope.scaling.type", "yarn");
  to.Float("rope.scaling.factor", scaling["factor"]);
  to.Int("rope.scaling.original_context_length", scaling["original_max_position_embeddings"]);
  to.Float("rope.scaling.yarn_log_multiplier", 0.1 * scaling["mscale_all_dim"].get<double>());
  for (int64_t layer = 0; layer < to.Config("num_hidden_layers"); ++layer) {
    const std::string from = fmt::format("model.layers.{}.", layer);
    const std::string into = fmt::format("blk.{}.", layer);
    MoveAttention(&to, from, into);
    to.Move(from + "post_attention_layernorm.weight", into + "ffn_norm.weight");
    for (const auto& [folder, gguf] :
         {std::pair("q_a_proj", "attn_q_a"), std::pair("q_a_layernorm", "attn_q_a_norm"),
          std::pair("q_b_proj", "attn_q_b"), std::pair("kv_a_proj_with_mqa", "attn_kv_a_mqa"),
          std::pair("kv_a_layernorm", "attn_kv_a_norm")}) {
      to.MoveIfThere(fmt::format("{}self_attn.{}.weight", from, folder),
                     fmt::format("{}{}.weight", into, gguf));
    }
    if (split_kv) {
      SplitKv(&to, from + "self_attn.kv_b_proj.weight", into);
    } else {
      to.Move(from + "self_attn.kv_b_proj.weight", into + "attn_kv_b.weight");
    }
    for (const char* matrix : {"gate", "up", "down"}) {
      to.MoveIfThere(fmt::format("{}mlp.{}_proj.weight", from, matrix),
                     fmt::format("{}ffn_{}.weight", into, matrix));
      to.MoveIfThere(fmt::format("{}mlp.shared_experts.{}_proj.weight", from, matrix),
                     fmt::format("{}ffn_{}_shexp.weight", into, matrix));
    }
    if (layer < to.Config("first_k_dense_replace")) continue;
    to.Move(from + "mlp.gate.weight", into + "ffn_gate_inp.weight");
    to.MoveIfThere(from + "mlp.gate.e_score_correction_bias", into + "exp_probs_b.bias");
    MoveExpertsOf(&to, from + "mlp.experts.", into, to.Config("n_routed_experts"),
                  {"gate_proj", "up_proj", "down_proj"});
  }
  return to.pair();
}

// Gate and up apart, every matrix by outputs. `form` must be exact for the values.
inline GgufPair GptOssAsGguf(const std::string& source, const GgufForm& form) {
  GgufConverter to(source, "gpt-oss", form);
  MoveTop(&to, "gpt-oss");
  GgufPair& pair = to.pair();
  to.Int("attention.head_count_kv", to.Config("num_key_value_heads"));
  to.Int("attention.key_length", to.Config("head_dim"));
  to.Int("attention.value_length", to.Config("head_dim"));
  to.Int("attention.sliding_window", to.Config("sliding_window"));
  to.Int("expert_count", to.Config("num_local_experts"));
  to.Int("expert_feed_forward_length", to.Config("intermediate_size"));
  pair.gguf.Text("gpt-oss.rope.scaling.type", "yarn");
  to.Float("rope.scaling.factor", pair.config["rope_scaling"]["factor"]);
  to.Int("rope.scaling.original_context_length",
         pair.config["rope_scaling"]["original_max_position_embeddings"]);
  const int64_t experts = to.Config("num_local_experts"), hidden = to.Config("hidden_size");
  const int64_t wide = to.Config("intermediate_size");
  for (int64_t layer = 0; layer < to.Config("num_hidden_layers"); ++layer) {
    const std::string from = fmt::format("model.layers.{}.", layer);
    const std::string into = fmt::format("blk.{}.", layer);
    MoveAttention(&to, from, into);
    to.Move(from + "post_attention_layernorm.weight", into + "post_attention_norm.weight");
    to.Move(from + "self_attn.sinks", into + "attn_sinks.weight");
    to.Move(from + "mlp.router.weight", into + "ffn_gate_inp.weight");
    to.Move(from + "mlp.router.bias", into + "ffn_gate_inp.bias");
    const std::vector<float> gate_up = FloatsOf(pair.plain.at(from + "mlp.experts.gate_up_proj"));
    const std::vector<float> down = FloatsOf(pair.plain.at(from + "mlp.experts.down_proj"));
    const std::vector<float> bias = FloatsOf(pair.plain.at(from + "mlp.experts.gate_up_proj_bias"));
    std::vector<float> gate, up, down_rows, gate_bias, up_bias;
    for (int64_t e = 0; e < experts; ++e) {
      for (int64_t w = 0; w < wide; ++w) {
        for (int64_t h = 0; h < hidden; ++h) {
          gate.push_back(gate_up[(e * hidden + h) * 2 * wide + 2 * w]);
          up.push_back(gate_up[(e * hidden + h) * 2 * wide + 2 * w + 1]);
        }
        gate_bias.push_back(bias[(e * wide + w) * 2]);
        up_bias.push_back(bias[(e * wide + w) * 2 + 1]);
      }
      for (int64_t h = 0; h < hidden; ++h) {
        for (int64_t w = 0; w < wide; ++w) down_rows.push_back(down[(e * wide + w) * hidden + h]);
      }
    }
    const auto put = [&](const char* name, std::vector<float> values,
                         const std::vector<int64_t>& shape) {
      pair.gguf.tensors()[into + name] = to.Encode(&values, shape, name);
    };
    put("ffn_gate_exps.weight", gate, {experts, wide, hidden});
    put("ffn_up_exps.weight", up, {experts, wide, hidden});
    put("ffn_down_exps.weight", down_rows, {experts, hidden, wide});
    put("ffn_gate_exps.bias", gate_bias, {experts, wide});
    put("ffn_up_exps.bias", up_bias, {experts, wide});
    put("ffn_down_exps.bias", FloatsOf(pair.plain.at(from + "mlp.experts.down_proj_bias")),
        {experts, hidden});
  }
  return pair;
}

}  // namespace expertflow::testing

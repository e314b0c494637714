#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>

#include "model/checkpoint/gguf_model.h"

namespace expertflow {
namespace {

struct Name {
  std::string_view folder;
  std::string_view gguf;
};

constexpr Name kTop[] = {
    {"model.embed_tokens.weight", "token_embd.weight"},
    {"model.norm.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"},
};

// Of a layer, without ".weight" and ".bias".
constexpr Name kLayer[] = {
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"self_attn.q_a_proj", "attn_q_a"},
    {"self_attn.q_a_layernorm", "attn_q_a_norm"},
    {"self_attn.q_b_proj", "attn_q_b"},
    {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
    {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
    {"self_attn.kv_b_proj", "attn_kv_b"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.router", "ffn_gate_inp"},
    {"block_sparse_moe.gate", "ffn_gate_inp"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
    {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
    {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
    {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
};

constexpr Name kExpert[] = {
    {"gate_proj", "ffn_gate"}, {"up_proj", "ffn_up"}, {"down_proj", "ffn_down"},
    {"w1", "ffn_gate"},        {"w3", "ffn_up"},      {"w2", "ffn_down"},
};

template <size_t kCount>
std::string_view Translate(const Name (&names)[kCount], std::string_view folder) {
  const auto* at = std::find_if(std::begin(names), std::end(names),
                                [&](const Name& name) { return name.folder == folder; });
  return at == std::end(names) ? "" : at->gguf;
}

// Takes "17." from the front.
std::optional<int64_t> TakeNumber(std::string_view* text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || end == text->data() + text->size() || *end != '.') return {};
  text->remove_prefix(static_cast<size_t>(end - text->data()) + 1);
  return number;
}

}  // namespace

GgufPlace FindInGguf(std::string_view architecture, std::string_view name) {
  constexpr std::string_view kLayers = "model.layers.";
  GgufPlace place;
  place.tensor = Translate(kTop, name);
  if (!name.starts_with(kLayers)) return place;
  name.remove_prefix(kLayers.size());
  const auto layer = TakeNumber(&name);
  if (!layer) return place;
  const std::string prefix = fmt::format("blk.{}.", *layer);
  if (name == "self_attn.sinks") {
    place.tensor = prefix + "attn_sinks.weight";
    return place;
  }
  if (name == "mlp.gate.e_score_correction_bias") {
    place.tensor = prefix + "exp_probs_b.bias";
    return place;
  }
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return place;
  const std::string_view suffix = name.substr(dot);  // ".weight", ".bias"
  name = name.substr(0, dot);
  for (const std::string_view experts : {"mlp.experts.", "block_sparse_moe.experts."}) {
    if (!name.starts_with(experts)) continue;
    name.remove_prefix(experts.size());
    const auto expert = TakeNumber(&name);
    const std::string_view matrix = Translate(kExpert, name);
    if (!expert || matrix.empty()) return place;
    place.tensor = fmt::format("{}{}_exps{}", prefix, matrix, suffix);
    place.expert = *expert;
    place.single = fmt::format("{}{}.{}{}", prefix, matrix, *expert, suffix);
    return place;
  }
  std::string_view gguf = Translate(kLayer, name);
  if (architecture == "gpt-oss" && gguf == "ffn_norm") gguf = "post_attention_norm";
  if (gguf.empty()) return place;
  place.tensor = fmt::format("{}{}{}", prefix, gguf, suffix);
  place.rotated = architecture == "llama" && (gguf == "attn_q" || gguf == "attn_k");
  return place;
}

}  // namespace expertflow

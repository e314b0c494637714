#include "model/arch/config_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace expertflow {
namespace {

// Training, bookkeeping and output switches.
constexpr auto kInertKeys = std::to_array<std::string_view>({
    "_name_or_path",
    "_attn_implementation",
    "_commit_hash",
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "bos_token_id",
    "bad_words_ids",
    "embd_pdrop",
    "finetuning_task",
    "id2label",
    "initializer_range",
    "label2id",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "problem_type",
    "pretraining_tp",
    "resid_pdrop",
    "return_dict",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "sep_token_id",
    "task_specific_params",
    "tokenizer_class",
    "torchscript",
    "transformers_version",
    "use_cache",
});

constexpr auto kUnsupportedKeys = std::to_array<std::string_view>({
    "compression_config",
    "quantization",
    "is_encoder_decoder",
    "add_cross_attention",
    "cross_attention_hidden_size",
    "pruned_heads",
});

}  // namespace

Status RefuseUnknownKeys(const JsonConfig& config) {
  for (const std::string_view key : kInertKeys) config.Ignore(key);
  const auto unread = config.UnreadKeys();
  if (unread.empty()) return OkStatus();
  return config.Error(unread.front(),
                      "this setting is not known for this architecture, so its effect cannot be "
                      "honoured; remove it if it has none");
}

Status RefuseCommonUnsupported(const JsonConfig& config) {
  for (const std::string_view key : kUnsupportedKeys) {
    if (!config.Has(key)) continue;
    const auto as_bool = config.Bool(key);
    if (as_bool.ok() && !*as_bool) continue;     // an explicit "off"
    if (key == "cross_attention_hidden_size") {  // without effect unless add_cross_attention
      config.Ignore(key);
      continue;
    }
    if (key == "pruned_heads") {
      const auto heads = config.Object(key);
      if (heads.ok() && heads->UnreadKeys().empty()) continue;  // no layer is listed
    }
    return config.Error(key, "is not supported");
  }
  for (const char* key : {"dtype", "torch_dtype"}) {
    ASSIGN_OR_RETURN(const std::string dtype, config.StringOr(key, "bfloat16"));
    const auto known = {"bfloat16", "float16", "float32"};
    if (std::find(known.begin(), known.end(), dtype) == known.end()) {
      return config.Error(
          key, fmt::format("expected bfloat16, float16 or float32, found \"{}\"", dtype));
    }
  }
  return OkStatus();
}

}  // namespace expertflow

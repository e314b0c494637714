#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <set>

#include "common/json_string.h"
#include "model/checkpoint/gguf_model.h"

namespace expertflow {
namespace {

constexpr int64_t kSizeMax = int64_t{1} << 26;

// Without effect on inference, or written out in the tensors' shapes.
constexpr auto kInertGgufKeys = std::to_array<std::string_view>({
    "rope.scaling.finetuned",
    "vocab_size",
});

// The members of the config.json, and which keys of the file were read for them. The first error
// stays.
class ConfigWriter {
 public:
  ConfigWriter(const GgufFile& file, std::string architecture)
      : file_(file), architecture_(std::move(architecture)) {}

  std::string Key(std::string_view name) {
    read_.emplace(name);
    return fmt::format("{}.{}", architecture_, name);
  }
  bool Has(std::string_view name) { return file_.FindValue(Key(name)) != nullptr; }
  int64_t Int(std::string_view name) { return Keep(file_.Int(Key(name), 0, kSizeMax)); }
  int64_t IntOr(std::string_view name, int64_t otherwise) {
    return Has(name) ? Int(name) : otherwise;
  }
  std::string Decimal(std::string_view name) {
    auto text = file_.Decimal(Key(name));
    if (text.ok()) return *text;
    Fail(text.status());
    return "0";
  }
  std::string DecimalOr(std::string_view name, const char* otherwise) {
    return Has(name) ? Decimal(name) : otherwise;
  }
  bool BoolOr(std::string_view name, bool otherwise) {
    return Keep(file_.BoolOr(Key(name), otherwise));
  }
  // The size of a tensor that must be there, counted from the innermost dimension.
  int64_t Size(const std::string& tensor, size_t from_inner) {
    const TensorInfo* info = file_.Find(tensor);
    if (info != nullptr && info->shape.size() > from_inner) {
      return info->shape[info->shape.size() - 1 - from_inner];
    }
    Fail(InvalidArgument(fmt::format("{}: tensor '{}' is missing", file_.path(), tensor)));
    return 1;
  }
  // Of layer 0, or the first one that has it.
  bool HasInLayers(std::string_view tensor) {
    return file_.Find(fmt::format("blk.0.{}", tensor)) != nullptr;
  }
  void Refuse(std::string_view name, std::string_view what) { Fail(file_.Error(Key(name), what)); }
  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  void PutRaw(std::string_view key, std::string_view value) {
    json_ += fmt::format("{}\n  {}: {}", json_.empty() ? "" : ",", JsonQuoted(key), value);
  }
  void Put(std::string_view key, int64_t value) { PutRaw(key, fmt::format("{}", value)); }
  void PutBool(std::string_view key, bool value) { PutRaw(key, value ? "true" : "false"); }
  void PutText(std::string_view key, std::string_view value) { PutRaw(key, JsonQuoted(value)); }

  // Refuses what nobody has read.
  Result<std::string> Finish() {
    RETURN_IF_ERROR(status_);
    for (const GgufValue& value : file_.values()) {
      const std::string prefix = architecture_ + ".";
      if (!value.key.starts_with(prefix)) continue;
      const std::string_view name = std::string_view(value.key).substr(prefix.size());
      if (read_.contains(name) ||
          std::find(kInertGgufKeys.begin(), kInertGgufKeys.end(), name) != kInertGgufKeys.end()) {
        continue;
      }
      return file_.Error(value.key, "this setting is not known, so its effect cannot be honoured");
    }
    return fmt::format("{{{}\n}}\n", json_);
  }
  const GgufFile& file() const { return file_; }

 private:
  template <typename T>
  T Keep(Result<T> result) {
    if (result.ok()) return *result;
    Fail(result.status());
    return T{1};
  }

  const GgufFile& file_;
  const std::string architecture_;
  std::set<std::string, std::less<>> read_;
  std::string json_;
  Status status_;
};

void PutCommon(ConfigWriter* out) {
  const GgufFile& file = out->file();
  out->Put("num_hidden_layers", out->Int("block_count"));
  out->Put("hidden_size", out->Int("embedding_length"));
  out->Put("num_attention_heads", out->Int("attention.head_count"));
  out->Put("max_position_embeddings", out->Int("context_length"));
  out->Put("vocab_size", out->Size("token_embd.weight", 1));
  out->PutRaw("rms_norm_eps", out->Decimal("attention.layer_norm_rms_epsilon"));
  out->PutRaw("rope_theta", out->DecimalOr("rope.freq_base", "10000"));
  out->PutBool("tie_word_embeddings", file.Find("output.weight") == nullptr);
  out->PutText("dtype", "float32");
  if (file.FindValue("tokenizer.ggml.eos_token_id") != nullptr) {
    const auto eos = file.Int("tokenizer.ggml.eos_token_id", 0, kSizeMax);
    if (eos.ok()) {
      out->Put("eos_token_id", *eos);
    } else {
      out->Fail(eos.status());
    }
  }
  out->PutRaw("quantization_config", R"({"quant_method": "gguf"})");
}

// Heads of equal keys and values that are rotated as a whole.
void PutHeads(ConfigWriter* out) {
  const int64_t heads = std::max<int64_t>(1, out->Int("attention.head_count"));
  const int64_t head_dim = out->IntOr("attention.key_length", out->Int("embedding_length") / heads);
  out->Put("num_key_value_heads", out->IntOr("attention.head_count_kv", heads));
  out->Put("head_dim", head_dim);
  for (const char* name : {"attention.value_length", "rope.dimension_count"}) {
    if (out->IntOr(name, head_dim) != head_dim) {
      out->Refuse(name, fmt::format("expected {}, as keys have", head_dim));
    }
  }
}

void PutExperts(ConfigWriter* out, const char* count, const char* size) {
  out->Put(count, out->Int("expert_count"));
  out->Put("num_experts_per_tok", out->Int("expert_used_count"));
  out->Put(size,
           out->IntOr("expert_feed_forward_length", out->Size("blk.0.ffn_gate_exps.weight", 1)));
}

// "none", or what the family's own kind of scaling is.
std::string ScalingType(ConfigWriter* out) {
  auto type = out->file().TextOr(out->Key("rope.scaling.type"), "none");
  if (type.ok()) return *type;
  out->Fail(type.status());
  return "none";
}

// Linear scaling or none; other kinds are refused.
void PutPlainScaling(ConfigWriter* out) {
  const std::string type = ScalingType(out);
  if (type == "linear") {
    out->PutRaw("rope_scaling", fmt::format(R"({{"rope_type": "linear", "factor": {}}})",
                                            out->Decimal("rope.scaling.factor")));
  } else if (type == "yarn") {
    out->PutRaw("rope_scaling", fmt::format(R"({{"rope_type": "yarn", "factor": {}, )"
                                            R"("original_max_position_embeddings": {}}})",
                                            out->Decimal("rope.scaling.factor"),
                                            out->Int("rope.scaling.original_context_length")));
  } else if (type != "none") {
    out->Refuse("rope.scaling.type", fmt::format("'{}' is not supported", type));
  }
}

// Softmax over all experts, as the architectures without the key have it.
void ExpectGating(ConfigWriter* out, int64_t expected) {
  const int64_t found = out->IntOr("expert_gating_func", expected);
  if (found != expected) {
    out->Refuse("expert_gating_func", fmt::format("expected {}, found {}", expected, found));
  }
}

void PutQwen2Moe(ConfigWriter* out) {
  out->PutRaw("architectures", R"(["Qwen2MoeForCausalLM"])");
  PutHeads(out);
  PutExperts(out, "num_experts", "moe_intermediate_size");
  PutPlainScaling(out);
  ExpectGating(out, 1);
  out->Put("intermediate_size", std::max<int64_t>(1, out->IntOr("feed_forward_length", 1)));
  out->Put(
      "shared_expert_intermediate_size",
      out->IntOr("expert_shared_feed_forward_length", out->Size("blk.0.ffn_gate_shexp.weight", 1)));
  out->PutBool("norm_topk_prob", out->BoolOr("expert_weights_norm", false));
  out->PutBool("qkv_bias", out->HasInLayers("attn_q.bias"));
}

void PutQwen3Moe(ConfigWriter* out) {
  out->PutRaw("architectures", R"(["Qwen3MoeForCausalLM"])");
  PutHeads(out);
  PutExperts(out, "num_experts", "moe_intermediate_size");
  PutPlainScaling(out);
  ExpectGating(out, 1);
  out->Put("intermediate_size", std::max<int64_t>(1, out->IntOr("feed_forward_length", 1)));
  out->PutBool("norm_topk_prob", out->BoolOr("expert_weights_norm", true));
}

void PutMixtral(ConfigWriter* out) {
  if (out->IntOr("expert_count", 0) == 0) {
    out->Refuse("expert_count", "is missing: a model without experts is not supported");
    return;
  }
  out->PutRaw("architectures", R"(["MixtralForCausalLM"])");
  PutHeads(out);
  out->Put("num_local_experts", out->Int("expert_count"));
  out->Put("num_experts_per_tok", out->Int("expert_used_count"));
  out->Put("intermediate_size",
           out->IntOr("expert_feed_forward_length", out->Int("feed_forward_length")));
  PutPlainScaling(out);
  ExpectGating(out, 1);
  if (out->Has("attention.sliding_window")) {
    out->Put("sliding_window", out->Int("attention.sliding_window"));
  }
}

void PutOlmoe(ConfigWriter* out) {
  out->PutRaw("architectures", R"(["OlmoeForCausalLM"])");
  PutHeads(out);
  out->Put("num_experts", out->Int("expert_count"));
  out->Put("num_experts_per_tok", out->Int("expert_used_count"));
  out->Put("intermediate_size",
           out->IntOr("expert_feed_forward_length", out->Int("feed_forward_length")));
  PutPlainScaling(out);
  ExpectGating(out, 1);
  if (out->Has("attention.clamp_kqv")) out->PutRaw("clip_qkv", out->Decimal("attention.clamp_kqv"));
  out->PutBool("norm_topk_prob", out->BoolOr("expert_weights_norm", false));
}

// Yarn as DeepSeek has it: the file keeps a tenth of mscale_all_dim, and mscale is the same.
void PutDeepseekScaling(ConfigWriter* out) {
  const std::string type = ScalingType(out);
  if (type == "none") return;
  if (type != "yarn") {
    out->Refuse("rope.scaling.type", fmt::format("'{}' is not supported here", type));
    return;
  }
  const double tenth =
      std::strtod(out->DecimalOr("rope.scaling.yarn_log_multiplier", "0").c_str(), nullptr);
  std::string mscale;
  if (tenth > 0) {
    const double all_dim = std::round(tenth * 1e7) / 1e6;
    mscale = fmt::format(R"(, "mscale": {0}, "mscale_all_dim": {0})", all_dim);
  }
  out->PutRaw(
      "rope_scaling",
      fmt::format(R"({{"type": "yarn", "factor": {}, "original_max_position_embeddings": {}, )"
                  R"("beta_fast": {}, "beta_slow": {}{}}})",
                  out->Decimal("rope.scaling.factor"),
                  out->Int("rope.scaling.original_context_length"),
                  out->DecimalOr("rope.scaling.yarn_beta_fast", "32"),
                  out->DecimalOr("rope.scaling.yarn_beta_slow", "1"), mscale));
}

void PutDeepseek(ConfigWriter* out) {
  const int64_t gating = out->IntOr("expert_gating_func", 1);
  if (gating != 1 && gating != 2) {
    out->Refuse("expert_gating_func", fmt::format("expected 1 or 2, found {}", gating));
  }
  const bool sigmoid = gating == 2;
  out->PutText("model_type", sigmoid ? "deepseek_v3" : "deepseek_v2");
  out->PutRaw("architectures",
              sigmoid ? R"(["DeepseekV3ForCausalLM"])" : R"(["DeepseekV2ForCausalLM"])");
  const int64_t heads = out->Int("attention.head_count");
  const int64_t kv_heads = out->IntOr("attention.head_count_kv", heads);
  const int64_t rank = out->Int("attention.kv_lora_rank");
  const int64_t rotated = out->Int("rope.dimension_count");
  // Newer files describe the compressed cache as one head and keep the heads' own sizes beside.
  const bool compressed = out->Has("attention.key_length_mla");
  const int64_t key = out->Int(compressed ? "attention.key_length_mla" : "attention.key_length");
  const int64_t value =
      out->Int(compressed ? "attention.value_length_mla" : "attention.value_length");
  if (kv_heads != (compressed ? 1 : heads)) {
    out->Refuse("attention.head_count_kv", fmt::format("{} is not what is known", kv_heads));
  }
  if (compressed && out->IntOr("attention.key_length", rank + rotated) != rank + rotated) {
    out->Refuse("attention.key_length", "is not kv_lora_rank and rope.dimension_count together");
  }
  if (compressed && out->IntOr("attention.value_length", rank) != rank) {
    out->Refuse("attention.value_length", "is not kv_lora_rank");
  }
  if (key <= rotated) out->Refuse("rope.dimension_count", "leaves nothing of a key");
  if (const int64_t q_rank = out->IntOr("attention.q_lora_rank", 0); q_rank > 0) {
    out->Put("q_lora_rank", q_rank);
  }
  out->Put("kv_lora_rank", rank);
  out->Put("qk_nope_head_dim", key - rotated);
  out->Put("qk_rope_head_dim", rotated);
  out->Put("v_head_dim", value);
  out->Put("intermediate_size", out->Int("feed_forward_length"));
  out->Put("first_k_dense_replace", out->IntOr("leading_dense_block_count", 0));
  out->Put("n_routed_experts", out->Int("expert_count"));
  if (const int64_t shared = out->IntOr("expert_shared_count", 0); shared > 0) {
    out->Put("n_shared_experts", shared);
  }
  out->Put("num_experts_per_tok", out->Int("expert_used_count"));
  out->Put("moe_intermediate_size", out->Int("expert_feed_forward_length"));
  out->PutRaw("routed_scaling_factor", out->DecimalOr("expert_weights_scale", "1"));
  out->PutBool("norm_topk_prob", out->BoolOr("expert_weights_norm", false));
  const int64_t groups = out->IntOr("expert_group_count", 1);
  out->Put("n_group", groups);
  out->Put("topk_group", out->IntOr("expert_group_used_count", 1));
  out->PutText("scoring_func", sigmoid ? "sigmoid" : "softmax");
  out->PutText("topk_method", sigmoid      ? "noaux_tc"
                              : groups > 1 ? "group_limited_greedy"
                                           : "greedy");
  PutDeepseekScaling(out);
}

void PutGptOss(ConfigWriter* out) {
  out->PutRaw("architectures", R"(["GptOssForCausalLM"])");
  PutHeads(out);
  PutExperts(out, "num_local_experts", "intermediate_size");
  ExpectGating(out, 3);
  out->Put("sliding_window", out->Int("attention.sliding_window"));
  out->IntOr("feed_forward_length", 0);  // the experts'
  const std::string type = ScalingType(out);
  if (type == "yarn") {
    out->PutRaw(
        "rope_scaling",
        fmt::format(R"({{"rope_type": "yarn", "factor": {}, "beta_fast": 32, "beta_slow": 1, )"
                    R"("original_max_position_embeddings": {}, "truncate": false}})",
                    out->Decimal("rope.scaling.factor"),
                    out->Int("rope.scaling.original_context_length")));
  } else if (type != "none") {
    out->Refuse("rope.scaling.type", fmt::format("'{}' is not supported", type));
  }
}

struct ArchitectureRow {
  std::string_view architecture;
  void (*put)(ConfigWriter* out);
};
constexpr ArchitectureRow kArchitectures[] = {
    {"qwen2moe", PutQwen2Moe}, {"qwen3moe", PutQwen3Moe},  {"llama", PutMixtral},
    {"olmoe", PutOlmoe},       {"deepseek2", PutDeepseek}, {"gpt-oss", PutGptOss},
};

}  // namespace

Result<std::string> GgufConfigJson(const GgufFile& file) {
  ASSIGN_OR_RETURN(const std::string architecture, file.Text("general.architecture"));
  const auto* row = std::find_if(
      std::begin(kArchitectures), std::end(kArchitectures),
      [&](const ArchitectureRow& known) { return known.architecture == architecture; });
  if (row == std::end(kArchitectures)) {
    std::string known;
    for (const ArchitectureRow& other : kArchitectures) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", other.architecture);
    }
    return file.Error("general.architecture",
                      fmt::format("'{}' is not supported; known are {}", architecture, known));
  }
  ConfigWriter out(file, architecture);
  PutCommon(&out);
  row->put(&out);
  return out.Finish();
}

}  // namespace expertflow

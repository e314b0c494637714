#include "model/checkpoint/quantisation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <initializer_list>
#include <string>

namespace expertflow {
namespace {

constexpr const char* kKey = "quantization_config";

// How the checkpoint was made, or how some program is to compute with it.
constexpr auto kInertKeys = std::to_array<const char*>({
    "act_group_aware",
    "backend",
    "batch_size",
    "block_name_to_quantize",
    "cache_block_outputs",
    "damp_percent",
    "dataset",
    "dequantize",
    "disable_exllama",
    "do_fuse",
    "exllama_config",
    "fuse_max_seq_len",
    "lm_head",
    "max_input_length",
    "meta",
    "model_file_base_name",
    "model_name_or_path",
    "model_seqlen",
    "module_name_preceding_first_block",
    "modules_in_block_to_quantize",
    "modules_to_fuse",
    "pad_token_id",
    "static_groups",
    "tokenizer",
    "true_sequential",
    "use_cuda_fp16",
    "use_exllama",
    "version",
});

Status Expect(const JsonConfig& json, const char* key, std::initializer_list<const char*> known) {
  ASSIGN_OR_RETURN(std::string found, json.StringOr(key, *known.begin()));
  std::string lower = found;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (std::find(known.begin(), known.end(), lower) != known.end()) return OkStatus();
  std::string list;
  for (const char* name : known) list += fmt::format("{}\"{}\"", list.empty() ? "" : " or ", name);
  return json.Error(key, fmt::format("expected {}, found \"{}\"", list, found));
}

// An object that must be absent or empty.
Status ExpectEmpty(const JsonConfig& json, const char* key) {
  if (!json.Has(key)) return OkStatus();
  const auto object = json.Object(key);
  if (object.ok() && object->UnreadKeys().empty()) return OkStatus();
  return json.Error(key, "is not supported");
}

Status ExpectFalse(const JsonConfig& json, const char* key) {
  ASSIGN_OR_RETURN(const bool on, json.BoolOr(key, false));
  return on ? json.Error(key, "true is not supported") : OkStatus();
}

Status ReadFp8(const JsonConfig& json, Quantisation* result) {
  RETURN_IF_ERROR(Expect(json, "fmt", {"e4m3", "float8_e4m3fn"}));
  RETURN_IF_ERROR(Expect(json, "activation_scheme", {"dynamic", "static"}));
  RETURN_IF_ERROR(Expect(json, "scale_fmt", {"float", "ue8m0"}));
  if (json.Has("kv_cache_scheme")) return json.Error("kv_cache_scheme", "is not supported");
  ASSIGN_OR_RETURN(const auto block, json.IntList("weight_block_size", 1, 1 << 20));
  if (block.empty()) return OkStatus();
  if (block.size() != 2) {
    return json.Error("weight_block_size",
                      fmt::format("expected rows and columns, found {} numbers", block.size()));
  }
  result->block_rows = static_cast<int32_t>(block[0]);
  result->block_cols = static_cast<int32_t>(block[1]);
  return OkStatus();
}

Status ReadGroups(const JsonConfig& json, const char* bits_key, const char* group_key,
                  Quantisation* result) {
  ASSIGN_OR_RETURN(result->bits, json.Int(bits_key, 1, 32));
  ASSIGN_OR_RETURN(result->group_size, json.IntOr(group_key, -1, 1 << 20, 128));
  if (result->group_size != 0) return OkStatus();
  return json.Error(group_key, "expected a positive number, or -1 for one group");
}

Status ReadGptq(const JsonConfig& json, Quantisation* result) {
  RETURN_IF_ERROR(ReadGroups(json, "bits", "group_size", result));
  if (result->bits != 4 && result->bits != 8) {
    return json.Error("bits", fmt::format("{} is not supported; 4 and 8 are", result->bits));
  }
  ASSIGN_OR_RETURN(result->act_order, json.BoolOr("desc_act", false));
  ASSIGN_OR_RETURN(result->symmetric, json.BoolOr("sym", true));  // the writers' default
  RETURN_IF_ERROR(ExpectFalse(json, "is_marlin_format"));
  RETURN_IF_ERROR(ExpectFalse(json, "hyb_act"));
  RETURN_IF_ERROR(ExpectEmpty(json, "dynamic"));
  RETURN_IF_ERROR(Expect(json, "pack_dtype", {"int32"}));
  for (const char* key : {"checkpoint_format", "format"}) {
    RETURN_IF_ERROR(Expect(json, key, {"gptq", "gptq_v2"}));
  }
  ASSIGN_OR_RETURN(const std::string newer, json.StringOr("format", "gptq"));
  ASSIGN_OR_RETURN(const std::string format, json.StringOr("checkpoint_format", newer));
  result->zero_offset = format == "gptq_v2" ? 0 : 1;
  return OkStatus();
}

Status ReadAwq(const JsonConfig& json, Quantisation* result) {
  const bool older = json.Has("w_bit");
  RETURN_IF_ERROR(
      ReadGroups(json, older ? "w_bit" : "bits", older ? "q_group_size" : "group_size", result));
  if (result->bits != 4) {
    return json.Error(older ? "w_bit" : "bits",
                      fmt::format("{} is not supported; 4 is", result->bits));
  }
  RETURN_IF_ERROR(Expect(json, "version", {"gemm"}));
  RETURN_IF_ERROR(Expect(json, "backend", {"autoawq"}));
  ASSIGN_OR_RETURN(const bool zero_point, json.BoolOr("zero_point", true));
  return zero_point ? OkStatus() : json.Error("zero_point", "false is not supported");
}

}  // namespace

std::string_view QuantisationName(Quantisation::Method method) {
  switch (method) {
    case Quantisation::Method::kNone: return "none";
    case Quantisation::Method::kFp8: return "fp8";
    case Quantisation::Method::kMxfp4: return "mxfp4";
    case Quantisation::Method::kGptq: return "gptq";
    case Quantisation::Method::kAwq: return "awq";
    case Quantisation::Method::kGguf: return "gguf";
  }
  return "none";
}

Result<Quantisation> ReadQuantisation(const JsonConfig& config) {
  Quantisation result;
  if (!config.Has(kKey)) return result;
  ASSIGN_OR_RETURN(const JsonConfig json, config.Object(kKey));
  ASSIGN_OR_RETURN(const std::string method, json.String("quant_method"));
  // Which modules were left as they are shows in the tensors.
  for (const char* key : {"modules_to_not_convert", "ignored_layers"}) {
    RETURN_IF_ERROR(json.StringList(key).status());
  }
  if (method == "fp8") {
    result.method = Quantisation::Method::kFp8;
    RETURN_IF_ERROR(ReadFp8(json, &result));
  } else if (method == "mxfp4") {
    result.method = Quantisation::Method::kMxfp4;
  } else if (method == "gptq") {
    result.method = Quantisation::Method::kGptq;
    RETURN_IF_ERROR(ReadGptq(json, &result));
  } else if (method == "awq") {
    result.method = Quantisation::Method::kAwq;
    RETURN_IF_ERROR(ReadAwq(json, &result));
  } else if (method == "gguf") {  // of a config that was made from a GGUF file
    result.method = Quantisation::Method::kGguf;
  } else {
    return json.Error(
        "quant_method",
        fmt::format("'{}' is not supported; known are fp8, mxfp4, gptq and awq", method));
  }
  for (const char* key : kInertKeys) json.Ignore(key);
  return result;
}

DType StoredFloatType(const Quantisation& quantisation, DType unquantised) {
  switch (quantisation.method) {
    case Quantisation::Method::kNone: return unquantised;
    case Quantisation::Method::kMxfp4: return DType::kBF16;
    default: return DType::kF32;
  }
}

DType StoredExpertType(const Quantisation& quantisation, DType unquantised) {
  const auto whole = [](int32_t size) {
    return size <= 0 || size % static_cast<int32_t>(kQuantisedGroup) == 0;
  };
  switch (quantisation.method) {
    case Quantisation::Method::kMxfp4: return DType::kMxfp4;
    case Quantisation::Method::kFp8:
      if (whole(quantisation.block_cols)) return DType::kFp8;
      break;
    case Quantisation::Method::kGptq:
    case Quantisation::Method::kAwq:
      if (quantisation.act_order || !whole(quantisation.group_size)) break;
      if (quantisation.bits == 4) return quantisation.symmetric ? DType::kInt4 : DType::kUInt4;
      if (quantisation.symmetric) return DType::kInt8;
      break;
    default: break;
  }
  return StoredFloatType(quantisation, unquantised);
}

}  // namespace expertflow

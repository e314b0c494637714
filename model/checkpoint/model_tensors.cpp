#include "model/checkpoint/model_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include "model/checkpoint/gguf_decoder.h"
#include "model/checkpoint/gguf_model.h"

namespace expertflow {
namespace {

constexpr std::string_view kWeightSuffix = ".weight";

// Finds tensors and remembers which of the checkpoint's were used.
class Resolver {
 public:
  Resolver(const WeightPlan& plan, const Checkpoint& checkpoint)
      : plan_(plan), checkpoint_(checkpoint) {
    if (checkpoint.gguf() == nullptr) return;
    const auto architecture = checkpoint.gguf()->Text("general.architecture");
    if (architecture.ok()) architecture_ = *architecture;
  }

  Result<ModelTensor> Find(const TensorSpec& spec);
  // Whatever was not used is ignored by the plan, or has no effect beside a quantised tensor.
  Status CheckRest() const;

 private:
  const TensorInfo* Use(const std::string& name) {
    const TensorInfo* info = checkpoint_.Find(name);
    if (info != nullptr) used_.insert(info->name);
    return info;
  }
  Status Missing(const TensorSpec& spec, const std::string& what) const {
    return InvalidArgument(fmt::format("{}: tensor '{}' of shape {} is missing{}",
                                       checkpoint_.folder(), spec.source(),
                                       FormatShape(spec.source_shape()), what));
  }
  Status PartMissing(const TensorInfo& beside, const std::string& name) const {
    return InvalidArgument(fmt::format("{}: tensor '{}' is missing, which '{}' ({}) needs",
                                       checkpoint_.folder(), name, beside.name,
                                       QuantisationName(plan_.quantisation.method)));
  }
  Result<ModelTensor> FindGguf(const TensorSpec& spec);
  Result<ModelTensor> FindSplitKv(const TensorSpec& spec, const GgufPlace& place);
  Result<ModelTensor> FindPlain(const TensorSpec& spec, const TensorInfo& info) const;
  Result<ModelTensor> FindFp8(const TensorSpec& spec, const TensorInfo& info);
  Result<ModelTensor> FindMxfp4(const TensorSpec& spec, const TensorInfo& blocks);
  Result<ModelTensor> FindGroups(const TensorSpec& spec, const std::string& base,
                                 const TensorInfo& words);
  static ModelTensor Decoded(const TensorSpec& spec, const TensorInfo& info, DType dtype,
                             std::unique_ptr<TensorDecoder> decoder) {
    return {spec.source_shape(), dtype, &info, std::move(decoder)};
  }

  const WeightPlan& plan_;
  const Checkpoint& checkpoint_;
  std::string architecture_;  // of a GGUF file
  std::unordered_set<std::string_view> used_;
  // Without ".weight": linear layers that are quantised.
  std::unordered_set<std::string> quantised_;
};

Result<ModelTensor> Resolver::Find(const TensorSpec& spec) {
  using Method = Quantisation::Method;
  const Method method = plan_.quantisation.method;
  const std::string& name = spec.source();
  if ((checkpoint_.gguf() != nullptr) != (method == Method::kGguf)) {
    return InvalidArgument(fmt::format(
        "{}: the config {} from a GGUF file, the tensors {}", checkpoint_.folder(),
        method == Method::kGguf ? "is" : "is not", method == Method::kGguf ? "are not" : "are"));
  }
  if (method == Method::kGguf) return FindGguf(spec);
  const TensorInfo* plain = Use(name);
  const std::string base =
      name.ends_with(kWeightSuffix) ? name.substr(0, name.size() - kWeightSuffix.size()) : "";
  std::string other;  // the quantised tensor's name
  if (method == Method::kMxfp4 && spec.slice && spec.shape.size() == 2) other = name + "_blocks";
  if ((method == Method::kGptq || method == Method::kAwq) && !base.empty()) {
    other = base + ".qweight";
  }
  const TensorInfo* quantised = other.empty() ? nullptr : Use(other);
  if (plain != nullptr && quantised != nullptr) {
    return InvalidArgument(fmt::format("tensors {} and {}: one of them is too much", plain->Where(),
                                       quantised->Where()));
  }
  if (plain != nullptr && !other.empty() && method == Method::kMxfp4) {
    return InvalidArgument(
        fmt::format("tensor {}: expected '{}', as quantization_config in "
                    "config.json says mxfp4; remove one of them",
                    plain->Where(), other));
  }
  if (plain == nullptr && quantised == nullptr) {
    return Missing(spec, other.empty() ? "" : fmt::format(", and so is '{}'", other));
  }
  if (quantised != nullptr) {
    return method == Method::kMxfp4 ? FindMxfp4(spec, *quantised)
                                    : FindGroups(spec, base, *quantised);
  }
  if (method == Method::kFp8 && !base.empty()) return FindFp8(spec, *plain);
  return FindPlain(spec, *plain);
}

// Shapes that differ in dimensions of 1 only.
bool SameShape(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  const auto without_ones = [](std::vector<int64_t> shape) {
    shape.erase(std::remove(shape.begin(), shape.end(), 1), shape.end());
    return shape;
  };
  return without_ones(a) == without_ones(b);
}

DType StoredType(ElementType type) {
  switch (type) {
    case ElementType::kF16: return DType::kF16;
    case ElementType::kBF16:
    case ElementType::kGgufMxfp4: return DType::kBF16;
    default: return DType::kF32;
  }
}

Result<ModelTensor> Resolver::FindGguf(const TensorSpec& spec) {
  const GgufPlace place = FindInGguf(architecture_, spec.name);
  const TensorInfo* info = Use(place.tensor);
  std::vector<int64_t> shape = spec.shape;
  GgufRows rows;
  if (info != nullptr && place.expert >= 0) {
    shape.insert(shape.begin(), plan_.experts_per_layer);
    const int64_t of_expert = spec.shape.size() == 1 ? 1 : spec.shape.front();
    rows.first = static_cast<uint64_t>(place.expert * of_expert);
  } else if (info == nullptr && !place.single.empty()) {
    info = Use(place.single);
  } else if (info == nullptr && place.tensor.ends_with("attn_kv_b.weight")) {
    return FindSplitKv(spec, place);
  }
  if (info == nullptr) {
    return Missing(spec, fmt::format(" (here '{}')", place.tensor));
  }
  if (!SameShape(info->shape, shape)) {
    return InvalidArgument(fmt::format("tensor {}: expected shape {}, found {}", info->Where(),
                                       FormatShape(shape), FormatShape(info->shape)));
  }
  if (place.rotated) rows.head_rows = static_cast<uint64_t>(plan_.head_dim);
  if (place.rotated && (rows.head_rows < 2 || spec.shape.front() % plan_.head_dim != 0)) {
    return InvalidArgument(fmt::format("tensor {}: {} rows are not heads of {}", info->Where(),
                                       spec.shape.front(), rows.head_rows));
  }
  return Decoded(spec, *info, StoredType(info->type),
                 MakeGgufDecoder(*info, rows, static_cast<uint64_t>(spec.shape.back())));
}

// kv_b_proj as keys and values apart.
Result<ModelTensor> Resolver::FindSplitKv(const TensorSpec& spec, const GgufPlace& place) {
  const std::string prefix = place.tensor.substr(0, place.tensor.find("attn_kv_b"));
  const TensorInfo* keys = Use(prefix + "attn_k_b.weight");
  const TensorInfo* values = Use(prefix + "attn_v_b.weight");
  if (keys == nullptr || values == nullptr) {
    return Missing(spec, fmt::format(" (here '{}', or '{}attn_k_b.weight' and '{}attn_v_b.weight')",
                                     place.tensor, prefix, prefix));
  }
  const int64_t rank = spec.shape.back();
  for (const TensorInfo* part : {keys, values}) {
    const bool is_key = part == keys;
    if (part->shape.size() == 3 && part->shape[0] == keys->shape[0] &&
        part->shape[is_key ? 1 : 2] == rank) {
      continue;
    }
    return InvalidArgument(fmt::format(
        "tensor {}: expected shape {}, found {}", part->Where(),
        is_key ? fmt::format("[heads, {}, size]", rank) : fmt::format("[heads, size, {}]", rank),
        FormatShape(part->shape)));
  }
  const SplitKvShape shape{.heads = static_cast<uint64_t>(keys->shape[0]),
                           .nope = static_cast<uint64_t>(keys->shape[2]),
                           .value = static_cast<uint64_t>(values->shape[1]),
                           .rank = static_cast<uint64_t>(rank)};
  if (plan_.nope_dim != keys->shape[2] ||
      spec.shape.front() != keys->shape[0] * (keys->shape[2] + values->shape[1])) {
    return InvalidArgument(fmt::format("tensor {}: shape {} does not make up kv_b_proj of shape {}",
                                       keys->Where(), FormatShape(keys->shape),
                                       FormatShape(spec.shape)));
  }
  return Decoded(spec, *keys, DType::kF32, MakeSplitKvDecoder(*keys, *values, shape));
}

Result<ModelTensor> Resolver::FindPlain(const TensorSpec& spec, const TensorInfo& info) const {
  if (info.shape != spec.source_shape()) {
    return InvalidArgument(fmt::format("tensor {}: expected shape {}, found {}", info.Where(),
                                       FormatShape(spec.source_shape()), FormatShape(info.shape)));
  }
  const auto dtype = ToDType(info.type);
  if (!dtype.ok()) {
    return InvalidArgument(fmt::format("tensor {}: {}", info.Where(), dtype.status().message()));
  }
  return ModelTensor{info.shape, *dtype, &info, nullptr};
}

Result<ModelTensor> Resolver::FindFp8(const TensorSpec& spec, const TensorInfo& info) {
  QuantisedParts parts{.values = &info};
  std::string scale_name;
  for (const char* suffix : {"_scale_inv", "_scale"}) {
    const TensorInfo* found = Use(info.name + suffix);
    if (found == nullptr) continue;
    if (parts.scales != nullptr) {
      return InvalidArgument(fmt::format("tensors {} and {}: one of them is too much",
                                         parts.scales->Where(), found->Where()));
    }
    parts.scales = found;
  }
  if (info.type != ElementType::kF8E4M3 && parts.scales == nullptr) return FindPlain(spec, info);
  if (parts.scales == nullptr) return PartMissing(info, info.name + "_scale_inv");
  quantised_.insert(info.name.substr(0, info.name.size() - kWeightSuffix.size()));
  ASSIGN_OR_RETURN(auto decoder, MakeFp8Decoder(parts, plan_.quantisation, spec.source_shape()));
  const bool powers = parts.scales->type == ElementType::kF8E8M0;
  return Decoded(spec, info, powers ? DType::kBF16 : DType::kF32, std::move(decoder));
}

Result<ModelTensor> Resolver::FindMxfp4(const TensorSpec& spec, const TensorInfo& blocks) {
  const std::string scales = spec.source() + "_scales";
  const QuantisedParts parts{.values = &blocks, .scales = Use(scales)};
  if (parts.scales == nullptr) return PartMissing(blocks, scales);
  ASSIGN_OR_RETURN(auto decoder, MakeMxfp4Decoder(parts, spec.source_shape()));
  return Decoded(spec, blocks, DType::kBF16, std::move(decoder));
}

Result<ModelTensor> Resolver::FindGroups(const TensorSpec& spec, const std::string& base,
                                         const TensorInfo& words) {
  QuantisedParts parts{.values = &words};
  parts.scales = Use(base + ".scales");
  parts.zeros = Use(base + ".qzeros");
  if (parts.scales == nullptr) return PartMissing(words, base + ".scales");
  if (parts.zeros == nullptr) return PartMissing(words, base + ".qzeros");
  quantised_.insert(base);
  if (plan_.quantisation.method == Quantisation::Method::kAwq) {
    ASSIGN_OR_RETURN(auto decoder, MakeAwqDecoder(parts, plan_.quantisation, spec.source_shape()));
    return Decoded(spec, words, DType::kF32, std::move(decoder));
  }
  parts.group_index = Use(base + ".g_idx");
  ASSIGN_OR_RETURN(auto decoder, MakeGptqDecoder(parts, plan_.quantisation, spec.source_shape()));
  return Decoded(spec, words, DType::kF32, std::move(decoder));
}

// Some writers of GPTQ give every layer a bias; where the model has none it must be zero. fp8 files
// may hold scales of the activations, which stay float32 here.
Status CheckBesideQuantised(const TensorInfo& info, std::string_view part, bool* known) {
  *known = true;
  if (part == "bias") {
    if (std::all_of(info.data.begin(), info.data.end(), [](uint8_t byte) { return byte == 0; })) {
      return OkStatus();
    }
    return InvalidArgument(fmt::format(
        "tensor {}: this layer has no bias in the model that config.json describes, but it is not "
        "zero",
        info.Where()));
  }
  *known = part == "input_scale" || part == "activation_scale";
  return OkStatus();
}

Status Resolver::CheckRest() const {
  for (const TensorInfo* info : checkpoint_.tensors()) {
    if (used_.contains(info->name)) continue;
    const bool ignored =
        std::any_of(plan_.ignored_prefixes.begin(), plan_.ignored_prefixes.end(),
                    [&](const std::string& prefix) { return info->name.starts_with(prefix); });
    if (ignored) continue;
    const size_t dot = info->name.rfind('.');
    if (dot != std::string::npos && quantised_.contains(info->name.substr(0, dot))) {
      bool known = false;
      RETURN_IF_ERROR(
          CheckBesideQuantised(*info, std::string_view(info->name).substr(dot + 1), &known));
      if (known) continue;
    }
    return InvalidArgument(fmt::format(
        "tensor {} has no place in the model that config.json describes", info->Where()));
  }
  return OkStatus();
}

// The tensors of a kind that should all have one type.
class OneType {
 public:
  void Add(ModelTensor* tensor) { tensors_.push_back(tensor); }

  // Different types are a mistake where none is quantised.
  Status Check() const { return equal() || quantised() ? OkStatus() : Mixed(); }

  // Different types become float32 where some are quantised.
  Status Unify() {
    RETURN_IF_ERROR(Check());
    if (equal()) return OkStatus();
    for (ModelTensor* tensor : tensors_) {
      tensor->dtype = DType::kF32;
      if (tensor->decoder == nullptr) tensor->decoder = MakeWideningDecoder(*tensor->info);
    }
    return OkStatus();
  }

 private:
  bool equal() const {
    return std::all_of(tensors_.begin(), tensors_.end(), [&](const auto* tensor) {
      return tensor->dtype == tensors_.front()->dtype;
    });
  }
  bool quantised() const {
    return std::any_of(tensors_.begin(), tensors_.end(),
                       [](const auto* tensor) { return tensor->decoder != nullptr; });
  }
  Status Mixed() const {
    const ModelTensor& first = *tensors_.front();
    const auto other = std::find_if(tensors_.begin(), tensors_.end(), [&](const auto* tensor) {
      return tensor->dtype != first.dtype;
    });
    return InvalidArgument(fmt::format(
        "tensor {}: expected {} as in expert tensor '{}', found {}; all experts must have one type",
        (*other)->info->Where(), DTypeName(first.dtype), first.info->name,
        DTypeName((*other)->dtype)));
  }

  std::vector<ModelTensor*> tensors_;
};

}  // namespace

Result<ModelTensors> ModelTensors::Resolve(const WeightPlan& plan, const Checkpoint& checkpoint) {
  ModelTensors result;
  Resolver resolver(plan, checkpoint);
  // Null when it was found before, as a slice's tensor may be.
  const auto add = [&](const TensorSpec& spec) -> Result<ModelTensor*> {
    const auto [at, is_new] = result.tensors_.try_emplace(spec.source());
    if (!is_new) {
      if (!spec.slice) {
        return InvalidArgument(fmt::format("tensor '{}' is planned twice", spec.name));
      }
      if (at->second.shape != spec.source_shape()) {
        return InvalidArgument(
            fmt::format("tensor {}: expected shape {}, found {}", at->second.info->Where(),
                        FormatShape(spec.source_shape()), FormatShape(at->second.shape)));
      }
      return static_cast<ModelTensor*>(nullptr);
    }
    ASSIGN_OR_RETURN(at->second, resolver.Find(spec));
    return &at->second;
  };
  OneType matrices;
  OneType biases;
  for (const TensorSpec& spec : plan.dense) RETURN_IF_ERROR(add(spec).status());
  for (const ExpertSpec& expert : plan.experts) {
    for (const TensorSpec* part : expert.parts()) {
      ASSIGN_OR_RETURN(ModelTensor * tensor, add(*part));
      if (tensor != nullptr) (part->shape.size() == 1 ? biases : matrices).Add(tensor);
    }
  }
  RETURN_IF_ERROR(matrices.Check());
  RETURN_IF_ERROR(biases.Unify());
  RETURN_IF_ERROR(resolver.CheckRest());
  return result;
}

}  // namespace expertflow

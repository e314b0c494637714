#include "launch/model_source.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "common/mapped_file.h"
#include "coordinator/model_tokenizer.h"
#include "expert_store/layout.h"
#include "expert_store/store_layout.h"
#include "expert_store/store_view.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/json_config.h"
#include "model/checkpoint/model_files.h"
#include "model/checkpoint/safetensors.h"

namespace expertflow {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPackedSuffix = ".efstore";

std::string Absolute(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::weakly_canonical(path, error);
  return error ? path : absolute.string();
}

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

Status ReadConfig(const std::string& text, const std::string& name, ModelSource* model) {
  ASSIGN_OR_RETURN(const JsonConfig config, JsonConfig::Parse(text, name));
  ASSIGN_OR_RETURN(model->architecture, MakeArchitecture(config));
  model->config_json = text;
  return OkStatus();
}

Status ReadConfigFile(const std::string& path, ModelSource* model) {
  ASSIGN_OR_RETURN(const std::string text, ReadFileToString(path, JsonConfig::kBytesMax));
  return ReadConfig(text, path, model);
}

Status ReadPacked(ModelSource* model) {
  ASSIGN_OR_RETURN(const StoreView view, StoreView::OpenFile(model->store_file));
  const std::string config = model->folder + "/config.json";
  RETURN_IF_ERROR(Exists(config) ? ReadConfigFile(config, model)
                                 : ReadConfig(view.config_json(), model->store_file, model));
  RETURN_IF_ERROR(view.Matches(model->architecture->weights()));
  model->sizes = {.dense_bytes = view.total_dense_bytes(),
                  .expert_bytes = view.total_expert_bytes(),
                  .expert_blocks = view.expert_blocks()};
  model->store_bytes = view.total_bytes();
  model->expert_dtypes.assign(view.expert_dtypes().begin(), view.expert_dtypes().end());
  return OkStatus();
}

Status ReadCheckpoint(ModelSource* model) {
  ASSIGN_OR_RETURN(const JsonConfig config, LoadModelConfig(model->folder));
  ASSIGN_OR_RETURN(model->architecture, MakeArchitecture(config));
  model->config_json = config.text();
  const WeightPlan& plan = model->architecture->weights();
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(model->folder));
  ASSIGN_OR_RETURN(const StoreLayout layout,
                   StoreLayout::Make(plan, checkpoint, model->config_json));
  model->sizes = {.dense_bytes = layout.dense_bytes(),
                  .expert_bytes = layout.expert_bytes(),
                  .expert_blocks = layout.expert_blocks()};
  model->store_bytes = layout.total_bytes();
  model->expert_dtypes = layout.expert_dtypes();
  return OkStatus();
}

// Of a tensor that is no expert's, where the checkpoint's method is for all linear layers.
DType DenseType(const TensorSpec& tensor, const Quantisation& quantisation, DType unquantised) {
  const bool end = tensor.name == "model.embed_tokens.weight" || tensor.name == "lm_head.weight";
  const bool experts_only = quantisation.method == Quantisation::Method::kMxfp4;
  if (!tensor.quantisable || end || experts_only) return unquantised;
  const DType quantised = StoredExpertType(quantisation, unquantised);
  const bool whole_groups =
      tensor.shape.back() % static_cast<int64_t>(GroupElements(quantised)) == 0;
  return whole_groups ? quantised : StoredFloatType(quantisation, unquantised);
}

// Sizes as a store of these shapes would have them.
Status SizesWithoutWeights(ModelSource* model) {
  ASSIGN_OR_RETURN(const JsonConfig config, JsonConfig::Parse(model->config_json, "config.json"));
  ASSIGN_OR_RETURN(const std::string older, config.StringOr("torch_dtype", "bfloat16"));
  ASSIGN_OR_RETURN(const std::string dtype, config.StringOr("dtype", older));
  const DType unquantised = dtype == "float32"   ? DType::kF32
                            : dtype == "float16" ? DType::kF16
                                                 : DType::kBF16;
  const WeightPlan& plan = model->architecture->weights();
  const DType floats = StoredFloatType(plan.quantisation, unquantised);
  for (const TensorSpec& tensor : plan.dense) {
    ASSIGN_OR_RETURN(const uint64_t most, TensorBytes(tensor.shape, sizeof(float)));
    const DType dtype = DenseType(tensor, plan.quantisation, unquantised);
    model->sizes.dense_bytes += AlignUp(MatrixBytes(dtype, most / sizeof(float)), kTensorAlignment);
  }
  if (!plan.experts.empty()) {
    const std::vector<int64_t>& gate = plan.experts.front().gate.shape;
    constexpr auto kGroup = static_cast<int64_t>(kQuantisedGroup);
    std::optional<DType> bias;
    if (plan.experts.front().has_biases) bias = floats;
    DType dtype = StoredExpertType(plan.quantisation, unquantised);
    if (gate[0] % kGroup != 0 || gate[1] % kGroup != 0) dtype = floats;
    ASSIGN_OR_RETURN(const ExpertGeometry geometry,
                     PlaceExpert(gate[1], gate[0], ExpertTypes::All(dtype), bias));
    model->expert_dtypes = {dtype};
    model->sizes.expert_blocks = {
        {geometry.block_bytes, static_cast<int64_t>(plan.experts.size())}};
    model->sizes.expert_bytes = geometry.block_bytes * plan.experts.size();
  }
  model->store_bytes = model->sizes.dense_bytes + model->sizes.expert_bytes;
  model->has_weights = false;
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> LoadTokenizer(const Options& options, const ModelSource& model) {
  const std::string file = options.Text("tokenizer");
  ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, LoadModelTokenizer(model.folder, file));
  const int64_t vocab = model.architecture->shape().vocab;
  if (tokenizer->vocab_size() > vocab) {
    return InvalidArgument(fmt::format("{}: token id {} is beyond the model's vocabulary of {}",
                                       ModelTokenizerName(model.folder, file),
                                       tokenizer->vocab_size() - 1, vocab));
  }
  return tokenizer;
}

Result<ModelSource> OpenModel(const std::string& path) {
  if (path.empty()) return InvalidArgument("--model DIR is missing");
  ModelSource model;
  std::error_code error;
  const std::string absolute = Absolute(path);
  if (absolute.ends_with(kPackedSuffix)) {
    model.folder = fs::path(absolute).parent_path().string();
    model.store_file = absolute;
  } else if (IsGguf(absolute)) {
    model.folder = absolute;
  } else {
    if (!fs::is_directory(absolute, error)) {
      return NotFound(fmt::format("{}: there is no such model folder", path));
    }
    model.folder = absolute;
    const std::string packed = absolute + "/" + kPackedFileName;
    if (Exists(packed)) model.store_file = packed;
  }
  RETURN_IF_ERROR(model.store_file.empty() ? ReadCheckpoint(&model) : ReadPacked(&model));
  return model;
}

Result<ModelSource> OpenModelOrConfig(const std::string& path) {
  const std::string absolute = Absolute(path);
  std::error_code error;
  if (absolute.ends_with(kPackedSuffix) || IsGguf(absolute)) return OpenModel(path);
  ModelSource model;
  if (fs::is_directory(absolute, error)) {
    for (const char* name :
         {kPackedFileName, "model.safetensors", "model.safetensors.index.json"}) {
      if (Exists(absolute + "/" + name)) return OpenModel(path);
    }
    model.folder = absolute;
    RETURN_IF_ERROR(ReadConfigFile(absolute + "/config.json", &model));
  } else {
    model.folder = fs::path(absolute).parent_path().string();
    RETURN_IF_ERROR(ReadConfigFile(absolute, &model));
  }
  RETURN_IF_ERROR(SizesWithoutWeights(&model));
  return model;
}

Result<bool> ComputesInPlace(const Options& options) {
  const bool has_link = FindOption(options.command(), "link") != nullptr;
  for (const char* name : {"expert-memory", "link"}) {
    if (std::string_view(name) == "link" && !has_link) continue;
    if (options.Text("device-memory") == "host" && options.Given(name)) {
      return InvalidArgument(
          fmt::format("{}: contradicts {} host, which computes in place and copies no experts; "
                      "leave one of them out",
                      options.Origin(name), options.Origin("device-memory")));
    }
  }
  if (!options.Text("device-memory").empty()) return options.Text("device-memory") == "host";
  return !options.Given("expert-memory") && !(has_link && options.Given("link"));
}

Result<StrideBounds> StrideOf(const Options& options) {
  if (FindOption(options.command(), "stride") == nullptr) return StrideBounds{};
  const std::string text = options.Text("stride");
  const std::optional<StrideBounds> stride = ParseStride(text);
  if (stride) return *stride;
  return InvalidArgument(fmt::format(
      "{}: expected auto, a number of layers from 1 to {}, or two such as 4-6, found \"{}\"",
      options.Origin("stride"), kStrideMost, text));
}

DType KvTypeOf(const Options& options) {
  const std::string dtype = options.Text("kv-dtype");
  if (dtype == "bf16") return DType::kBF16;
  return dtype == "int8" ? DType::kInt8 : DType::kF32;
}

Result<MemoryPlan> PlanFor(const Options& options, const ModelSource& model) {
  MemoryPlanInput input;
  input.store = model.sizes;
  ASSIGN_OR_RETURN(input.in_place, ComputesInPlace(options));
  if (options.Given("expert-memory")) input.expert_memory = options.Budget("expert-memory");
  input.streaming_buffers = static_cast<int32_t>(options.Integer("streaming-buffers"));
  input.kv_memory_bytes = options.Bytes("kv-memory");
  input.kv_memory_most_bytes = options.Bytes("kv-memory-most");
  input.kv_dtype = KvTypeOf(options);
  input.sequences_max = static_cast<int32_t>(options.Integer("sequences-max"));
  input.prefill_tokens_max = static_cast<int32_t>(options.Integer("prefill-tokens"));
  const bool prefetch = FindOption(options.command(), "prefetch") == nullptr ||
                        options.Switch("prefetch");  // inspect: as a worker by default
  ASSIGN_OR_RETURN(const StrideBounds stride, StrideOf(options));
  input.lookahead_max = LookaheadMost(prefetch, stride);
  return MakeMemoryPlan(*model.architecture, input);
}

}  // namespace expertflow

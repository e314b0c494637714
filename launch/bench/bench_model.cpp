#include "launch/bench/bench_model.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "common/mapped_file.h"
#include "common/process.h"
#include "common/units.h"
#include "expert_store/store_writer.h"
#include "expert_store/synth.h"
#include "model/checkpoint/json_config.h"

namespace expertflow {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSpareMemoryBytes = uint64_t{1} << 30;

// The published shapes of Qwen1.5-MoE-A2.7B.
std::string ConfigJson(const SyntheticModel& model) {
  return fmt::format(R"({{
  "architectures": ["Qwen2MoeForCausalLM"],
  "model_type": "qwen2_moe",
  "vocab_size": {},
  "hidden_size": 2048,
  "intermediate_size": 5632,
  "num_hidden_layers": {},
  "num_attention_heads": 16,
  "num_key_value_heads": 16,
  "hidden_act": "silu",
  "max_position_embeddings": 8192,
  "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0,
  "tie_word_embeddings": false,
  "decoder_sparse_step": 1,
  "moe_intermediate_size": 1408,
  "shared_expert_intermediate_size": 5632,
  "num_experts_per_tok": 4,
  "num_experts": 60,
  "norm_topk_prob": false,
  "torch_dtype": "bfloat16"
}}
)",
                     model.vocab, model.layers);
}

bool IsEmbedding(const DenseTensor& tensor) {
  return tensor.name.find("embed_tokens") != std::string::npos;
}

// The table is read as a whole where it is the output layer too.
bool HasOutputLayer(const StoreView& store) {
  return store.FindDense("lm_head.weight") != nullptr;
}

uint64_t ExpertWeightBytes(const ExpertBlock& block) {
  const auto elements =
      static_cast<uint64_t>(block.hidden) * static_cast<uint64_t>(block.intermediate);
  return MatrixBytes(block.types.gate, elements) + MatrixBytes(block.types.up, elements) +
         MatrixBytes(block.types.down, elements);
}

Status CheckRoom(uint64_t model_bytes, const std::string& work_folder) {
  std::error_code error;
  const fs::space_info space = fs::space(work_folder, error);
  if (error) return FromErrno(error.value(), work_folder);
  if (space.available < 2 * model_bytes) {
    return ResourceExhausted(fmt::format(
        "{}: the random model needs {} while it is packed, free are {}; choose another folder with "
        "--work-folder",
        work_folder, FormatBytes(2 * model_bytes), FormatBytes(space.available)));
  }
  ASSIGN_OR_RETURN(const uint64_t memory, AvailableMemoryBytes());
  if (memory < model_bytes + kSpareMemoryBytes) {
    return ResourceExhausted(
        fmt::format("the random model needs {} of memory, available are {}; give a smaller --model",
                    FormatBytes(model_bytes + kSpareMemoryBytes), FormatBytes(memory)));
  }
  return OkStatus();
}

uint64_t PlannedBytes(const WeightPlan& plan) {
  uint64_t elements = 0;
  const auto add = [&](const TensorSpec& tensor) {
    uint64_t count = 1;
    for (const int64_t size : tensor.shape) count *= static_cast<uint64_t>(size);
    elements += count;
  };
  for (const TensorSpec& tensor : plan.dense) add(tensor);
  for (const ExpertSpec& expert : plan.experts) {
    for (const TensorSpec* part : expert.parts()) add(*part);
  }
  return elements * DTypeBytes(DType::kBF16);
}

}  // namespace

Result<TemporaryFolder> TemporaryFolder::Create(const std::string& parent) {
  std::string path = parent + "/bench-expertflow-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) return FromErrno(errno, path);
  return TemporaryFolder(std::move(path));
}

TemporaryFolder::TemporaryFolder(TemporaryFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})) {}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

Status BenchModel::Map(const std::string& store_file) {
  ASSIGN_OR_RETURN(StoreView view, StoreView::OpenFile(store_file));
  if (architecture_ == nullptr) {
    ASSIGN_OR_RETURN(const JsonConfig config, JsonConfig::Parse(view.config_json(), store_file));
    ASSIGN_OR_RETURN(architecture_, MakeArchitecture(config));
  }
  RETURN_IF_ERROR(view.Matches(architecture_->weights()));
  store_ = std::make_unique<StoreView>(std::move(view));
  return OkStatus();
}

Result<std::string> WriteBenchCheckpoint(const SyntheticModel& model, const std::string& folder,
                                         const std::string& work_folder) {
  const std::string text = ConfigJson(model);
  ASSIGN_OR_RETURN(const JsonConfig config, JsonConfig::Parse(text, "the benchmark's config"));
  ASSIGN_OR_RETURN(const auto architecture, MakeArchitecture(config));
  RETURN_IF_ERROR(CheckRoom(PlannedBytes(architecture->weights()), work_folder));
  RETURN_IF_ERROR(WriteSyntheticCheckpoint(architecture->weights(), text, folder, {}));
  return fmt::format("random weights, Qwen1.5-MoE-A2.7B with {} layers, bf16, vocabulary {}",
                     model.layers, model.vocab);
}

Result<BenchCheckpoint> BenchCheckpoint::Open(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::string text,
                   ReadFileToString(folder + "/config.json", JsonConfig::kBytesMax));
  ASSIGN_OR_RETURN(const JsonConfig config, JsonConfig::Parse(text, folder + "/config.json"));
  ASSIGN_OR_RETURN(auto architecture, MakeArchitecture(config));
  ASSIGN_OR_RETURN(Checkpoint opened, Checkpoint::Open(folder));
  auto checkpoint = std::make_unique<Checkpoint>(std::move(opened));
  ASSIGN_OR_RETURN(StoreLayout layout,
                   StoreLayout::Make(architecture->weights(), *checkpoint, text));
  return BenchCheckpoint{std::move(architecture), std::move(checkpoint), std::move(layout)};
}

Status BenchModel::Pack(const std::string& folder, const std::string& work_folder) {
  ASSIGN_OR_RETURN(BenchCheckpoint source, BenchCheckpoint::Open(folder));
  ASSIGN_OR_RETURN(const TemporaryFolder temporary, TemporaryFolder::Create(work_folder));
  const std::string path = temporary.path() + "/model.efstore";
  RETURN_IF_ERROR(PackStore(source.layout, path, {}));
  architecture_ = std::move(source.architecture);
  return Map(path);
}

Result<BenchModel> BenchModel::Open(const std::string& path, const std::string& work_folder) {
  BenchModel model;
  model.name_ = path;
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    RETURN_IF_ERROR(model.Map(path));
  } else if (const std::string packed = path + "/model.efstore"; fs::exists(packed, error)) {
    RETURN_IF_ERROR(model.Map(packed));
  } else {
    RETURN_IF_ERROR(model.Pack(path, work_folder));
  }
  if (model.store().expert_count() == 0) {
    return InvalidArgument(fmt::format("{}: the model has no experts to measure", path));
  }
  return model;
}

Result<BenchModel> BenchModel::Synthesize(const SyntheticModel& shape,
                                          const std::string& work_folder) {
  ASSIGN_OR_RETURN(const TemporaryFolder temporary, TemporaryFolder::Create(work_folder));
  const std::string checkpoint = temporary.path() + "/checkpoint";
  BenchModel model;
  ASSIGN_OR_RETURN(model.name_, WriteBenchCheckpoint(shape, checkpoint, work_folder));
  RETURN_IF_ERROR(model.Pack(checkpoint, work_folder));
  return model;
}

std::span<const uint8_t> BenchModel::expert_memory() const {
  const uint8_t* begin = nullptr;
  const uint8_t* end = nullptr;
  for (const ExpertSpec& expert : architecture_->weights().experts) {
    const ExpertBlock block = store_->Expert(expert.key);
    if (begin == nullptr || block.data < begin) begin = block.data;
    if (end == nullptr || block.data + block.bytes > end) end = block.data + block.bytes;
  }
  return {begin, end};
}

TouchedBytes BytesPerToken(const BenchModel& model, int32_t position) {
  const StoreView& store = model.store();
  const ModelShape& shape = model.architecture().shape();
  TouchedBytes bytes;
  for (const DenseTensor& tensor : store.dense()) {
    const bool one_row = IsEmbedding(tensor) && HasOutputLayer(store);
    bytes.dense += one_row ? tensor.bytes / static_cast<uint64_t>(shape.vocab) : tensor.bytes;
  }
  for (const int32_t layer : shape.moe_layers) {
    const ExpertBlock block = store.Expert({LayerId(layer), ExpertId(0)});
    bytes.experts += static_cast<uint64_t>(shape.top_k) * ExpertWeightBytes(block);
  }
  bytes.kv = static_cast<uint64_t>(position + 1) * shape.kv_bytes_per_token();
  return bytes;
}

double PrefillFlops(const BenchModel& model, int32_t tokens) {
  const StoreView& store = model.store();
  const ModelShape& shape = model.architecture().shape();
  double per_token = 0;
  double last_only = 0;
  for (const DenseTensor& tensor : store.dense()) {
    if (tensor.shape.size() != 2) continue;
    const double products = 2.0 * static_cast<double>(tensor.shape[0] * tensor.shape[1]);
    if (IsEmbedding(tensor)) {
      if (!HasOutputLayer(store)) last_only += products;
    } else if (tensor.name == "lm_head.weight") {
      last_only += products;
    } else {
      per_token += products;
    }
  }
  for (const int32_t layer : shape.moe_layers) {
    const ExpertBlock block = store.Expert({LayerId(layer), ExpertId(0)});
    per_token += 2.0 * shape.top_k * 3 * static_cast<double>(block.hidden * block.intermediate);
  }
  return per_token * tokens + last_only;
}

}  // namespace expertflow

// Where a model comes from and what it needs, found out from headers alone: nothing is loaded or
// allocated. Shared by the commands and the roles.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "common/status.h"
#include "launch/options.h"
#include "model/arch/architecture.h"
#include "model/tokenizer/tokenizer.h"
#include "predictor/core/stride_bounds.h"
#include "worker/memory_plan.h"

namespace expertflow {

// The store file that `pack` puts into a model folder.
inline constexpr char kPackedFileName[] = "model.efstore";

struct ModelSource {
  std::string folder;      // absolute; or the GGUF file
  std::string store_file;  // absolute; empty: the folder's safetensors, or the GGUF file
  std::string config_json;
  std::unique_ptr<Architecture> architecture;
  bool has_weights = true;
  StoreSizes sizes;                  // without weights: as a store of them would have
  uint64_t store_bytes = 0;          // segment or packed file
  std::vector<DType> expert_dtypes;  // of the experts' matrices, ascending
};

// `path` is a model folder, a GGUF file or a store file. Everything is checked that can be without
// reading the tensors' data.
Result<ModelSource> OpenModel(const std::string& path);
// Also a folder with only a config.json, or a config.json.
Result<ModelSource> OpenModelOrConfig(const std::string& path);

// The tokenizer that `run` and `serve` use. kInvalidArgument when it has ids beyond the model's
// vocabulary.
Result<std::unique_ptr<Tokenizer>> LoadTokenizer(const Options& options, const ModelSource& model);

// Whether the worker options mean computing in place; contradictions are named.
Result<bool> ComputesInPlace(const Options& options);
// Layers of lead of the prefetch; for commands without the option, as by default.
Result<StrideBounds> StrideOf(const Options& options);
// What --kv-dtype says.
DType KvTypeOf(const Options& options);
// The memory plan of one worker. The command has the worker's options, or most of them.
Result<MemoryPlan> PlanFor(const Options& options, const ModelSource& model);

}  // namespace expertflow

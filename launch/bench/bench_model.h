// Models that benchmarks run on: a given one, or a random one with the shapes of a real config.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/status.h"
#include "expert_store/store_layout.h"
#include "expert_store/store_view.h"
#include "model/arch/architecture.h"
#include "model/checkpoint/checkpoint.h"

namespace expertflow {

// Qwen1.5-MoE-A2.7B cut to a few layers; everything else as published.
struct SyntheticModel {
  int32_t layers = 4;
  int32_t vocab = 151936;
};

// A folder below `parent` that is removed with all it holds.
class TemporaryFolder {
 public:
  static Result<TemporaryFolder> Create(const std::string& parent);
  TemporaryFolder(TemporaryFolder&& other) noexcept;
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;  // empty: moved from
};

// Writes a random bf16 checkpoint to `folder`, which must not exist; checks first that
// `work_folder`'s disk has room for it twice. Returns its name for reports.
Result<std::string> WriteBenchCheckpoint(const SyntheticModel& model, const std::string& folder,
                                         const std::string& work_folder);

// A checkpoint folder, ready to be loaded or packed. The layout borrows the checkpoint.
struct BenchCheckpoint {
  static Result<BenchCheckpoint> Open(const std::string& folder);
  std::unique_ptr<Architecture> architecture;
  std::unique_ptr<Checkpoint> checkpoint;
  StoreLayout layout;
};

// A packed store, mapped, with its architecture. Files it had to write are gone already, or go
// with the last mapping.
class BenchModel {
 public:
  // A model folder (packed or not) or a store file.
  static Result<BenchModel> Open(const std::string& path, const std::string& work_folder);
  // Writes, packs and maps a random bf16 model; needs its size twice in `work_folder`, once
  // afterwards.
  static Result<BenchModel> Synthesize(const SyntheticModel& model, const std::string& work_folder);

  const std::string& name() const { return name_; }
  const Architecture& architecture() const { return *architecture_; }
  const StoreView& store() const { return *store_; }
  // The blocks of all experts, one after the other in memory.
  std::span<const uint8_t> expert_memory() const;

 private:
  BenchModel() = default;
  Status Pack(const std::string& folder, const std::string& work_folder);
  Status Map(const std::string& store_file);

  std::string name_;
  std::unique_ptr<Architecture> architecture_;
  std::unique_ptr<StoreView> store_;
};

// What one decode step at `position` has to read: dense weights but for the embedding table (one
// row), the chosen experts of each layer, the router and the shared expert among the dense ones,
// and the keys and values of all positions so far.
struct TouchedBytes {
  uint64_t dense = 0;
  uint64_t experts = 0;
  uint64_t kv = 0;
  uint64_t total() const { return dense + experts + kv; }
};
TouchedBytes BytesPerToken(const BenchModel& model, int32_t position);

// Floating-point operations (a multiply-add is two) of the matrix products of a prompt of `tokens`
// whose last position alone gives logits. Attention scores are left out.
double PrefillFlops(const BenchModel& model, int32_t tokens);

}  // namespace expertflow

// The read-only view of an expert store that a process has mapped: what workers use. It keeps its
// mapping after the creator died or removed the name. Immutable after Attach; any thread may read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/dtype.h"
#include "common/ids.h"
#include "common/status.h"
#include "expert_store/layout.h"
#include "expert_store/store_index.h"
#include "model/checkpoint/weight_plan.h"

namespace expertflow {

// Where a store is and which; travels in messages.
struct StoreDescriptor {
  enum class Kind : uint32_t { kSharedMemory = 0, kFile = 1 };

  Kind kind = Kind::kSharedMemory;
  std::string name;  // of the segment, or the file's path
  uint64_t total_bytes = 0;
  Fingerprint fingerprint;
};

// One expert's block, in the store's memory.
struct ExpertBlock {
  const uint8_t* data = nullptr;  // page aligned
  uint64_t bytes = 0;
  uint64_t gate_offset = 0;         // [intermediate, hidden]
  uint64_t up_offset = 0;           // [intermediate, hidden]
  uint64_t down_offset = 0;         // [hidden, intermediate]
  std::optional<DType> bias_dtype;  // absent: no biases
  uint64_t gate_bias_offset = 0;    // [intermediate]
  uint64_t up_bias_offset = 0;      // [intermediate]
  uint64_t down_bias_offset = 0;    // [hidden]
  int64_t hidden = 0;
  int64_t intermediate = 0;
  ExpertTypes types;
  uint64_t checksum = 0;  // XXH3-64 of the block
};

class StoreView {
 public:
  // Maps the store and checks its header and index. kUnavailable while it is being loaded,
  // kNotFound when there is none; a store other than the described one is an error.
  static Result<StoreView> Attach(const StoreDescriptor& descriptor);
  // A packed file, whatever model it holds.
  static Result<StoreView> OpenFile(const std::string& path);

  const StoreDescriptor& descriptor() const { return descriptor_; }
  const Fingerprint& fingerprint() const { return index_.header.fingerprint; }
  const std::string& config_json() const { return index_.config_json; }
  uint64_t total_bytes() const { return index_.header.total_bytes; }

  int32_t layers() const { return index_.header.layers; }
  // Of the layers that have experts.
  int32_t experts_per_layer() const { return index_.header.experts_per_layer; }
  // experts_per_layer(), or 0 for a dense layer and a layer that does not exist.
  int32_t ExpertsIn(LayerId layer) const;

  std::span<const DenseTensor> dense() const { return index_.dense; }  // sorted by name
  // Null when there is none. Stays valid when this object is moved.
  const DenseTensor* FindDense(std::string_view name) const;
  uint64_t total_dense_bytes() const { return dense_bytes_; }

  size_t expert_count() const { return index_.experts.size(); }
  bool HasExpert(ExpertKey key) const;
  // REQUIRES: HasExpert(key)
  ExpertBlock Expert(ExpertKey key) const;
  const BlockCounts& expert_blocks() const { return expert_blocks_; }
  // Of each expert, layer by layer.
  std::vector<uint64_t> ExpertBlockBytes() const;
  // The largest block. 0 without experts.
  uint64_t expert_block_bytes() const { return LargestBlock(expert_blocks_); }
  uint64_t total_expert_bytes() const { return expert_bytes_; }
  // The types of the experts' matrices, ascending.
  std::span<const DType> expert_dtypes() const { return expert_dtypes_; }

  // The tensors and experts are exactly those of the plan.
  Status Matches(const WeightPlan& plan) const;
  // Reads the data and compares its checksum.
  Status VerifyExpert(ExpertKey key) const;
  Status VerifyDense(const DenseTensor& tensor) const;
  // Everything, dense tensors and experts.
  Status VerifyAll() const;

 private:
  StoreView() = default;
  static Result<StoreView> FromMapping(std::shared_ptr<const void> mapping,
                                       std::span<const uint8_t> store, StoreDescriptor described);

  std::shared_ptr<const void> mapping_;  // unmaps when it goes
  std::span<const uint8_t> store_;
  StoreIndex index_;
  StoreDescriptor descriptor_;
  uint64_t dense_bytes_ = 0;
  uint64_t expert_bytes_ = 0;
  BlockCounts expert_blocks_;
  std::vector<DType> expert_dtypes_;
};

}  // namespace expertflow

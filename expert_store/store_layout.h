// Where each tensor of a checkpoint goes in a store, decided before anything is allocated, so that
// the sizes can be reported and checked first. Borrows the checkpoint, which must outlive it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "expert_store/layout.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/model_tensors.h"
#include "model/checkpoint/weight_plan.h"

namespace expertflow {

// A tensor of a unit: where its bytes begin in the unit's memory, and where they come from. Element
// (r, c) is element first + r * row_stride + c * col_stride of the checkpoint's tensor. Of one that
// has a decoder whole rows are taken.
struct StorePiece {
  const ModelTensor* source = nullptr;
  DType dtype = DType::kF32;  // in the store
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t first = 0;
  uint64_t rows = 0;
  uint64_t cols = 0;
  uint64_t row_stride = 0;
  uint64_t col_stride = 0;

  bool contiguous() const { return col_stride == 1 && (row_stride == cols || rows == 1); }
};

// What is copied and checksummed as one: a dense tensor, or the pieces of an expert's block.
struct StoreUnit {
  bool expert = false;
  size_t entry = 0;  // in the dense or the expert index
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::vector<StorePiece> pieces;  // by ascending offset; bytes between them are zero
};

// What becomes of the matrices.
struct StoreSettings {
  // Of all experts. Without it each matrix is as in the checkpoint: in the quantised type that
  // holds it, or as floats.
  std::optional<DType> experts;
  // Of each expert, in the plan's order, in place of `experts`; empty: none has a type of its own.
  std::vector<DType> each_expert;
  // Of the other matrices that the model computes with in any type (TensorSpec::quantisable).
  // Without it each is as in the checkpoint, as above.
  std::optional<DType> dense;
  // Places in the plan's list of experts, each once, in the order in which the blocks lie in the
  // store; empty: the plan's order.
  std::vector<size_t> expert_order;
};

class StoreLayout {
 public:
  // Finds the plan's tensors in the checkpoint. `config_json` is kept in the store as it is.
  static Result<StoreLayout> Make(const WeightPlan& plan, const Checkpoint& checkpoint,
                                  const std::string& config_json,
                                  const StoreSettings& settings = {});

  uint64_t total_bytes() const { return header_.total_bytes; }
  uint64_t dense_bytes() const { return dense_bytes_; }
  uint64_t expert_bytes() const { return expert_bytes_; }
  const BlockCounts& expert_blocks() const { return expert_blocks_; }
  // The largest block. 0 without experts.
  uint64_t expert_block_bytes() const { return LargestBlock(expert_blocks_); }
  // The types of the experts' matrices, ascending.
  const std::vector<DType>& expert_dtypes() const { return expert_dtypes_; }

  // For the writer: everything before the tensors with all checksums, the fingerprint and the
  // hashes still zero, and the units in the order in which the checkpoint's files hold them.
  std::span<const uint8_t> metadata() const { return metadata_; }
  const StoreHeader& header() const { return header_; }
  std::span<const StoreUnit> units() const { return units_; }

 private:
  StoreLayout() = default;
  void WriteMetadata(const std::string& config_json, const std::string& names,
                     const std::vector<DenseEntry>& dense, const std::vector<ExpertEntry>& experts);

  StoreHeader header_;
  std::vector<uint8_t> metadata_;
  std::vector<StoreUnit> units_;
  uint64_t dense_bytes_ = 0;
  uint64_t expert_bytes_ = 0;
  BlockCounts expert_blocks_;
  std::vector<DType> expert_dtypes_;
  ModelTensors tensors_;
};

}  // namespace expertflow

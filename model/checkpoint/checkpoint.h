// A Hugging Face checkpoint folder (model.safetensors, or model.safetensors.index.json with its
// shards), or a GGUF file. Opening checks every header and extent; model_tensors.h compares the
// tensors with what an architecture needs. Immutable after Open; any thread may read.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"
#include "model/checkpoint/gguf.h"
#include "model/checkpoint/safetensors.h"

namespace expertflow {

class Checkpoint {
 public:
  // A tensor that two shards hold, a shard that is missing, lies outside the folder or lacks a
  // tensor that the index puts there: errors that name it.
  static Result<Checkpoint> Open(const std::string& path);

  const std::string& folder() const { return folder_; }  // or the GGUF file
  // Null for a folder. Stays valid when this object is moved.
  const GgufFile* gguf() const { return gguf_.get(); }
  // All tensors, sorted by name, also those that the index does not list.
  std::span<const TensorInfo* const> tensors() const { return tensors_; }
  // Null when there is none. Stays valid when this object is moved.
  const TensorInfo* Find(std::string_view name) const;
  // Data and headers of all files together.
  uint64_t file_bytes() const;

 private:
  Checkpoint() = default;
  static Result<Checkpoint> OpenFolder(const std::string& folder);
  std::string folder_;
  std::vector<SafetensorsFile> files_;
  std::unique_ptr<GgufFile> gguf_;
  std::vector<const TensorInfo*> tensors_;
};

// Tensor name and the shard that holds it.
using WeightMap = std::vector<std::pair<std::string, std::string>>;

// Parses an index file's content; sorted by tensor name. Duplicate tensors and shard names that
// are not plain file names are errors.
Result<WeightMap> ParseCheckpointIndex(std::string_view text, std::string_view file_name);

}  // namespace expertflow

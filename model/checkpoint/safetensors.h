// One safetensors file: its header parsed and every extent checked before any tensor byte is
// touched. Errors name the file and the tensor. Immutable after Open; any thread may read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/mapped_file.h"
#include "common/status.h"
#include "model/checkpoint/element_type.h"

namespace expertflow {

inline constexpr uint64_t kSafetensorsHeaderBytesMax = 100'000'000;  // the format's own limit

// A tensor as a file's header describes it.
struct SafetensorsEntry {
  std::string name;
  ElementType type = ElementType::kF32;
  std::vector<int64_t> shape;  // row-major, outermost first; empty for a scalar
  uint64_t file_offset = 0;    // of its first byte, from the start of the file
  uint64_t bytes = 0;
};

// Parses and checks the header of a file whose whole content is `file`. The entries come sorted by
// name; their extents lie inside the file, do not overlap, leave no gap, and fit shape and type.
Result<std::vector<SafetensorsEntry>> ParseSafetensors(std::span<const uint8_t> file,
                                                       std::string_view file_name);

// A tensor of a mapped file.
struct TensorInfo : SafetensorsEntry {
  std::span<const uint8_t> data;     // in the mapping; no alignment is promised
  const MappedFile* file = nullptr;  // file->path() names it in messages

  // "'<name>' in <path>"
  std::string Where() const;
};

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return file_->path(); }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // sorted by name
  // Null when there is none. Stays valid when this object is moved.
  const TensorInfo* Find(std::string_view name) const;

 private:
  SafetensorsFile() = default;
  std::unique_ptr<MappedFile> file_;
  std::vector<TensorInfo> tensors_;
};

// "[2, 3]"
std::string FormatShape(const std::vector<int64_t>& shape);
// Product of `shape` and the element size; negative dimensions and overflow are errors.
Result<uint64_t> TensorBytes(const std::vector<int64_t>& shape, uint64_t element_bytes);

}  // namespace expertflow

// A GGUF file (versions 2 and 3, little-endian), with the other parts of a split one: its metadata
// and the extents of its tensors, all checked before any tensor byte is touched. Errors name the
// file and the key or tensor. Immutable after Open; any thread may read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/mapped_file.h"
#include "common/status.h"
#include "model/checkpoint/safetensors.h"

namespace expertflow {

enum class GgufType : uint32_t {  // as in the format
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kText = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

struct GgufValue {
  std::string key;
  GgufType type = GgufType::kU8;  // of the value, or of an array's elements
  bool is_array = false;
  uint64_t count = 1;              // of elements
  std::span<const uint8_t> bytes;  // of the elements; a text has its length (8 bytes) before it
};

struct GgufContent {
  std::vector<GgufValue> values;          // sorted by key
  std::vector<SafetensorsEntry> tensors;  // sorted by name; shapes with the outermost first
};

// Parses and checks a file whose whole content is `file`; the content borrows it.
Result<GgufContent> ParseGguf(std::span<const uint8_t> file, std::string_view file_name);

class GgufFile {
 public:
  // Of a file in parts ("NAME-00001-of-00003.gguf") the first, which has the metadata; the others
  // lie beside it. A part that is missing or another file's is an error that names it.
  static Result<GgufFile> Open(const std::string& path);

  const std::string& path() const { return files_.front()->path(); }
  uint64_t file_bytes() const;                                         // of all parts
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // sorted by name
  // Null when there is none. Both stay valid when this object is moved.
  const TensorInfo* Find(std::string_view name) const;
  const GgufValue* FindValue(std::string_view key) const;
  const std::vector<GgufValue>& values() const { return content_.values; }

  // The plain forms need the key; the Or forms give `otherwise` when it is absent.
  Result<int64_t> Int(std::string_view key, int64_t min, int64_t max) const;
  Result<int64_t> IntOr(std::string_view key, int64_t min, int64_t max, int64_t otherwise) const;
  Result<bool> BoolOr(std::string_view key, bool otherwise) const;
  Result<std::string> Text(std::string_view key) const;
  Result<std::string> TextOr(std::string_view key, std::string otherwise) const;
  // The shortest decimal text that stands for the number; a number that is not finite is an error.
  Result<std::string> Decimal(std::string_view key) const;
  // Of an array; the texts borrow the mapping.
  Result<std::vector<std::string_view>> Texts(std::string_view key) const;
  Result<std::vector<int64_t>> Ints(std::string_view key) const;
  // "<file>: <key>: <what>"
  Status Error(std::string_view key, std::string_view what) const;

 private:
  GgufFile() = default;
  static Result<GgufFile> OpenOne(const std::string& path);
  Status AddParts();
  Result<const GgufValue*> Need(std::string_view key, bool is_array) const;

  std::vector<std::unique_ptr<MappedFile>> files_;
  GgufContent content_;  // of the first
  std::vector<TensorInfo> tensors_;
};

}  // namespace expertflow

// Writes a safetensors file as a stream: the tensors are declared first, then their bytes are
// appended in that order, in pieces of any size. The file appears under its name only when
// Finish() succeeded. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/atomic_file.h"
#include "common/status.h"
#include "model/checkpoint/element_type.h"

namespace expertflow {

struct TensorDeclaration {
  std::string name;
  ElementType type = ElementType::kF32;
  std::vector<int64_t> shape;
};

class SafetensorsWriter {
 public:
  // Writes the header. Impossible shapes and equal names are errors.
  static Result<SafetensorsWriter> Create(const std::string& path,
                                          const std::vector<TensorDeclaration>& tensors);

  // A full disk, or more bytes than were declared, is an error.
  Status Append(std::span<const uint8_t> bytes);
  // Fails when bytes are missing. Nothing may be appended after it.
  Status Finish();

 private:
  SafetensorsWriter(AtomicFile file, uint64_t data_bytes)
      : file_(std::move(file)), left_bytes_(data_bytes) {}

  AtomicFile file_;
  uint64_t left_bytes_;
};

}  // namespace expertflow

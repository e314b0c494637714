// A whole file mapped read-only. The mapping outlives the descriptor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/status.h"

namespace expertflow {

class MappedFile {
 public:
  // Errors name the path. An empty file gives an empty span.
  static Result<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  MappedFile() = default;
  std::string path_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Whole small file as a string; more than `max_bytes` is an error that names the file and the
// limit.
Result<std::string> ReadFileToString(const std::string& path, size_t max_bytes);
// Writes all of `bytes` where the descriptor stands; errors name `path`.
Status WriteAll(int fd, std::span<const uint8_t> bytes, const std::string& path);
// Replaces `path` atomically (temporary file in the same folder, fsync, rename).
Status WriteFileAtomically(const std::string& path, std::string_view content);

}  // namespace expertflow

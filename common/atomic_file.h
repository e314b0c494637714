// A large file that appears under its name only when it is complete: written to a temporary name in
// the same folder, then fsync and rename. One writer object per file; the descriptor may be used
// from several threads (pwrite).
#pragma once

#include <string>

#include "common/status.h"
#include "common/unique_fd.h"

namespace expertflow {

class AtomicFile {
 public:
  // Errors name `path`.
  static Result<AtomicFile> Create(const std::string& path);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  // Removes the temporary file unless Commit() succeeded.
  ~AtomicFile();

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  // Makes the content durable and visible as path(). REQUIRES: not yet committed
  Status Commit();

 private:
  AtomicFile() = default;
  void Discard();

  std::string path_;
  std::string temporary_;  // empty once committed
  UniqueFd fd_;
};

}  // namespace expertflow

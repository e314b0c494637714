// A packed store file while it is written: PATH.part, and PATH.part.done, which lists the units
// that are in it. A process that is killed leaves both, and the next one with the same checkpoint
// and settings goes on from there; an error removes both. One process at a time; the descriptor and
// the list may be used from several threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/unique_fd.h"
#include "expert_store/store_layout.h"

namespace expertflow {

class PackFile {
 public:
  // Takes up what a killed process left for the same layout of the same files (by path, size and
  // time of change). Another process that writes the file is an error.
  static Result<PackFile> Open(const std::string& path, const StoreLayout& layout);
  PackFile(PackFile&& other) noexcept;
  // Removes both files unless Commit() succeeded.
  ~PackFile();

  int fd() const { return data_.get(); }
  // XXH3-64 of a unit that is in the file already, as the list says; nothing else was checked.
  std::optional<uint64_t> Listed(size_t unit) const { return listed_[unit]; }
  // The unit's bytes have been written.
  Status List(size_t unit, uint64_t checksum);
  // Makes the file durable and visible as `path`.
  Status Commit();

 private:
  PackFile() = default;
  Status ReadList(size_t units, uint64_t identity);

  std::string path_;  // empty once committed, and when moved from
  UniqueFd data_;
  UniqueFd list_;  // locked
  std::vector<std::optional<uint64_t>> listed_;
};

}  // namespace expertflow

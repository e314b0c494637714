// Fills a store from a checkpoint: several threads read the files in order, checksum the bytes
// while they are in the cache, and write them to the segment or the packed file. Writing through
// the descriptor spares the page faults and the zeroing that writing through a mapping costs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "common/status.h"
#include "expert_store/quantise.h"
#include "expert_store/store_layout.h"

namespace expertflow {

struct StoreFillOptions {
  int threads = 0;  // 0: enough to keep the disk busy
  // Called on the calling thread about ten times a second, and at the end of a success.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress;
  // Optional; of each matrix that is quantised and was not before, from any thread, one call at a
  // time.
  std::function<void(const TensorInfo& tensor, const QuantisationError& error)> quantised;
  // Optional; the fill ends with kCancelled soon after it turns true.
  const std::atomic<bool>* cancelled = nullptr;
};

// Writes everything but the header's state and owner; what lies between the tensors stays as it is.
// A checkpoint file that shrank is an error. `name` is for messages.
// REQUIRES: `fd` has layout.total_bytes(), all zero apart from state and owner
Status FillStore(const StoreLayout& layout, int fd, const std::string& name,
                 const StoreFillOptions& options);

// Writes a packed store file, which appears only when it is complete. Goes on where a process that
// was killed has stopped (pack_file.h): units that it listed are read and compared with their
// checksums, and `quantised` is not called for them. A full disk is kResourceExhausted; an error
// leaves nothing behind.
Status PackStore(const StoreLayout& layout, const std::string& path,
                 const StoreFillOptions& options);

}  // namespace expertflow

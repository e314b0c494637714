// Fills a store from a checkpoint: several threads read the files in large pieces, straight into
// the segment or through a buffer into a packed file, and checksum the bytes in the same pass.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "common/status.h"
#include "expert_store/store_layout.h"

namespace expertflow {

struct StoreFillOptions {
  int threads = 0;  // 0: enough to keep the disk busy
  // Called on the calling thread about ten times a second, and at the end of a success.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress;
  // Optional; the fill ends with kCancelled soon after it turns true.
  const std::atomic<bool>* cancelled = nullptr;
};

// Writes everything but the header's state and owner. A file that shrank is an error.
// REQUIRES: `memory` is zero, page aligned, and has layout.total_bytes()
Status FillStore(const StoreLayout& layout, std::span<uint8_t> memory,
                 const StoreFillOptions& options);

// Writes a packed store file, which appears only when it is complete. A full disk is
// kResourceExhausted and leaves nothing behind.
Status PackStore(const StoreLayout& layout, const std::string& path,
                 const StoreFillOptions& options);

}  // namespace expertflow

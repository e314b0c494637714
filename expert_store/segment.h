// The host's shared-memory segment, as its owner sees it: create, fill, publish, remove. Readers
// use StoreView.
//
// Ownership is an exclusive flock on the segment, which the kernel releases when the owner dies
// however it dies, so two owners are impossible and a dead one is known at once. The header also
// names the owner and its job (pid, start time, boot), for reports and for deciding whether a
// segment without an owner still has a job that may adopt it.
//
// A StoreSegment belongs to one thread. The free functions are safe against other processes that
// create, adopt or sweep at the same time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "expert_store/layout.h"
#include "expert_store/store_layout.h"
#include "expert_store/store_view.h"
#include "expert_store/store_writer.h"

namespace expertflow {

struct SegmentOptions {
  std::string job_id;  // 1 to 64 of [A-Za-z0-9._-]; unique on the host
  pid_t job_pid = 0;   // while it lives, sweeping spares the segment; 0: the owner's life decides
};

// "expertflow-<job id>-store"
std::string SegmentName(const std::string& job_id);

class StoreSegment {
 public:
  // Checks /dev/shm and memory, then creates the segment and commits all of its memory, zeroed:
  // it cannot run out later. A stale segment of this name is replaced; one with a live owner is
  // kFailedPrecondition.
  static Result<StoreSegment> Create(const SegmentOptions& options, uint64_t total_bytes);
  // Takes over the job's published segment after its owner died. kNotFound when there is none,
  // kFailedPrecondition when its owner lives, it was never published, or it holds another model
  // than `expected`.
  static Result<StoreSegment> Adopt(const SegmentOptions& options,
                                    std::optional<Fingerprint> expected);

  StoreSegment(StoreSegment&& other) noexcept;
  StoreSegment& operator=(StoreSegment&& other) noexcept;
  // Removes the name; readers keep their mappings. A forked child's copy removes nothing.
  ~StoreSegment();

  const std::string& name() const;
  // Loads the checkpoint. REQUIRES: not published; created with layout.total_bytes()
  Status Fill(const StoreLayout& layout, const StoreFillOptions& options);
  // Checks header and index, then lets readers in.
  Status Publish();
  // REQUIRES: published or adopted
  StoreDescriptor descriptor() const;

 private:
  struct State;
  explicit StoreSegment(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct SegmentInfo {
  std::string name;
  uint64_t bytes = 0;
  bool ready = false;
  pid_t owner_pid = 0;  // 0: creation never got that far
  bool owner_alive = false;
  bool job_alive = false;
  // Why it may be removed; empty while its owner or its job lives.
  std::string stale_reason;
};

// All segments with our prefix that this user may open, sorted by name.
std::vector<SegmentInfo> ListSegments();
// Removes the stale ones and tells which. A segment that a live process is creating, owns, or may
// still adopt is never removed.
std::vector<SegmentInfo> SweepStale();

}  // namespace expertflow

// Which worker runs which sequence: a pure policy (docs/design.md). Sequences wait by rank, the
// lower first, and a sequence whose worker died waits again. A place goes to the worker that has
// the most of the sequence's beginning in its KV cache, as far as is known, unless it runs many
// more sequences than another one; then to the one that runs fewest, the lowest id among equals.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "common/digest.h"
#include "common/ids.h"
#include "common/status.h"
#include "coordinator/policy/prefix_directory.h"

namespace expertflow {

struct PlacementOptions {
  int32_t sequences_per_worker_max = 16;
  uint32_t queued_max = 1024;
};

struct Assignment {
  SequenceId sequence;
  WorkerId worker;
};

class Placement {
 public:
  explicit Placement(const PlacementOptions& options) : options_(options) {}

  // `blocks`: hashes of its full blocks. False when the queue is full.
  bool Add(SequenceId sequence, int64_t rank, std::vector<uint64_t> blocks);
  // Its worker has computed this much of it.
  void Computed(SequenceId sequence, const std::vector<uint64_t>& blocks);
  // Ended or cancelled, wherever it is.
  void Remove(SequenceId sequence);
  // `kv_blocks`: that the worker can keep for others; 0: none.
  void WorkerReady(WorkerId worker, uint64_t kv_blocks);
  // Its sequences are queued again; returns them, in the order of their ids.
  std::vector<SequenceId> WorkerGone(WorkerId worker);
  // Gives places to waiting sequences.
  std::vector<Assignment> Assign();

  std::optional<WorkerId> WorkerOf(SequenceId sequence) const;
  size_t queued() const { return queue_.size(); }
  size_t running() const { return sequences_.size() - queue_.size(); }
  size_t workers() const { return workers_.size(); }

  Status CheckInvariants() const;
  // Folds every decision that was made.
  uint64_t digest() const { return digest_.value(); }

 private:
  struct Sequence {
    int64_t rank = 0;
    std::vector<uint64_t> blocks;
    std::optional<WorkerId> worker;  // none: it waits
  };
  struct Worker {
    int32_t running = 0;
    PrefixDirectory prefixes;
  };
  using Workers = std::map<WorkerId, Worker>;

  // The worker that should run it; end: all are full.
  Workers::iterator Choose(const Sequence& sequence);

  const PlacementOptions options_;
  std::map<SequenceId, Sequence> sequences_;
  std::set<std::pair<int64_t, SequenceId>> queue_;  // rank and id of those that wait
  Workers workers_;
  Digest digest_;
};

}  // namespace expertflow

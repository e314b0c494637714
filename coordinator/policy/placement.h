// Which worker runs which sequence: a pure policy (docs/design.md). Sequences wait in arrival
// order; a place goes to the ready worker with the fewest running sequences, the lowest id among
// equals. A sequence whose worker died goes back to the front of the queue.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "common/digest.h"
#include "common/ids.h"
#include "common/status.h"

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

  // False when the queue is full.
  bool Add(SequenceId sequence);
  // Ended or cancelled, wherever it is.
  void Remove(SequenceId sequence);
  void WorkerReady(WorkerId worker);
  // Its sequences are queued again, in their order; returns them.
  std::vector<SequenceId> WorkerGone(WorkerId worker);
  // Gives places to waiting sequences.
  std::vector<Assignment> Assign();

  std::optional<WorkerId> WorkerOf(SequenceId sequence) const;
  size_t queued() const { return queue_.size(); }
  size_t running() const { return running_.size(); }
  size_t workers() const { return workers_.size(); }

  Status CheckInvariants() const;
  // Folds every decision that was made.
  uint64_t digest() const { return digest_.value(); }

 private:
  const PlacementOptions options_;
  std::deque<SequenceId> queue_;
  std::map<WorkerId, int32_t> workers_;  // running sequences
  std::map<SequenceId, WorkerId> running_;
  Digest digest_;
};

}  // namespace expertflow

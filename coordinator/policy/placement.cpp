#include "coordinator/policy/placement.h"

#include <algorithm>

namespace expertflow {

bool Placement::Add(SequenceId sequence, int64_t rank, std::vector<uint64_t> blocks) {
  if (queue_.size() >= options_.queued_max) return false;
  sequences_[sequence] = {rank, std::move(blocks), std::nullopt};
  queue_.emplace(rank, sequence);
  return true;
}

void Placement::Computed(SequenceId sequence, const std::vector<uint64_t>& blocks) {
  const auto worker = WorkerOf(sequence);
  if (worker) workers_.at(*worker).prefixes.Add(blocks);
}

void Placement::Remove(SequenceId sequence) {
  const auto found = sequences_.extract(sequence);
  if (!found) return;
  const Sequence& removed = found.mapped();
  if (removed.worker) {
    --workers_.at(*removed.worker).running;
  } else {
    queue_.erase({removed.rank, sequence});
  }
}

void Placement::WorkerReady(WorkerId worker, uint64_t kv_blocks) {
  workers_.try_emplace(worker, Worker{0, PrefixDirectory(kv_blocks)});
}

std::vector<SequenceId> Placement::WorkerGone(WorkerId worker) {
  std::vector<SequenceId> orphans;
  for (auto& [id, sequence] : sequences_) {
    if (sequence.worker != worker) continue;
    sequence.worker.reset();
    queue_.emplace(sequence.rank, id);
    orphans.push_back(id);
  }
  workers_.erase(worker);
  return orphans;
}

Placement::Workers::iterator Placement::Choose(const Sequence& sequence) {
  // What a prefix saves is not worth waiting behind a quarter of a worker's places.
  const int32_t more_most = std::max(1, options_.sequences_per_worker_max / 4);
  const auto least = std::min_element(
      workers_.begin(), workers_.end(),
      [](const auto& a, const auto& b) { return a.second.running < b.second.running; });
  if (least == workers_.end() || least->second.running >= options_.sequences_per_worker_max) {
    return workers_.end();
  }
  auto best = least;
  size_t best_known = least->second.prefixes.CountKnown(sequence.blocks);
  for (auto worker = workers_.begin(); worker != workers_.end(); ++worker) {
    const int32_t running = worker->second.running;
    if (running >= options_.sequences_per_worker_max) continue;
    if (running > least->second.running + more_most) continue;
    const size_t known = worker->second.prefixes.CountKnown(sequence.blocks);
    if (known < best_known) continue;
    if (known == best_known && running >= best->second.running) continue;
    best = worker;
    best_known = known;
  }
  return best;
}

std::vector<Assignment> Placement::Assign() {
  std::vector<Assignment> assignments;
  while (!queue_.empty()) {
    const SequenceId id = queue_.begin()->second;
    Sequence& sequence = sequences_.at(id);
    const auto chosen = Choose(sequence);
    if (chosen == workers_.end()) break;
    queue_.erase(queue_.begin());
    sequence.worker = chosen->first;
    ++chosen->second.running;
    chosen->second.prefixes.Add(sequence.blocks);
    assignments.push_back({id, chosen->first});
    digest_.Fold(id.value);
    digest_.Fold(static_cast<uint64_t>(chosen->first.value));
  }
  return assignments;
}

std::optional<WorkerId> Placement::WorkerOf(SequenceId sequence) const {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) return std::nullopt;
  return found->second.worker;
}

Status Placement::CheckInvariants() const {
  std::map<WorkerId, int32_t> counted;
  size_t waiting = 0;
  for (const auto& [id, sequence] : sequences_) {
    if (queue_.contains({sequence.rank, id}) == sequence.worker.has_value()) {
      return Internal("a sequence runs and waits, or does neither");
    }
    if (!sequence.worker) {
      ++waiting;
    } else if (!workers_.contains(*sequence.worker)) {
      return Internal("a sequence runs on a worker that is gone");
    } else {
      ++counted[*sequence.worker];
    }
  }
  if (waiting != queue_.size()) return Internal("the queue has a sequence that nobody knows");
  for (const auto& [id, worker] : workers_) {
    if (worker.running != counted[id]) return Internal("a worker's count is wrong");
    if (worker.running > options_.sequences_per_worker_max) {
      return Internal("a worker has too many sequences");
    }
  }
  return OkStatus();
}

}  // namespace expertflow

#include "coordinator/policy/placement.h"

#include <algorithm>

namespace expertflow {

bool Placement::Add(SequenceId sequence) {
  if (queue_.size() >= options_.queued_max) return false;
  queue_.push_back(sequence);
  return true;
}

void Placement::Remove(SequenceId sequence) {
  std::erase(queue_, sequence);
  const auto found = running_.find(sequence);
  if (found == running_.end()) return;
  --workers_[found->second];
  running_.erase(found);
}

void Placement::WorkerReady(WorkerId worker) {
  workers_.try_emplace(worker, 0);
}

std::vector<SequenceId> Placement::WorkerGone(WorkerId worker) {
  std::vector<SequenceId> orphans;
  for (const auto& [sequence, at] : running_) {
    if (at == worker) orphans.push_back(sequence);
  }
  for (const SequenceId sequence : orphans) running_.erase(sequence);
  queue_.insert(queue_.begin(), orphans.begin(), orphans.end());
  workers_.erase(worker);
  return orphans;
}

std::vector<Assignment> Placement::Assign() {
  std::vector<Assignment> assignments;
  while (!queue_.empty() && !workers_.empty()) {
    const auto least =
        std::min_element(workers_.begin(), workers_.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (least->second >= options_.sequences_per_worker_max) break;
    const SequenceId sequence = queue_.front();
    queue_.pop_front();
    ++least->second;
    running_.emplace(sequence, least->first);
    assignments.push_back({sequence, least->first});
    digest_.Fold(sequence.value);
    digest_.Fold(static_cast<uint64_t>(least->first.value));
  }
  return assignments;
}

std::optional<WorkerId> Placement::WorkerOf(SequenceId sequence) const {
  const auto found = running_.find(sequence);
  if (found == running_.end()) return std::nullopt;
  return found->second;
}

Status Placement::CheckInvariants() const {
  std::map<WorkerId, int32_t> counted;
  for (const auto& [sequence, worker] : running_) {
    if (!workers_.contains(worker)) return Internal("a sequence runs on a worker that is gone");
    ++counted[worker];
    if (std::find(queue_.begin(), queue_.end(), sequence) != queue_.end()) {
      return Internal("a sequence runs and waits");
    }
  }
  for (const auto& [worker, count] : workers_) {
    if (count != counted[worker]) return Internal("a worker's count is wrong");
    if (count > options_.sequences_per_worker_max) {
      return Internal("a worker has too many sequences");
    }
  }
  return OkStatus();
}

}  // namespace expertflow

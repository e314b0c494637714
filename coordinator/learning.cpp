// Coordinator: what predictors of workers learn is added up, counted in versions and published; no
// worker waits for it.
#include <utility>

#include "coordinator/coordinator.h"
#include "predictor/learnt_messages.h"

namespace expertflow {

void Coordinator::OnPredictorLearnt(Process* process, const PredictorLearnt& learnt,
                                    int64_t now_ns) {
  const ProcessId id = process->member.id;
  const auto batch = LearntBatchFrom(learnt);
  if (!batch.ok()) {
    OnProcessGone(id, batch.status().message(), now_ns);
    return;
  }
  if (options_.shares_learning) learnt_.Add(WorkerId(id.value), *batch);
}

void Coordinator::PublishLearnt(int64_t now_ns) {
  if (!learnt_.Advance()) return;
  learnt_published_ns_ = now_ns;
  PredictorVersion all = ToMessage(learnt_.ChangedSince(0));
  bool board = false;
  for (auto& [id, process] : processes_) {
    if (process.reads_board) {
      board = true;
      all.included.push_back({id.value, learnt_.Included(WorkerId(id.value))});
    } else if (process.ready) {
      SendLearnt(&process);
    }
  }
  if (board) port_.PostOnBoard(all);
}

void Coordinator::SendLearnt(Process* process) {
  const uint64_t version = learnt_.version();
  if (process->member.info.role != ProcessRole::kWorker || process->reads_board ||
      process->learnt_version == version) {
    return;
  }
  const ProcessId id = process->member.id;
  const uint64_t known = std::exchange(process->learnt_version, version);
  PredictorVersion changed = ToMessage(learnt_.ChangedSince(known));
  changed.included.push_back({id.value, learnt_.Included(WorkerId(id.value))});
  port_.Send(id, changed);
}

LearningSnapshot Coordinator::SnapshotLearning(int64_t now_ns) const {
  LearningSnapshot learning;
  learning.version = learnt_.version();
  learning.age_ns = learning.version == 0 ? 0 : now_ns - learnt_published_ns_;
  learning.batches = learnt_.batches();
  learning.tokens = learnt_.tokens();
  learning.leaves = learnt_.leaves();
  learning.tokens_left_out = learnt_.tokens_left_out();
  for (int32_t d = 1; d <= kPredictDistances; ++d) {
    const LiveRecall& recall = learnt_.recall(d);
    if (recall.uses == 0) continue;
    learning.recall.push_back(
        {d, recall.recall(), recall.pre_gate_recall(), recall.overconfidence(), recall.falls_back});
  }
  return learning;
}

}  // namespace expertflow

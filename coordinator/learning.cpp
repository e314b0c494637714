// Coordinator: what predictors of workers learn is added up, counted in versions and published, and
// so is the lead of all workers' prefetch, from what they measure. No worker waits for either.
#include <algorithm>
#include <utility>
#include <vector>

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
  std::vector<IncludedBatch> readers;
  for (auto& [id, process] : processes_) {
    if (process.reads_board) {
      readers.push_back({id.value, learnt_.Included(WorkerId(id.value))});
    } else if (process.ready) {
      SendLearnt(&process);
    }
  }
  if (readers.empty()) return;
  PredictorVersion all = ToMessage(learnt_.ChangedSince(0));
  all.included = std::move(readers);
  port_.PostOnBoard(all);
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

void Coordinator::OnStrideReport(Process* process, const StrideReport& report, int64_t now_ns) {
  if (!options_.shares_stride) return;
  const auto stride_max = static_cast<int32_t>(std::min(report.stride_max, uint32_t{INT32_MAX}));
  if (!stride_.OnReport(WorkerId(process->member.id.value), report.expert_bytes, stride_max,
                        StrideWindowFrom(report))) {
    return;
  }
  stride_published_ns_ = now_ns;
  port_.SetBoardWord(PackStride(stride_.published()));
  for (const auto& [id, other] : processes_) SendStride(other);
}

void Coordinator::SendStride(const Process& process) {
  const bool by_message =
      process.member.info.role == ProcessRole::kWorker && process.ready && !process.reads_board;
  if (!by_message || stride_.published().number == 0) return;
  port_.Send(process.member.id, StridePublished{PackStride(stride_.published())});
}

StrideSnapshot Coordinator::SnapshotStride(int64_t now_ns) const {
  StrideSnapshot snapshot;
  const PublishedStride& published = stride_.published();
  if (published.number == 0) return snapshot;
  snapshot.stride = static_cast<uint32_t>(published.stride);
  snapshot.reason = static_cast<StrideReason>(published.cause);
  snapshot.link_bound = published.link_bound;
  snapshot.number = published.number;
  snapshot.age_ns = now_ns - stride_published_ns_;
  snapshot.rounds = stride_.rounds();
  for (const StrideStep& step : stride_.steps()) {
    snapshot.moves.push_back(
        {step.event, static_cast<uint32_t>(step.stride), static_cast<StrideReason>(step.cause)});
  }
  return snapshot;
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
    learning.recall.push_back({d, recall.recall(), recall.pre_gate_recall(),
                               recall.overconfidence(),
                               (learnt_.pre_gate_distances() >> (d - 1) & 1u) != 0});
  }
  return learning;
}

}  // namespace expertflow

#include "sim/routing_trace.h"

#include <algorithm>

#include "common/check.h"

namespace expertflow {

std::vector<int32_t> ExpertBases(std::span<const int32_t> experts) {
  std::vector<int32_t> base = {0};
  for (const int32_t count : experts) base.push_back(base.back() + count);
  return base;
}

LockstepBuilder::LockstepBuilder(const RoutingTrace& trace, int32_t batch) : trace_(trace) {
  lockstep_.layers = trace.layers();
  lockstep_.batch = batch;
  lockstep_.base = ExpertBases(trace.experts);
  lockstep_.step_begin = {0};
  lockstep_.event_begin = {0};
  uses_.resize(static_cast<size_t>(lockstep_.base.back()));
}

void LockstepBuilder::EndStep() {
  const size_t begin = lockstep_.step_begin.back();
  lockstep_.step_begin.push_back(lockstep_.rows.size());
  for (int32_t layer = 0; layer < lockstep_.layers; ++layer) {
    const int32_t base = lockstep_.base[static_cast<size_t>(layer)];
    for (size_t r = begin; r < lockstep_.rows.size(); ++r) Count(lockstep_.rows[r], layer, base);
    for (int32_t e = base; e < lockstep_.base[static_cast<size_t>(layer) + 1]; ++e) {
      Uses& uses = uses_[static_cast<size_t>(e)];
      if (uses.decode + uses.prefill == 0) continue;
      lockstep_.experts.push_back(e);
      lockstep_.users.push_back(uses.decode);
      lockstep_.prefill_users.push_back(uses.prefill);
      uses = {};
    }
    lockstep_.event_begin.push_back(lockstep_.experts.size());
  }
}

void LockstepBuilder::Count(const Lockstep::Row& row, int32_t layer, int32_t base) {
  const auto chosen = trace_.ChosenAt(row.row, layer);
  for (size_t j = 0; j < chosen.size(); ++j) {
    bool again = false;  // a router may name an expert twice (FIELD 15)
    for (size_t i = 0; i < j; ++i) again = again || chosen[i] == chosen[j];
    if (again) continue;
    Uses& uses = uses_[static_cast<size_t>(base) + chosen[j]];
    ++(row.prefill ? uses.prefill : uses.decode);
  }
}

Lockstep MakeLockstep(const RoutingTrace& trace, std::span<const int32_t> sequences,
                      int32_t batch) {
  CHECK(batch > 0);
  LockstepBuilder steps(trace, batch);
  struct Lane {
    int32_t sequence = -1;
    size_t next = 0;
  };
  std::vector<Lane> lanes(static_cast<size_t>(batch));
  size_t waiting = 0;  // first sequence that no lane has taken
  while (true) {
    for (size_t lane = 0; lane < lanes.size(); ++lane) {
      Lane& l = lanes[lane];
      if (l.sequence < 0 && waiting < sequences.size()) l = {sequences[waiting++], 0};
      if (l.sequence < 0) continue;
      const RoutedSequence& sequence = trace.sequences[static_cast<size_t>(l.sequence)];
      steps.AddRow({static_cast<int32_t>(lane), l.sequence, sequence.first + l.next, l.next == 0});
      if (++l.next == sequence.rows) l.sequence = -1;
    }
    if (steps.rows() == 0) break;
    steps.EndStep();
  }
  Lockstep lockstep = std::move(steps).Take();
  lockstep.prefill_users.clear();
  return lockstep;
}

Lockstep MakeRecordedSteps(const RoutingTrace& trace, std::span<const RecordedRow> rows) {
  CHECK(rows.size() == trace.rows());
  LockstepBuilder steps(trace, 0);
  int32_t sequences = 0;
  for (const RecordedRow& row : rows) sequences = std::max(sequences, row.sequence + 1);
  std::vector<size_t> last(static_cast<size_t>(sequences));  // its last row
  for (size_t i = 0; i < rows.size(); ++i) last[static_cast<size_t>(rows[i].sequence)] = i;
  std::vector<int32_t> lane_of(static_cast<size_t>(sequences), -1);
  std::vector<int32_t> owner;  // by lane; -1: free
  for (size_t i = 0; i < rows.size(); ++i) {
    const RecordedRow& row = rows[i];
    CHECK(i == 0 || row.step >= rows[i - 1].step);
    if (i > 0 && row.step != rows[i - 1].step) {
      steps.EndStep();
      for (int32_t& sequence : owner) {
        if (sequence >= 0 && last[static_cast<size_t>(sequence)] < i) sequence = -1;
      }
    }
    int32_t& lane = lane_of[static_cast<size_t>(row.sequence)];
    const bool first = lane < 0;
    if (first) {
      const auto free = std::find(owner.begin(), owner.end(), -1);
      lane = static_cast<int32_t>(free - owner.begin());
      if (free == owner.end()) owner.push_back(-1);
      owner[static_cast<size_t>(lane)] = row.sequence;
    }
    steps.AddRow({lane, row.sequence, i, first, row.prefill, row.sampled});
  }
  if (!rows.empty()) steps.EndStep();
  Lockstep lockstep = std::move(steps).Take();
  lockstep.batch = static_cast<int32_t>(owner.size());
  return lockstep;
}

}  // namespace expertflow

#include "sim/routing_trace.h"

#include "common/check.h"

namespace expertflow {

std::vector<int32_t> ExpertBases(std::span<const int32_t> experts) {
  std::vector<int32_t> base = {0};
  for (const int32_t count : experts) base.push_back(base.back() + count);
  return base;
}

Lockstep MakeLockstep(const RoutingTrace& trace, std::span<const int32_t> sequences,
                      int32_t batch) {
  CHECK(batch > 0);
  Lockstep lockstep;
  lockstep.layers = trace.layers();
  lockstep.batch = batch;
  lockstep.base = ExpertBases(trace.experts);
  lockstep.step_begin = {0};
  lockstep.event_begin = {0};
  struct Lane {
    int32_t sequence = -1;
    size_t next = 0;
  };
  std::vector<Lane> lanes(static_cast<size_t>(batch));
  std::vector<int32_t> uses(static_cast<size_t>(lockstep.base.back()), 0);
  size_t waiting = 0;  // first sequence that no lane has taken
  while (true) {
    const size_t begin = lockstep.rows.size();
    for (size_t lane = 0; lane < lanes.size(); ++lane) {
      Lane& l = lanes[lane];
      if (l.sequence < 0 && waiting < sequences.size()) l = {sequences[waiting++], 0};
      if (l.sequence < 0) continue;
      const RoutedSequence& sequence = trace.sequences[static_cast<size_t>(l.sequence)];
      lockstep.rows.push_back(
          {static_cast<int32_t>(lane), l.sequence, sequence.first + l.next, l.next == 0});
      if (++l.next == sequence.rows) l.sequence = -1;
    }
    if (lockstep.rows.size() == begin) break;
    lockstep.step_begin.push_back(lockstep.rows.size());
    for (int32_t layer = 0; layer < lockstep.layers; ++layer) {
      const int32_t base = lockstep.base[static_cast<size_t>(layer)];
      for (size_t r = begin; r < lockstep.rows.size(); ++r) {
        const auto chosen = trace.ChosenAt(lockstep.rows[r].row, layer);
        for (size_t j = 0; j < chosen.size(); ++j) {
          bool again = false;  // a router may name an expert twice (FIELD 15)
          for (size_t i = 0; i < j; ++i) again = again || chosen[i] == chosen[j];
          if (!again) ++uses[static_cast<size_t>(base + chosen[j])];
        }
      }
      for (int32_t e = base; e < lockstep.base[static_cast<size_t>(layer) + 1]; ++e) {
        int32_t& count = uses[static_cast<size_t>(e)];
        if (count == 0) continue;
        lockstep.experts.push_back(e);
        lockstep.users.push_back(count);
        count = 0;
      }
      lockstep.event_begin.push_back(lockstep.experts.size());
    }
  }
  return lockstep;
}

}  // namespace expertflow

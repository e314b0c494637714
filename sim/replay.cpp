#include "sim/replay.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "common/check.h"
#include "sim/replay_cache.h"
#include "worker/cache/slot_classes.h"

namespace expertflow {
namespace {

// splitmix64: small, seeded, the same everywhere.
uint64_t NextRandom(uint64_t* state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

double Rate(double misses, double uses) {
  return uses > 0 ? misses / uses : 0;
}

// Misses and uses of one sequence. A use that several rows share counts in equal parts for each.
struct SequenceSums {
  double uses = 0;
  double misses = 0;
};

class ReplayArm {
 public:
  // `block_bytes` may be empty. REQUIRES: it outlives the arm
  ReplayArm(std::unique_ptr<ReplayCache> cache, ReplayRow row, size_t sequences,
            std::span<const uint64_t> block_bytes)
      : row_(std::move(row)),
        cache_(std::move(cache)),
        sums_(sequences),
        block_bytes_(block_bytes) {}

  Status OnEvent(const ReplayEvent& event, const ReplayOptions& options) {
    missed_.resize(event.experts.size());
    const bool timed = options.now_ns != nullptr && event.number % kTimedEach == 0;
    const int64_t begin_ns = timed ? options.now_ns() : 0;
    cache_->OnEvent(event, missed_);
    if (timed) event_ns_.push_back(options.now_ns() - begin_ns);
    ++row_.events;
    row_.uses += missed_.size();
    for (const uint8_t miss : missed_) {
      row_.misses += miss;
      row_.digest = (row_.digest ^ miss) * 1099511628211u;
    }
    if (!block_bytes_.empty()) CountBytes(event);
    if (!options.check_invariants) return OkStatus();
    if (cache_->resident() > row_.slots) return Internal(row_.policy + ": more than its slots");
    return cache_->CheckInvariants().WithContext(row_.policy);
  }

  // `used`: the experts of the latest event that a row of the sequence uses.
  void Attribute(size_t sequence, std::span<const size_t> used, std::span<const int32_t> users) {
    SequenceSums& sums = sums_[sequence];
    for (const size_t i : used) {
      const double share = 1.0 / users[i];
      sums.uses += share;
      if (missed_[i] != 0) sums.misses += share;
    }
  }

  ReplayRow Finish(std::span<const int32_t> sequences, int32_t rounds, uint64_t seed) {
    row_.miss_rate = Rate(static_cast<double>(row_.misses), static_cast<double>(row_.uses));
    row_.miss_rate_low = row_.miss_rate_high = row_.miss_rate;
    if (rounds > 0 && !sequences.empty()) {
      std::vector<double> rates;
      for (int32_t round = 0; round < rounds; ++round) {
        SequenceSums sum;
        for (size_t i = 0; i < sequences.size(); ++i) {
          const int32_t sequence = sequences[NextRandom(&seed) % sequences.size()];
          const SequenceSums& drawn = sums_[static_cast<size_t>(sequence)];
          sum.uses += drawn.uses;
          sum.misses += drawn.misses;
        }
        rates.push_back(Rate(sum.misses, sum.uses));
      }
      std::sort(rates.begin(), rates.end());
      row_.miss_rate_low = rates[rates.size() / 40];
      row_.miss_rate_high = rates[rates.size() - 1 - rates.size() / 40];
    }
    if (!event_ns_.empty()) {
      std::sort(event_ns_.begin(), event_ns_.end());
      row_.event_ns_median = event_ns_[event_ns_.size() / 2];
      row_.event_ns_p99 = event_ns_[event_ns_.size() * 99 / 100];
    }
    return row_;
  }

 private:
  // Of so many events one is timed: a number that shares no factor with most models' layers.
  static constexpr size_t kTimedEach = 17;

  void CountBytes(const ReplayEvent& event) {
    for (size_t i = 0; i < missed_.size(); ++i) {
      if (missed_[i] == 0) continue;
      row_.bytes_missed += block_bytes_[static_cast<size_t>(event.experts[i])];
    }
  }

  ReplayRow row_;
  std::unique_ptr<ReplayCache> cache_;
  std::vector<SequenceSums> sums_;
  const std::span<const uint64_t> block_bytes_;
  std::vector<uint8_t> missed_;
  std::vector<int64_t> event_ns_;
};

std::vector<uint64_t> CountUses(const RoutingTrace& trace, std::span<const int32_t> sequences) {
  const std::vector<int32_t> base = ExpertBases(trace.experts);
  std::vector<uint64_t> uses(static_cast<size_t>(base.back()), 0);
  for (const int32_t s : sequences) {
    const RoutedSequence& sequence = trace.sequences[static_cast<size_t>(s)];
    for (size_t row = sequence.first; row < sequence.first + sequence.rows; ++row) {
      for (int32_t layer = 0; layer < trace.layers(); ++layer) {
        for (const uint16_t expert : trace.ChosenAt(row, layer)) {
          ++uses[static_cast<size_t>(base[static_cast<size_t>(layer)]) + expert];
        }
      }
    }
  }
  return uses;
}

// For the bootstrap: which experts of an event (as indices into it) a row uses.
void UsedBy(const RoutingTrace& trace, const Lockstep& lockstep, const ReplayEvent& event,
            size_t row, std::vector<size_t>* used) {
  used->clear();
  const int32_t base = lockstep.base[static_cast<size_t>(event.layer)];
  for (const uint16_t chosen : trace.ChosenAt(row, event.layer)) {
    const auto found = std::lower_bound(event.experts.begin(), event.experts.end(), base + chosen);
    const auto index = static_cast<size_t>(found - event.experts.begin());
    if (std::find(used->begin(), used->end(), index) == used->end()) used->push_back(index);
  }
}

// The small term makes 15 % of 20 experts 3 and not 2.
int32_t ShareOf(int64_t experts, double residency) {
  return static_cast<int32_t>(
      std::min(experts, static_cast<int64_t>(residency * static_cast<double>(experts) + 1e-9)));
}

}  // namespace

Result<std::vector<ReplayRow>> Replay(const RoutingTrace& trace, const ReplayOptions& options,
                                      int32_t batch) {
  const Lockstep lockstep = MakeLockstep(trace, options.sequences, batch);
  const int32_t experts = lockstep.base.back();
  const std::vector<uint64_t> training = CountUses(trace, options.training);
  const double demand = lockstep.steps() == 0 ? 0
                                              : static_cast<double>(lockstep.experts.size()) /
                                                    static_cast<double>(lockstep.steps());
  CHECK(options.block_bytes.empty() || options.block_bytes.size() == static_cast<size_t>(experts));
  const std::vector<SlotClass> classes = SlotClassesOf(CountBlocks(options.block_bytes));
  const std::vector<uint8_t> slot_class = SlotClassesOfEach(classes, options.block_bytes);
  std::vector<ReplayArm> arms;
  for (const std::string& policy : options.policies) {
    for (const double residency : options.residencies) {
      ReplayRow row;
      row.policy = policy;
      row.residency = residency;
      row.batch = batch;
      row.slots = ShareOf(experts, residency);
      std::vector<int32_t> class_slots;
      if (!slot_class.empty()) {
        for (const SlotClass& c : classes) {
          class_slots.push_back(ShareOf(c.experts, residency));
          row.slot_bytes += static_cast<uint64_t>(class_slots.back()) * c.slot_bytes;
        }
        row.slots = std::accumulate(class_slots.begin(), class_slots.end(), 0);
      }
      row.tokens = lockstep.rows.size();
      row.slots_per_demand = demand > 0 ? row.slots / demand : 0;
      row.digest = 14695981039346656037u;
      ReplaySetup setup;
      setup.lockstep = &lockstep;
      setup.slots = row.slots;
      setup.block_bytes = options.block_bytes;
      setup.slot_class = slot_class;
      setup.class_slots = class_slots;
      setup.training_uses = training;
      setup.trace = &trace;
      setup.forecaster = options.forecaster;
      ASSIGN_OR_RETURN(auto cache, MakeReplayCache(policy, setup));
      arms.emplace_back(std::move(cache), std::move(row), trace.sequences.size(),
                        options.block_bytes);
    }
  }
  std::vector<size_t> used;
  for (size_t step = 0; step < lockstep.steps(); ++step) {
    for (int32_t layer = 0; layer < lockstep.layers; ++layer) {
      ReplayEvent event;
      event.number = step * static_cast<size_t>(lockstep.layers) + static_cast<size_t>(layer);
      event.step = step;
      event.layer = layer;
      event.experts = lockstep.ExpertsOf(event.number);
      event.users = lockstep.UsersOf(event.number);
      event.rows = lockstep.RowsOf(step);
      for (ReplayArm& arm : arms) RETURN_IF_ERROR(arm.OnEvent(event, options));
      if (options.bootstrap_rounds == 0) continue;
      for (const Lockstep::Row& row : lockstep.RowsOf(step)) {
        UsedBy(trace, lockstep, event, row.row, &used);
        for (ReplayArm& arm : arms)
          arm.Attribute(static_cast<size_t>(row.sequence), used, event.users);
      }
    }
  }
  std::vector<ReplayRow> rows;
  for (ReplayArm& arm : arms) {
    rows.push_back(arm.Finish(options.sequences, options.bootstrap_rounds, options.seed));
  }
  return rows;
}

void CloseGaps(std::span<ReplayRow> rows) {
  const auto find = [&](const ReplayRow& like, std::string_view policy) -> const ReplayRow* {
    for (const ReplayRow& row : rows) {
      if (row.policy == policy && row.batch == like.batch && row.residency == like.residency) {
        return &row;
      }
    }
    return nullptr;
  };
  for (ReplayRow& row : rows) {
    const ReplayRow* bound = find(row, "belady");
    const auto closed = [&](const ReplayRow* from) -> std::optional<double> {
      if (bound == nullptr || from == nullptr || from->misses <= bound->misses) return std::nullopt;
      return (from->miss_rate - row.miss_rate) / (from->miss_rate - bound->miss_rate);
    };
    row.gap_closed = closed(find(row, "lru"));
    row.gap_closed_layer = closed(find(row, "lru-layer"));
  }
}

}  // namespace expertflow

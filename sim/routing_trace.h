// A recorded routing in memory, as the simulator takes it: which experts each decode step of each
// sequence used, in every MoE layer. Built by the tools from a trace file; plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace expertflow {

struct RoutedSequence {
  size_t first = 0;  // row
  size_t rows = 0;
  friend bool operator==(const RoutedSequence&, const RoutedSequence&) = default;
};

struct RoutingTrace {
  std::vector<int32_t> experts;  // of each MoE layer
  int32_t top_k = 0;
  uint64_t expert_bytes = 0;              // 0: not known
  std::vector<uint16_t> chosen;           // [rows, layers, top_k] within the layer, best first
  std::vector<float> weights;             // [rows, layers, top_k]
  std::vector<RoutedSequence> sequences;  // one after the other, none empty

  int32_t layers() const { return static_cast<int32_t>(experts.size()); }
  size_t rows() const {
    return experts.empty() ? 0 : chosen.size() / (experts.size() * static_cast<size_t>(top_k));
  }
  std::span<const uint16_t> ChosenAt(size_t row, int32_t layer) const {
    const auto k = static_cast<size_t>(top_k);
    return {chosen.data() + (row * experts.size() + static_cast<size_t>(layer)) * k, k};
  }
  std::span<const float> WeightsAt(size_t row, int32_t layer) const {
    const auto k = static_cast<size_t>(top_k);
    return {weights.data() + (row * experts.size() + static_cast<size_t>(layer)) * k, k};
  }
};

// First expert of each layer when all are numbered through, and their sum at the end.
std::vector<int32_t> ExpertBases(std::span<const int32_t> experts);

// Sequences in lockstep: `batch` lanes, each takes the next sequence when its own has ended. An
// event is one (step, layer): the distinct experts of all lanes. All arms of a replay share it.
struct Lockstep {
  struct Row {
    int32_t lane = 0;
    int32_t sequence = 0;
    size_t row = 0;
    bool first = false;    // of its sequence
    bool prefill = false;  // part of a prompt; else it decodes
    bool sampled = true;   // the next token is drawn from it
  };
  int32_t layers = 0;
  int32_t batch = 0;
  std::vector<int32_t> base;       // ExpertBases
  std::vector<size_t> step_begin;  // [steps + 1] into rows
  std::vector<Row> rows;
  std::vector<size_t> event_begin;     // [steps * layers + 1] into experts
  std::vector<int32_t> experts;        // numbered through, ascending within an event
  std::vector<int32_t> users;          // decode rows that use it
  std::vector<int32_t> prefill_users;  // rows of prompts that do; empty: there are none at all

  size_t steps() const { return step_begin.size() - 1; }
  size_t events() const { return event_begin.size() - 1; }
  std::span<const Row> RowsOf(size_t step) const {
    return {rows.data() + step_begin[step], step_begin[step + 1] - step_begin[step]};
  }
  std::span<const int32_t> ExpertsOf(size_t event) const {
    return {experts.data() + event_begin[event], event_begin[event + 1] - event_begin[event]};
  }
  std::span<const int32_t> UsersOf(size_t event) const {
    return {users.data() + event_begin[event], event_begin[event + 1] - event_begin[event]};
  }
  // Of the event's use `i`.
  int32_t PrefillUsersOf(size_t event, size_t i) const {
    return prefill_users.empty() ? 0 : prefill_users[event_begin[event] + i];
  }
};

// Makes a Lockstep step by step. REQUIRES: the trace outlives it
class LockstepBuilder {
 public:
  LockstepBuilder(const RoutingTrace& trace, int32_t batch);

  void AddRow(const Lockstep::Row& row) { lockstep_.rows.push_back(row); }
  // Of the step that is being made.
  size_t rows() const { return lockstep_.rows.size() - lockstep_.step_begin.back(); }
  // The step has all its rows: finds the distinct experts of each layer.
  void EndStep();

  // Grows with each step; its address stays.
  const Lockstep& lockstep() const { return lockstep_; }
  Lockstep Take() && { return std::move(lockstep_); }

 private:
  struct Uses {
    int32_t decode = 0;
    int32_t prefill = 0;
  };

  void Count(const Lockstep::Row& row, int32_t layer, int32_t base);

  const RoutingTrace& trace_;
  Lockstep lockstep_;
  std::vector<Uses> uses_;  // by expert, of the event
};

// `sequences`: which of the trace's, in order. REQUIRES: batch > 0; indices are in range
Lockstep MakeLockstep(const RoutingTrace& trace, std::span<const int32_t> sequences, int32_t batch);

// Where a row of a trace stood in the run that it was recorded from.
struct RecordedRow {
  uint32_t step = 0;
  int32_t sequence = 0;
  bool prefill = false;
  bool sampled = true;
};

// The steps of a recorded run as they were, prompts included: row i of the trace is rows[i]. A
// sequence has the lowest lane that is free when it comes, until its last row; `batch` is how many
// there are. REQUIRES: as many as the trace has rows; steps rise or stay
Lockstep MakeRecordedSteps(const RoutingTrace& trace, std::span<const RecordedRow> rows);

}  // namespace expertflow

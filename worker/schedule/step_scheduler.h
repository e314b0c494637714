// Which sequences of a worker run, and how many tokens of each the next step computes: a pure
// policy.
//
// Sequences go by rank, the lower first. One is admitted when there is a place and when the KV
// cache has blocks for the tokens that it has so far, and a block for each running one to grow; of
// what is yet to be generated nobody knows how much it will be. When the cache is full after all,
// the running sequence of the highest rank is preempted: it gives its blocks back, waits, and later
// computes its tokens again, so it goes on with the same text. The sequence of the lowest rank can
// always take all blocks it needs, so something always advances. No sequence overtakes a waiting
// one of a lower rank, except that with an ExpertDemand the next one is that of the first few which
// adds the fewest experts to those that the running ones are expected to need; nobody is overtaken
// so by more than a few for each place.
//
// A step takes one token of each sequence that decodes, and prompt chunks up to a budget. A chunk
// that another sequence computes in the same step is left out: it will be there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/ids.h"
#include "worker/schedule/expert_demand.h"
#include "worker/schedule/kv_blocks.h"

namespace expertflow {

struct SchedulerOptions {
  int32_t sequences_max = 16;
  int32_t prefill_tokens_max = 512;
  bool reuse_prefixes = true;
  // Admit only when nothing runs, as engines without continuous batching do: for comparison.
  bool static_batches = false;
};

// What scheduling knows of a sequence. The first group is its owner's.
struct ScheduledSequence {
  SequenceId id;
  int64_t rank = 0;                  // among equals the lower id goes first
  int64_t reuse_max = 0;             // tokens from here on have to be computed, not reused
  int32_t prompt_tokens = 0;         // how many of `tokens` are prompt
  std::vector<int32_t> tokens = {};  // grows

  int32_t overtaken = 0;            // by sequences whose experts were more at hand
  std::vector<float> experts = {};  // ExpertDemand::Predict() of its tokens while it waits
  KvTable kv = {};
  int32_t computed = 0;       // tokens whose keys and values are in `kv`
  int32_t given = 0;          // tokens it had when it began: computing them is no decoding
  int32_t reached = 0;        // the most that `computed` has been
  int32_t cached_tokens = 0;  // of the prompt: were never computed for this sequence

  int32_t pending() const { return static_cast<int32_t>(tokens.size()) - computed; }
};

// What a step does.
struct StepPlan {
  struct Rows {
    ScheduledSequence* sequence = nullptr;
    int32_t count = 0;  // tokens from `computed` on
  };
  // The first `tokens` tokens of block `from` belong to the beginning of block `to`, too.
  struct Copy {
    ScheduledSequence* sequence = nullptr;
    int32_t from = -1;
    int32_t to = -1;
    int32_t tokens = 0;
  };
  std::vector<Copy> copies;  // to be done in this order, before anything is computed
  std::vector<Rows> rows;    // those that decode come first
  std::vector<ScheduledSequence*> preempted;  // they wait now; `computed` is 0
};

// Where more KV blocks may come from (memory_balance.h).
class KvRoom {
 public:
  virtual ~KvRoom() = default;
  // `blocks` more are needed. Returns how many there are from now on, numbered on: more, fewer or
  // 0.
  virtual int64_t Give(int64_t blocks) = 0;
};

class StepScheduler {
 public:
  // Both outlive the scheduler. `demand` null: experts do not matter. `room` null: there are no
  // more blocks than these.
  StepScheduler(const SchedulerOptions& options, int64_t kv_blocks,
                const ExpertDemand* demand = nullptr, KvRoom* room = nullptr)
      : options_(options), demand_(demand), room_(room), kv_(kv_blocks, options.reuse_prefixes) {}

  // REQUIRES: it fits the cache when it runs alone; stays where it is until it is removed
  void Add(ScheduledSequence* sequence);
  // Ended or cancelled, wherever it is.
  void Remove(ScheduledSequence* sequence);
  // The next step. `reuse`: see options; off for a step whose every token has to be computed.
  const StepPlan& Plan(bool reuse);
  // The planned step was computed.
  void Advance();

  // The last `blocks` of the KV cache go; false when one of them is held. Not between Plan() and
  // Advance().
  bool ShrinkKv(int64_t blocks) { return kv_.Shrink(blocks); }

  const KvBlocks& kv() const { return kv_; }
  size_t running() const { return running_.size(); }
  size_t waiting() const { return waiting_.size(); }
  uint64_t preemptions() const { return preemptions_; }
  // Tokens that sequences went on from without computing them, those of preempted ones included.
  uint64_t reused_tokens() const { return reused_tokens_; }

  Status CheckInvariants() const;

 private:
  void Admit(bool reuse);
  // Of waiting_: which is next.
  size_t ChooseNext();
  // Of each expert, the probability that no running sequence needs it.
  std::vector<float> UnusedExperts() const;
  void Reuse(ScheduledSequence* sequence);
  bool IsComputedByAnother(const ScheduledSequence& sequence) const;
  // Blocks for the first `tokens` tokens of running_[index]; false when it was preempted itself.
  bool MakeRoom(size_t index, int64_t tokens);
  // Asks for more where `blocks` are not available; whether they are now.
  bool HasBlocks(int64_t blocks);
  void Preempt();

  const SchedulerOptions options_;
  const ExpertDemand* const demand_;
  KvRoom* const room_;
  KvBlocks kv_;
  std::vector<ScheduledSequence*> waiting_;  // both by rank
  std::vector<ScheduledSequence*> running_;
  StepPlan plan_;
  uint64_t preemptions_ = 0;
  uint64_t reused_tokens_ = 0;
};

}  // namespace expertflow

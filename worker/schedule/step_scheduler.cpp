#include "worker/schedule/step_scheduler.h"

#include <algorithm>

#include "common/check.h"

namespace expertflow {
namespace {

// So many others may go before a sequence because of their experts.
constexpr int32_t kOvertakenPerPlace = 4;

bool GoesFirst(const ScheduledSequence* a, const ScheduledSequence* b) {
  return a->rank != b->rank ? a->rank < b->rank : a->id < b->id;
}

void Insert(ScheduledSequence* sequence, std::vector<ScheduledSequence*>* sequences) {
  sequences->insert(std::upper_bound(sequences->begin(), sequences->end(), sequence, GoesFirst),
                    sequence);
}

// The last token is what the next one is drawn from: it has to be computed.
int64_t ReuseMax(const ScheduledSequence& sequence) {
  return std::min(sequence.reuse_max, static_cast<int64_t>(sequence.tokens.size()) - 1);
}

}  // namespace

void StepScheduler::Add(ScheduledSequence* sequence) {
  sequence->given = static_cast<int32_t>(sequence->tokens.size());
  Insert(sequence, &waiting_);
}

void StepScheduler::Remove(ScheduledSequence* sequence) {
  kv_.Release(&sequence->kv);
  std::erase(waiting_, sequence);
  std::erase(running_, sequence);
}

std::vector<float> StepScheduler::UnusedExperts() const {
  std::vector<float> unused;
  for (const ScheduledSequence* sequence : running_) {
    const std::vector<float> use = demand_->Predict(sequence->tokens);
    unused.resize(use.size(), 1);
    for (size_t i = 0; i < use.size(); ++i) unused[i] *= 1 - std::min(use[i], 1.0F);
  }
  return unused;
}

size_t StepScheduler::ChooseNext() {
  if (demand_ == nullptr || running_.empty() || waiting_.size() == 1) return 0;
  if (waiting_.front()->overtaken >= kOvertakenPerPlace * options_.sequences_max) return 0;
  const std::vector<float> unused = UnusedExperts();
  size_t best = 0;
  float best_added = 0;
  for (size_t i = 0; i < waiting_.size(); ++i) {
    ScheduledSequence* sequence = waiting_[i];
    if (sequence->experts.empty()) sequence->experts = demand_->Predict(sequence->tokens);
    const float added = ExpertsAdded(unused, sequence->experts);
    if (i == 0 || added < best_added) {
      best = i;
      best_added = added;
    }
  }
  return best;
}

void StepScheduler::Admit(bool reuse) {
  if (options_.static_batches && !running_.empty()) return;
  while (!waiting_.empty() && static_cast<int32_t>(running_.size()) < options_.sequences_max) {
    const size_t chosen = ChooseNext();
    ScheduledSequence* next = waiting_[chosen];
    const int64_t blocks = KvBlocks::BlocksFor(static_cast<int64_t>(next->tokens.size()));
    const int64_t shared = reuse ? kv_.CountHeld(next->tokens, ReuseMax(*next)) : 0;
    const auto growth = static_cast<int64_t>(running_.size());
    if (!HasBlocks(blocks - shared + growth)) return;
    if (reuse) Reuse(next);
    CHECK(kv_.Reserve(&next->kv, blocks));
    for (size_t i = 0; i < chosen; ++i) ++waiting_[i]->overtaken;
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(chosen));
    Insert(next, &running_);
  }
}

void StepScheduler::Reuse(ScheduledSequence* sequence) {
  if (sequence->computed != sequence->kv.known * kKvBlockTokens) return;  // inside a block
  const KvBlocks::Reused reused = kv_.Reuse(&sequence->kv, sequence->tokens, ReuseMax(*sequence));
  if (reused.copied > 0) {
    plan_.copies.push_back({sequence, reused.copy_from, reused.copy_to, reused.copied});
  }
  const auto there = static_cast<int32_t>(reused.tokens);
  reused_tokens_ += static_cast<uint64_t>(there - sequence->computed);
  sequence->cached_tokens +=
      std::max(0, std::min(there, sequence->prompt_tokens) - sequence->reached);
  sequence->computed = there;
  sequence->reached = std::max(sequence->reached, there);
}

bool StepScheduler::IsComputedByAnother(const ScheduledSequence& sequence) const {
  const int32_t known = sequence.kv.known;
  const int32_t begin = known * kKvBlockTokens;
  const int32_t end = begin + kKvBlockTokens;
  if (ReuseMax(sequence) < end) return false;
  return std::any_of(plan_.rows.begin(), plan_.rows.end(), [&](const StepPlan::Rows& rows) {
    const ScheduledSequence& other = *rows.sequence;
    if (other.kv.known != known || other.computed + rows.count < end) return false;
    if (known > 0 && other.kv.blocks[static_cast<size_t>(known) - 1] !=
                         sequence.kv.blocks[static_cast<size_t>(known) - 1]) {
      return false;
    }
    return std::equal(sequence.tokens.begin() + begin, sequence.tokens.begin() + end,
                      other.tokens.begin() + begin);
  });
}

bool StepScheduler::HasBlocks(int64_t blocks) {
  const int64_t lacking = blocks - kv_.available();
  if (lacking > 0 && room_ != nullptr) kv_.Grow(room_->Give(lacking));
  return blocks <= kv_.available();
}

bool StepScheduler::MakeRoom(size_t index, int64_t tokens) {
  const auto held = static_cast<int64_t>(running_[index]->kv.blocks.size());
  HasBlocks(KvBlocks::BlocksFor(tokens) - held);
  while (!kv_.Reserve(&running_[index]->kv, KvBlocks::BlocksFor(tokens))) {
    Preempt();
    if (index == running_.size()) return false;
  }
  return true;
}

// Never one that was admitted in this step, and has a copy before it: there was room for all others
// to grow.
void StepScheduler::Preempt() {
  ScheduledSequence* last = running_.back();
  running_.pop_back();
  kv_.Release(&last->kv);
  last->computed = 0;
  last->given = static_cast<int32_t>(last->tokens.size());
  last->experts.clear();
  Insert(last, &waiting_);
  plan_.preempted.push_back(last);
  ++preemptions_;
}

const StepPlan& StepScheduler::Plan(bool reuse) {
  reuse = reuse && options_.reuse_prefixes;
  plan_ = {};
  Admit(reuse);
  int32_t budget = options_.prefill_tokens_max;
  for (size_t i = 0; i < running_.size(); ++i) {
    ScheduledSequence* sequence = running_[i];
    if (reuse && sequence->pending() > 1) Reuse(sequence);
    const int32_t pending = sequence->pending();
    const int32_t count = pending == 1 ? 1 : std::min(pending, budget);
    if (count == 0 || (reuse && IsComputedByAnother(*sequence))) continue;
    if (!MakeRoom(i, int64_t{sequence->computed} + count)) break;  // it was the last
    if (pending > 1) budget -= count;
    plan_.rows.push_back({sequence, count});
  }
  std::stable_partition(plan_.rows.begin(), plan_.rows.end(),
                        [](const StepPlan::Rows& rows) { return rows.sequence->pending() == 1; });
  return plan_;
}

void StepScheduler::Advance() {
  for (const StepPlan::Rows& rows : plan_.rows) {
    ScheduledSequence& sequence = *rows.sequence;
    sequence.computed += rows.count;
    sequence.reached = std::max(sequence.reached, sequence.computed);
    kv_.Computed(&sequence.kv, sequence.tokens, sequence.computed);
  }
  plan_ = {};
}

Status StepScheduler::CheckInvariants() const {
  std::vector<const KvTable*> tables;
  for (const auto* sequences : {&waiting_, &running_}) {
    if (!std::is_sorted(sequences->begin(), sequences->end(), GoesFirst)) {
      return Internal("sequences are not in the order of their ranks");
    }
  }
  for (const ScheduledSequence* sequence : waiting_) {
    if (!sequence->kv.blocks.empty()) return Internal("a waiting sequence holds blocks");
  }
  for (const ScheduledSequence* sequence : running_) {
    tables.push_back(&sequence->kv);
    if (sequence->computed > static_cast<int32_t>(sequence->kv.blocks.size()) * kKvBlockTokens) {
      return Internal("a sequence has computed more than it has blocks for");
    }
  }
  return kv_.CheckInvariants(tables);
}

}  // namespace expertflow

#include "predictor/core/learnt_merge.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/check.h"

namespace expertflow {
namespace {

// Counts that are full stay so, whatever the order.
template <typename Count>
void AddFull(Count* count, Count more) {
  *count = static_cast<Count>(
      std::min<uint64_t>(uint64_t{*count} + more, std::numeric_limits<Count>::max()));
}

}  // namespace

bool LearntMerge::Add(WorkerId worker, const LearntBatch& batch) {
  Worker& from = workers_[worker];
  if (batch.number <= from.added) return false;
  from.added = batch.number;
  AddLeaves(batch.statistics);
  AddTokens(batch.statistics);
  for (size_t d = 0; d < batch.statistics.recall.size(); ++d) {
    if (batch.statistics.recall[d].settled == 0) continue;
    recall_[d].Add(batch.statistics.recall[d]);
    recall_[d].Choose();
  }
  ++batches_;
  changed_ = true;
  return true;
}

void LearntMerge::AddLeaves(const LearntStatistics& statistics) {
  for (size_t i = 0; i < statistics.leaves.size(); ++i) {
    const uint32_t count = statistics.leaf_count[i];
    if (count == 0) continue;
    Leaf& leaf = leaves_[statistics.leaves[i]];
    // Without room for the count the sum would no longer be one of so many.
    if (count > std::numeric_limits<uint32_t>::max() - leaf.count) continue;
    leaf.count += count;
    leaf.rest += statistics.leaf_rest[i];
    leaf.version = version_ + 1;
  }
}

void LearntMerge::AddTokens(const LearntStatistics& statistics) {
  size_t at = 0;
  for (size_t i = 0; i < statistics.tokens.size(); ++i) {
    const size_t end = at + statistics.token_experts[i];
    const size_t begin = std::exchange(at, end);
    auto found = tokens_.find(statistics.tokens[i]);
    const bool is_new = found == tokens_.end();
    // A row that is known may grow, so its room is counted as it is used.
    if (is_new && (tokens_.size() >= options_.tokens_max || uses_ >= options_.uses_max)) {
      ++left_out_;
      continue;
    }
    if (is_new) found = tokens_.try_emplace(statistics.tokens[i]).first;
    Token& token = found->second;
    AddFull(&token.count, statistics.token_count[i]);
    token.version = version_ + 1;
    const size_t count = end - begin;
    AddUses(std::span(statistics.experts).subspan(begin, count),
            std::span(statistics.uses).subspan(begin, count), &token);
  }
}

// Joins two ascending lists.
void LearntMerge::AddUses(std::span<const uint16_t> experts, std::span<const uint16_t> uses,
                          Token* token) {
  joined_experts_.clear();
  joined_uses_.clear();
  size_t i = 0;
  size_t j = 0;
  while (i < experts.size() || j < token->experts.size()) {
    const bool has_new = i < experts.size();
    const bool has_old = j < token->experts.size();
    const bool takes_new = has_new && (!has_old || experts[i] <= token->experts[j]);
    const bool takes_old = has_old && (!has_new || token->experts[j] <= experts[i]);
    joined_experts_.push_back(takes_new ? experts[i] : token->experts[j]);
    uint16_t sum = 0;
    if (takes_new) AddFull(&sum, uses[i++]);
    if (takes_old) AddFull(&sum, token->uses[j++]);
    joined_uses_.push_back(sum);
  }
  uses_ += joined_experts_.size() - token->experts.size();
  std::swap(token->experts, joined_experts_);
  std::swap(token->uses, joined_uses_);
}

bool LearntMerge::Advance() {
  if (!changed_) return false;
  changed_ = false;
  ++version_;
  for (auto& [id, worker] : workers_) worker.included = worker.added;
  pre_gate_distances_ = 0;
  for (size_t d = 0; d < recall_.size(); ++d) {
    if (recall_[d].falls_back) pre_gate_distances_ |= 1u << d;
  }
  return true;
}

uint64_t LearntMerge::Included(WorkerId worker) const {
  const auto found = workers_.find(worker);
  return found == workers_.end() ? 0 : found->second.included;
}

LearntVersion LearntMerge::ChangedSince(uint64_t version) const {
  CHECK(!changed_);
  LearntVersion changed;
  changed.version = version_;
  LearntStatistics& totals = changed.totals;
  for (const auto& [number, leaf] : leaves_) {
    if (leaf.version <= version) continue;
    totals.leaves.push_back(number);
    totals.leaf_count.push_back(leaf.count);
    totals.leaf_rest.push_back(leaf.rest);
    changed.leaf_version.push_back(leaf.version);
  }
  for (const auto& [id, token] : tokens_) {
    if (token.version <= version) continue;
    totals.tokens.push_back(id);
    totals.token_count.push_back(token.count);
    totals.token_experts.push_back(static_cast<uint32_t>(token.experts.size()));
    changed.token_version.push_back(token.version);
    totals.experts.insert(totals.experts.end(), token.experts.begin(), token.experts.end());
    totals.uses.insert(totals.uses.end(), token.uses.begin(), token.uses.end());
  }
  changed.pre_gate_distances = pre_gate_distances_;
  return changed;
}

}  // namespace expertflow

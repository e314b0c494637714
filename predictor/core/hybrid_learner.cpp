#include "predictor/core/hybrid_learner.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/check.h"

namespace expertflow {
namespace {

constexpr float kLeafMax = 1;  // a correction of more would mean nothing
constexpr int32_t kWaitsMost = 16;
constexpr size_t kTokenBytes = 12;  // of a row in a batch, without its experts
constexpr size_t kExpertBytes = 4;

// Walks the rows of token ids, which ascend.
class TokenCursor {
 public:
  explicit TokenCursor(const LearntStatistics& statistics) : s_(statistics) {}

  // Whether there is a row of `token`. REQUIRES: ascending over the calls
  bool Seek(int32_t token) {
    while (row_ < s_.tokens.size() && s_.tokens[row_] < token) at_ += s_.token_experts[row_++];
    return row_ < s_.tokens.size() && s_.tokens[row_] == token;
  }
  uint32_t count() const { return s_.token_count[row_]; }
  // Experts that are not of the model are left out.
  void AddTo(std::span<uint16_t> uses) const {
    for (size_t i = at_; i < at_ + s_.token_experts[row_]; ++i) {
      if (s_.experts[i] >= uses.size()) continue;
      uint16_t& sum = uses[s_.experts[i]];
      sum = static_cast<uint16_t>(std::min(int32_t{sum} + s_.uses[i], int32_t{UINT16_MAX}));
    }
  }

 private:
  const LearntStatistics& s_;
  size_t row_ = 0;
  size_t at_ = 0;
};

}  // namespace

HybridLearner::HybridLearner(const HybridModel& model, const HybridLearnerOptions& options)
    : options_(options),
      model_(std::make_shared<HybridModel>(model)),
      shared_(model_),
      total_(model.experts_total()) {
  CHECK(options_.token_count_max <= UINT8_MAX);
  const size_t rows = std::max(options_.tokens_max, model_->tokens.size());
  model_->tokens.reserve(rows);
  model_->token_row.reserve(rows);
  model_->token_count.reserve(rows);
  model_->token_prior.reserve(rows * total_);
  row_index_.assign(model_->tokens.size(), UINT32_MAX);
  fitted_leaf_ = model_->forest_probe[static_cast<size_t>(StateKind::kRouter)].leaf;
  leaf_count_.resize(fitted_leaf_.size());
  leaf_rest_.resize(fitted_leaf_.size());
  gathered_leaf_count_.resize(fitted_leaf_.size());
  gathered_leaf_rest_.resize(fitted_leaf_.size());
  gathered_recall_.resize(kPredictDistances);
}

size_t HybridLearner::FindOrAdd(int32_t token) {
  HybridModel& model = *model_;
  size_t row = model.TokenRowOf(token);
  if (row != SIZE_MAX && row_index_[row] != UINT32_MAX) return row_index_[row];
  if (row == SIZE_MAX) {
    if (model.tokens.size() >= options_.tokens_max) return SIZE_MAX;
    // Only the ids are sorted: moving all rows of the prior for a new one would take longer than
    // a prediction.
    row = model.token_count.size();
    const auto at = std::lower_bound(model.tokens.begin(), model.tokens.end(), token);
    model.token_row.insert(model.token_row.begin() + (at - model.tokens.begin()),
                           static_cast<uint32_t>(row));
    model.tokens.insert(at, token);
    model.token_count.push_back(0);
    for (const float base : model.base) model.token_prior.push_back(TokenPriorOf(base));
    row_index_.push_back(UINT32_MAX);
  }
  const size_t index = token_rows_.size();
  row_index_[row] = static_cast<uint32_t>(index);
  token_rows_.push_back({.token = token, .row = row, .fitted_count = model.token_count[row]});
  const uint8_t* prior = model.token_prior.data() + row * total_;
  fitted_prior_.insert(fitted_prior_.end(), prior, prior + total_);
  uses_.resize(uses_.size() + total_);
  gathered_uses_.resize(gathered_uses_.size() + total_);
  return index;
}

// As if fitted to what came since, too.
void HybridLearner::RefreshPrior(size_t index) {
  const TokenRow& row = token_rows_[index];
  const float fitted = static_cast<float>(row.fitted_count) + kTokenPriorStrength;
  const float scale = 1.0f / (fitted + static_cast<float>(row.count));
  const uint8_t* before = fitted_prior_.data() + index * total_;
  const uint16_t* uses = uses_.data() + index * total_;
  uint8_t* prior = model_->token_prior.data() + row.row * total_;
  for (size_t e = 0; e < total_; ++e) {
    const float share = static_cast<float>(before[e]) * (1.0f / 255);
    prior[e] = TokenPriorOf((share * fitted + static_cast<float>(uses[e])) * scale);
  }
  const uint64_t count = uint64_t{row.fitted_count} + row.count;
  model_->token_count[row.row] =
      static_cast<uint32_t>(std::min<uint64_t>(count, std::numeric_limits<uint32_t>::max()));
}

void HybridLearner::LearnToken(int32_t token, const HybridPredictor& predictor) {
  if (token < 0 || total_ > size_t{UINT16_MAX} + 1) return;
  const size_t known = model_->TokenRowOf(token);
  if (known != SIZE_MAX && model_->token_count[known] >= options_.token_count_max) return;
  const size_t index = FindOrAdd(token);
  if (index == SIZE_MAX) return;
  TokenRow& row = token_rows_[index];
  uint16_t* uses = uses_.data() + index * total_;
  uint8_t* gathered = gathered_uses_.data() + index * total_;
  for (int32_t layer = 0; layer < model_->layers(); ++layer) {
    const size_t base = model_->BaseOf(layer);
    for (const uint16_t expert : predictor.ChosenOf(layer)) {
      ++uses[base + expert];
      ++gathered[base + expert];
    }
  }
  if (row.gathered++ == 0) gathered_rows_.push_back(static_cast<uint32_t>(index));
  ++row.count;
  RefreshPrior(index);
}

void HybridLearner::RefreshLeaf(size_t leaf) {
  const float rest = static_cast<float>(leaf_rest_[leaf]) / kRestUnit;
  const float mean = rest / (options_.leaf_weight + static_cast<float>(leaf_count_[leaf]));
  model_->forest_probe[static_cast<size_t>(StateKind::kRouter)].leaf[leaf] =
      std::clamp(fitted_leaf_[leaf] + options_.leaf_step * mean, -kLeafMax, kLeafMax);
}

void HybridLearner::LearnLeaves(std::span<const uint16_t> leaves, float correction) {
  const RandomForest& forest = model_->forest_probe[static_cast<size_t>(StateKind::kRouter)];
  if (leaves.size() != static_cast<size_t>(forest.trees) || !std::isfinite(correction)) return;
  // Of the fitted forest, whatever was learnt since: what is added up must not depend on that.
  float fitted = 0;
  for (size_t tree = 0; tree < leaves.size(); ++tree) {
    fitted += fitted_leaf_[tree * forest.leaves() + leaves[tree]];
  }
  const float rest = correction - fitted / static_cast<float>(leaves.size());
  const auto steps =
      static_cast<int64_t>(std::lround(std::clamp(rest, -kRestMost, kRestMost) * float{kRestUnit}));
  for (size_t tree = 0; tree < leaves.size(); ++tree) {
    const size_t leaf = tree * forest.leaves() + leaves[tree];
    if (leaf_count_[leaf] == std::numeric_limits<uint32_t>::max()) continue;
    ++leaf_count_[leaf];
    leaf_rest_[leaf] += steps;
    if (gathered_leaf_count_[leaf]++ == 0) gathered_leaves_.push_back(static_cast<uint32_t>(leaf));
    gathered_leaf_rest_[leaf] += steps;
    RefreshLeaf(leaf);
  }
}

void HybridLearner::LearnRecall(int32_t distance, const RecallSums& sums) {
  RecallSums& gathered = gathered_recall_[static_cast<size_t>(distance - 1)];
  gathered.settled += sums.settled;
  gathered.uses += sums.uses;
  gathered.hits += sums.hits;
  gathered.pre_gate_hits += sums.pre_gate_hits;
  gathered.expected += sums.expected;
}

std::shared_ptr<const LearntBatch> HybridLearner::TakeBatch(size_t bytes_most) {
  if (under_way_ != nullptr) {
    if (++waits_ < kWaitsMost) return nullptr;
    waits_ = 0;
    return under_way_;
  }
  auto batch = std::make_shared<LearntBatch>();
  GatherLeaves(&batch->statistics);
  GatherTokens(bytes_most, &batch->statistics);
  if (std::any_of(gathered_recall_.begin(), gathered_recall_.end(),
                  [](const RecallSums& sums) { return sums.settled > 0; })) {
    batch->statistics.recall.resize(kPredictDistances);
    std::swap(batch->statistics.recall, gathered_recall_);
  }
  if (batch->statistics.empty()) return nullptr;
  batch->number = ++batches_;
  waits_ = 0;
  under_way_ = batch;
  return batch;
}

void HybridLearner::GatherLeaves(LearntStatistics* statistics) {
  std::sort(gathered_leaves_.begin(), gathered_leaves_.end());
  for (const uint32_t leaf : gathered_leaves_) {
    statistics->leaf_count.push_back(std::exchange(gathered_leaf_count_[leaf], 0));
    statistics->leaf_rest.push_back(std::exchange(gathered_leaf_rest_[leaf], 0));
  }
  statistics->leaves = std::exchange(gathered_leaves_, {});
}

void HybridLearner::GatherTokens(size_t bytes_most, LearntStatistics* statistics) {
  // Those that wait longest; then in the order of their ids.
  size_t taken = 0;
  for (size_t bytes = 0; taken < gathered_rows_.size() && bytes < bytes_most; ++taken) {
    const size_t index = gathered_rows_[taken];
    const uint8_t* uses = gathered_uses_.data() + index * total_;
    bytes += kTokenBytes +
             kExpertBytes * (total_ - static_cast<size_t>(std::count(uses, uses + total_, 0)));
  }
  std::vector<uint32_t> rows(gathered_rows_.begin(),
                             gathered_rows_.begin() + static_cast<ptrdiff_t>(taken));
  gathered_rows_.erase(gathered_rows_.begin(),
                       gathered_rows_.begin() + static_cast<ptrdiff_t>(taken));
  std::sort(rows.begin(), rows.end(),
            [&](uint32_t a, uint32_t b) { return token_rows_[a].token < token_rows_[b].token; });
  for (const uint32_t index : rows) {
    TokenRow& row = token_rows_[index];
    uint8_t* uses = gathered_uses_.data() + index * total_;
    const size_t before = statistics->experts.size();
    for (size_t e = 0; e < total_; ++e) {
      if (uses[e] == 0) continue;
      statistics->experts.push_back(static_cast<uint16_t>(e));
      statistics->uses.push_back(std::exchange(uses[e], 0));
    }
    statistics->tokens.push_back(row.token);
    statistics->token_count.push_back(std::exchange(row.gathered, 0));
    statistics->token_experts.push_back(static_cast<uint32_t>(statistics->experts.size() - before));
  }
}

void HybridLearner::Adopt(const LearntVersion& version, uint64_t included) {
  if (version.version <= version_) return;
  if (under_way_ != nullptr && included >= under_way_->number) under_way_ = nullptr;
  static const LearntStatistics kNothing;
  const LearntStatistics& under_way = under_way_ == nullptr ? kNothing : under_way_->statistics;
  AdoptLeaves(version, under_way);
  AdoptTokens(version, under_way);
  version_ = version.version;
}

void HybridLearner::AdoptLeaves(const LearntVersion& version, const LearntStatistics& under_way) {
  const LearntStatistics& totals = version.totals;
  size_t other = 0;
  for (size_t i = 0; i < totals.leaves.size(); ++i) {
    const size_t leaf = totals.leaves[i];
    if (version.leaf_version[i] <= version_ || leaf >= fitted_leaf_.size()) continue;
    uint64_t count = uint64_t{totals.leaf_count[i]} + gathered_leaf_count_[leaf];
    int64_t rest = totals.leaf_rest[i] + gathered_leaf_rest_[leaf];
    while (other < under_way.leaves.size() && under_way.leaves[other] < leaf) ++other;
    if (other < under_way.leaves.size() && under_way.leaves[other] == leaf) {
      count += under_way.leaf_count[other];
      rest += under_way.leaf_rest[other];
    }
    leaf_count_[leaf] =
        static_cast<uint32_t>(std::min<uint64_t>(count, std::numeric_limits<uint32_t>::max()));
    leaf_rest_[leaf] = rest;
    RefreshLeaf(leaf);
  }
}

void HybridLearner::AdoptTokens(const LearntVersion& version, const LearntStatistics& under_way) {
  TokenCursor published(version.totals);
  TokenCursor mine(under_way);
  for (size_t i = 0; i < version.totals.tokens.size(); ++i) {
    if (version.token_version[i] <= version_) continue;
    const int32_t token = version.totals.tokens[i];
    const size_t index = FindOrAdd(token);
    if (index == SIZE_MAX) continue;
    TokenRow& row = token_rows_[index];
    const std::span<uint16_t> uses = std::span(uses_).subspan(index * total_, total_);
    const uint8_t* gathered = gathered_uses_.data() + index * total_;
    for (size_t e = 0; e < total_; ++e) uses[e] = gathered[e];
    row.count = row.gathered;
    for (TokenCursor* sums : {&published, &mine}) {
      if (!sums->Seek(token)) continue;
      sums->AddTo(uses);
      row.count = static_cast<uint32_t>(std::min<uint64_t>(uint64_t{row.count} + sums->count(),
                                                           std::numeric_limits<uint32_t>::max()));
    }
    RefreshPrior(index);
  }
}

}  // namespace expertflow

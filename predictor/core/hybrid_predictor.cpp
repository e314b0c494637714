#include "predictor/core/hybrid_predictor.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "common/check.h"
#include "common/wide.h"
#include "predictor/core/byte_matrix.h"
#include "predictor/core/logit_margin.h"

namespace expertflow {
namespace {

// The forest with the probe corrects the likeliest experts of a layer; the others are seldom used.
constexpr size_t kCandidates = 12;
// Where the probe is this sure, the forest changes nothing that matters.
constexpr float kCorrectedFrom = 0.05f;
constexpr float kCorrectedTo = 0.99f;
constexpr float kTiny = 1e-12f;
constexpr size_t kRowsTogether = 16;  // sequences whose products are made together

float DecayOf(float half_life) {
  return std::exp2(-1.0f / half_life);
}

float Probability(const Logistic& fit, float margin) {
  return 1.0f / (1.0f + std::exp(-(fit.slope * margin + fit.offset)));
}

void Blend(float decay, std::span<const float> value, float* mean) {
  for (size_t i = 0; i < value.size(); ++i) {
    const float blended = decay * mean[i] + (1.0f - decay) * value[i];
    mean[i] = std::abs(blended) < kTiny ? 0.0f : blended;  // denormal numbers are slow
  }
}

// Logits to distances from the edge in standard deviations. Logits that tell nothing give zeros.
void ToMargins(int32_t top_k, std::span<float> logits) {
  const auto n = static_cast<int32_t>(logits.size());
  if (top_k >= n) {
    std::fill(logits.begin(), logits.end(), 0.0f);
    return;
  }
  const float edge = LogitEdge(logits.data(), n, top_k);
  const float deviation = LogitDeviation(logits.data(), n);
  const float scale = 1.0f / deviation;
  const bool sane = deviation > 0 && std::isfinite(scale) && std::isfinite(edge);
  for (float& logit : logits) {
    logit = sane ? (logit - edge) * scale : 0.0f;
    if (!std::isfinite(logit)) logit = 0.0f;
  }
}

EXPERTFLOW_WIDE int32_t CountAbove(const float* margins, size_t n, float margin) {
  int32_t above = 0;
  for (size_t i = 0; i < n; ++i) above += margins[i] > margin ? 1 : 0;
  return above;
}

EXPERTFLOW_WIDE int32_t CountFrom(const float* margins, size_t n, float margin) {
  int32_t from = 0;
  for (size_t i = 0; i < n; ++i) from += margins[i] >= margin ? 1 : 0;
  return from;
}

// squares[r] = the sum of (state[i] - recent[i][r])^2. Each sum in its order, all of them at once.
using Lanes = float __attribute__((vector_size(kRecentTokens * sizeof(float))));
EXPERTFLOW_WIDE void SumSquares(const float* state, const float* recent, size_t n, float* squares) {
  Lanes sums = {};
  for (size_t i = 0; i < n; ++i) {
    Lanes others;
    std::memcpy(&others, recent + i * kRecentTokens, sizeof(others));
    const Lanes difference = state[i] - others;
    sums += difference * difference;
  }
  std::memcpy(squares, &sums, sizeof(sums));
}

EXPERTFLOW_WIDE void Decay(float decay, size_t n, float* values) {
  for (size_t i = 0; i < n; ++i) {
    const float value = values[i] * decay;
    values[i] = value < kTiny ? 0.0f : value;
  }
}

float RankOf(std::span<const float> margins, size_t expert) {
  return static_cast<float>(CountAbove(margins.data(), margins.size(), margins[expert]));
}

// sums[e] += the sum of rows[..][e], for begin <= e < end.
void AddRows(const int8_t* const* rows, size_t count, size_t begin, size_t end, float* sums) {
  for (size_t e = begin; e < end; ++e) {
    int32_t sum = 0;
    for (size_t r = 0; r < count; ++r) sum += rows[r][e];
    sums[e] += static_cast<float>(sum);
  }
}

EXPERTFLOW_AVX2 inline void AddTo(__m128i sums, float* to) {
  const __m256 numbers = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(sums));
  _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), numbers));
}

// The same from 0 on, of as many as fill registers; returns how many. REQUIRES: at most 64 rows,
// whose sums 16 bits hold
EXPERTFLOW_AVX2 size_t AddRowsWide(const int8_t* const* rows, size_t count, size_t end,
                                   float* sums) {
  constexpr size_t kLanes = 16;
  size_t e = 0;
  for (; e + kLanes <= end; e += kLanes) {
    __m256i sum = _mm256_setzero_si256();
    for (size_t r = 0; r < count; ++r) {
      const __m128i row = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[r] + e));
      sum = _mm256_add_epi16(sum, _mm256_cvtepi8_epi16(row));
    }
    AddTo(_mm256_castsi256_si128(sum), sums + e);
    AddTo(_mm256_extracti128_si256(sum, 1), sums + e + kLanes / 2);
  }
  return e;
}

}  // namespace

float StateOf(std::span<const float> residual, float* out) {
  float squares = 0;
  for (const float value : residual) squares += value * value;
  const float mean = squares / static_cast<float>(residual.size());
  const bool sane = std::isfinite(mean);
  const float scale = sane ? 1.0f / std::sqrt(mean + 1e-6f) : 0.0f;
  for (size_t i = 0; i < residual.size(); ++i) out[i] = sane ? residual[i] * scale : 0.0f;
  return sane ? 0.5f * std::log2(mean + 1e-6f) : 0.0f;
}

HybridForests::HybridForests(const HybridModel& model)
    : forest{ByteForest(model.forest[0]), ByteForest(model.forest[1])},
      forest_probe{ByteForest(model.forest_probe[0]), ByteForest(model.forest_probe[1])} {}

HybridPredictor::HybridPredictor(std::shared_ptr<const HybridModel> model,
                                 std::shared_ptr<const HybridForests> forests)
    : model_(std::move(model)), forests_(std::move(forests)) {
  const auto layers = static_cast<size_t>(model_->layers());
  const auto width = static_cast<size_t>(model_->width);
  for (int32_t l = 0; l <= model_->layers(); ++l) base_.push_back(model_->BaseOf(l));
  size_t targets = 0;
  for (int32_t l = 0; l + 1 < model_->layers(); ++l) {
    const size_t first = base_[static_cast<size_t>(l) + 1];
    targets = std::max(
        targets,
        base_[static_cast<size_t>(l) + 1 + static_cast<size_t>(model_->DistancesFrom(l))] - first);
  }
  blocks_.resize(kContextBlocks * width);
  context_before_.resize(static_cast<size_t>(model_->rank));
  for (size_t i = 0; i < use_.size(); ++i) {
    use_[i].resize(base_.back());
    use_decay_[i] = DecayOf(kUseHalfLives[i]);
  }
  recent_.resize(kRecentTokens * static_cast<size_t>(model_->hidden));
  others_.resize((kContextAnchors - 1) * width);
  chosen_.resize(layers * static_cast<size_t>(model_->top_k));
  chosen_count_.resize(layers);
  input_.resize(static_cast<size_t>(model_->hidden) + static_cast<size_t>(model_->rank));
  steps_.resize(std::max(input_.size(), blocks_.size()));
  pre_gate_.resize(targets);
  probe_.resize(targets);
  probability_.resize(targets);
  features_.resize(kHybridFeatures * targets);
  correction_.reserve(targets);
  const auto widest =
      static_cast<size_t>(*std::max_element(model_->experts.begin(), model_->experts.end()));
  near_.resize(widest);
  far_.resize(widest);
  lifts_.resize(static_cast<size_t>(model_->top_k));
  Reset();
}

void HybridPredictor::Reset() {
  std::fill(blocks_.begin(), blocks_.end(), 0.0f);
  for (std::vector<float>& use : use_) std::fill(use.begin(), use.end(), 0.0f);
  std::fill(recent_.begin(), recent_.end(), 0.0f);
  position_ = -1;
  source_ = -1;
  context_follows_ = false;
  std::fill(chosen_count_.begin(), chosen_count_.end(), 0);
}

void HybridPredictor::BeginToken(int32_t token) {
  ++position_;
  token_ = token;
  source_ = -1;
  std::fill(chosen_count_.begin(), chosen_count_.end(), 0);
}

void HybridPredictor::TakeState(int32_t layer, StateKind kind, std::span<const float> residual) {
  CHECK(layer >= 0 && layer < model_->layers());
  CHECK(residual.size() == static_cast<size_t>(model_->hidden));
  source_ = layer;
  kind_ = kind;
  norm_ = StateOf(residual, input_.data());
}

void HybridPredictor::Project(int32_t anchor, std::span<const float> state, float* out) {
  const StepRow row = ToSteps(state, steps_.data());
  ApplyMatrix(model_->anchor[static_cast<size_t>(anchor)], static_cast<size_t>(model_->width),
              {&row, 1}, {&out, 1});
}

void HybridPredictor::AddContext(int32_t block_begin, int32_t block_end, float* to) {
  const auto width = static_cast<size_t>(model_->width);
  const size_t first = static_cast<size_t>(block_begin) * width;
  const size_t inputs = static_cast<size_t>(block_end - block_begin) * width;
  const StepRow row = ToSteps(std::span(blocks_).subspan(first, inputs), steps_.data());
  AddProducts(model_->context, first, inputs, static_cast<size_t>(model_->rank), {&row, 1},
              {&to, 1});
}

void HybridPredictor::ObserveRouter(int32_t layer, std::span<const float> residual,
                                    std::span<const uint16_t> chosen,
                                    std::span<const float> weights) {
  TakeState(layer, StateKind::kRouter, residual);
  const int32_t layers = model_->layers();
  const std::span<const float> state =
      std::span<const float>(input_).first(static_cast<size_t>(model_->hidden));
  if (layer == 0) {
    TakeFirst(state);
    FollowContext();
    std::copy(context_before_.begin(), context_before_.end(),
              input_.begin() + static_cast<ptrdiff_t>(state.size()));
    AddContext(kFirstNow, kFirstNow + 1, input_.data() + state.size());
  }
  for (int32_t anchor = 1; anchor < kContextAnchors; ++anchor) {
    if (layer == model_->AnchorLayer(anchor)) TakeOther(anchor, state);
  }
  TakeChosen(layer, chosen);
  // Of shares of what was chosen, whatever the weights sum up to.
  float sum = 0;
  entropy_ = 0;
  for (const float weight : weights) {
    if (!(weight > 0) || !std::isfinite(weight)) continue;
    sum += weight;
    entropy_ -= weight * std::log2(weight);
  }
  entropy_ = sum > 0 ? entropy_ / sum + std::log2(sum) : 0.0f;
  if (layer == layers - 1) {
    EndToken();
    FollowContext();
  }
}

void HybridPredictor::TakeFirst(std::span<const float> state) {
  Project(0, state, blocks_.data());
  std::array<float, kRecentTokens> squares;
  SumSquares(state.data(), recent_.data(), state.size(), squares.data());
  const int32_t recent = std::min(position_, kRecentTokens);
  float nearest = INFINITY;
  for (int32_t r = 0; r < recent; ++r) nearest = std::min(nearest, squares[static_cast<size_t>(r)]);
  token_distance_ = recent > 0 ? std::sqrt(nearest) : -1.0f;
  float* own = recent_.data() + position_ % kRecentTokens;
  for (size_t i = 0; i < state.size(); ++i) own[i * kRecentTokens] = state[i];
}

void HybridPredictor::TakeOther(int32_t anchor, std::span<const float> state) {
  const auto width = static_cast<size_t>(model_->width);
  Project(anchor, state, others_.data() + static_cast<size_t>(anchor - 1) * width);
}

void HybridPredictor::TakeChosen(int32_t layer, std::span<const uint16_t> chosen) {
  const auto l = static_cast<size_t>(layer);
  const auto k = static_cast<size_t>(model_->top_k);
  const auto experts = static_cast<uint16_t>(model_->experts[l]);
  chosen_count_[l] = 0;
  for (size_t i = 0; i < std::min(chosen.size(), k); ++i) {
    if (chosen[i] >= experts) continue;
    chosen_[l * k + static_cast<size_t>(chosen_count_[l]++)] = chosen[i];
  }
}

void HybridPredictor::ObserveToken(
    int32_t token, const std::array<std::span<const float>, kContextAnchors>& residuals,
    std::span<const uint16_t> chosen) {
  const auto hidden = static_cast<size_t>(model_->hidden);
  const auto k = static_cast<size_t>(model_->top_k);
  BeginToken(token);
  const std::span<const float> state = std::span<const float>(input_).first(hidden);
  StateOf(residuals[0], input_.data());
  TakeFirst(state);
  for (int32_t anchor = 1; anchor < kContextAnchors; ++anchor) {
    StateOf(residuals[static_cast<size_t>(anchor)], input_.data());
    TakeOther(anchor, state);
  }
  for (int32_t layer = 0; layer < model_->layers(); ++layer) {
    TakeChosen(layer, chosen.subspan(static_cast<size_t>(layer) * k, k));
  }
  EndToken();
}

void HybridPredictor::ObserveExperts(int32_t layer, std::span<const float> residual) {
  TakeState(layer, StateKind::kExperts, residual);
}

void HybridPredictor::EndToken() {
  const auto width = static_cast<size_t>(model_->width);
  const auto block = [&](int32_t b) { return blocks_.data() + static_cast<size_t>(b) * width; };
  const std::span<const float> first(block(kFirstNow), width);
  std::copy_n(block(kFirstBefore1), width, block(kFirstBefore2));
  std::copy_n(first.data(), width, block(kFirstBefore1));
  const float decay8 = DecayOf(8);
  Blend(decay8, first, block(kFirstDecay8));
  for (int32_t other = 0; other < kContextAnchors - 1; ++other) {
    const std::span<const float> state =
        std::span<const float>(others_).subspan(static_cast<size_t>(other) * width, width);
    std::copy_n(state.data(), width, block(kOthersBefore1 + other));
    Blend(decay8, state, block(kOthersDecay8 + other));
    if (other + 2 == kContextAnchors) Blend(DecayOf(64), state, block(kLastDecay64));
  }
  context_follows_ = false;

  const auto k = static_cast<size_t>(model_->top_k);
  for (size_t i = 0; i < use_.size(); ++i) {
    Decay(use_decay_[i], use_[i].size(), use_[i].data());
    for (size_t l = 0; l < chosen_count_.size(); ++l) {
      for (int32_t c = 0; c < chosen_count_[l]; ++c) {
        use_[i][base_[l] + chosen_[l * k + static_cast<size_t>(c)]] += 1 - use_decay_[i];
      }
    }
  }
}

// The part of the context that does not wait for the next token.
void HybridPredictor::FollowContext() {
  if (context_follows_) return;
  context_follows_ = true;
  std::copy(model_->context.bias.begin(), model_->context.bias.end(), context_before_.begin());
  AddContext(kFirstNow + 1, kContextBlocks, context_before_.data());
}

size_t HybridPredictor::At(int32_t distance) const {
  const auto source = static_cast<size_t>(source_);
  return base_[source + static_cast<size_t>(distance)] - base_[source + 1];
}

void HybridPredictor::TakeMargins(std::span<HybridPredictor* const> rows, int32_t distances) {
  CHECK(rows.size() <= kRowsTogether);
  HybridPredictor& first = *rows[0];
  const HybridModel& model = *first.model_;
  const auto kind = static_cast<size_t>(first.kind_);
  const auto source = static_cast<size_t>(first.source_);
  std::array<StepRow, kRowsTogether> inputs;
  std::array<float*, kRowsTogether> outputs;
  for (size_t r = 0; r < rows.size(); ++r) {
    inputs[r] = ToSteps(rows[r]->input_, rows[r]->steps_.data());
    outputs[r] = rows[r]->probe_.data();
  }
  const auto in = std::span(inputs).first(rows.size());
  const auto out = std::span(outputs).first(rows.size());
  ApplyMatrix(model.probe[kind][source], first.At(distances + 1), in, out);
  for (int32_t d = 1; d <= distances; ++d) {
    const size_t at = first.At(d);
    const ByteMatrix& router = model.pre_gate[source + static_cast<size_t>(d)];
    const auto experts = static_cast<size_t>(router.outputs);
    for (size_t r = 0; r < rows.size(); ++r) outputs[r] = rows[r]->pre_gate_.data() + at;
    ApplyMatrix(router, experts, in, out);
    for (HybridPredictor* row : rows) {
      ToMargins(model.top_k, {row->pre_gate_.data() + at, experts});
      ToMargins(model.top_k, {row->probe_.data() + at, experts});
    }
  }
}

std::span<const float> HybridPredictor::Probabilities(int32_t distance) const {
  return {probability_.data() + At(distance), At(distance + 1) - At(distance)};
}
std::span<const float> HybridPredictor::PreGateMargins(int32_t distance) const {
  return {pre_gate_.data() + At(distance), At(distance + 1) - At(distance)};
}
std::span<const float> HybridPredictor::ProbeMargins(int32_t distance) const {
  return {probe_.data() + At(distance), At(distance + 1) - At(distance)};
}

void HybridPredictor::LeavesOf(size_t candidate, std::vector<uint16_t>* leaves) const {
  FindLeaves(model_->forest_probe[static_cast<size_t>(kind_)],
             features_.data() + candidate * kHybridFeatures, leaves);
}

std::span<const uint16_t> HybridPredictor::ChosenOf(int32_t layer) const {
  const auto l = static_cast<size_t>(layer);
  return std::span(chosen_).subspan(l * static_cast<size_t>(model_->top_k),
                                    static_cast<size_t>(chosen_count_[l]));
}

void HybridPredictor::AddCandidates(PredictionArm arm, int32_t distance) {
  const std::span<const float> margins = ProbeMargins(distance);
  const std::span<const float> base = Probabilities(distance);
  const bool pruned = arm == PredictionArm::kForestProbe;
  order_.resize(margins.size());
  size_t count = 0;
  for (size_t e = 0; e < margins.size(); ++e) {
    order_[count] = static_cast<int32_t>(e);
    count += !pruned || (base[e] >= kCorrectedFrom && base[e] <= kCorrectedTo) ? 1 : 0;
  }
  order_.resize(count);
  if (pruned && count > kCandidates) KeepLargest(margins);
  for (const int32_t expert : order_) {
    candidates_.push_back({distance, expert, base[static_cast<size_t>(expert)]});
  }
}

// Of order_, which ascends, those of the largest margins, the largest first.
void HybridPredictor::KeepLargest(std::span<const float> margins) {
  of_order_.clear();
  for (const int32_t expert : order_) of_order_.push_back(margins[static_cast<size_t>(expert)]);
  std::array<int32_t, kCandidates> largest;
  for (size_t i = 0; i < order_.size(); ++i) {
    const auto before = std::span<const float>(of_order_).first(i);
    const auto after = std::span<const float>(of_order_).subspan(i + 1);
    const int32_t place = CountFrom(before.data(), before.size(), of_order_[i]) +
                          CountAbove(after.data(), after.size(), of_order_[i]);
    if (place < int32_t{kCandidates}) largest[static_cast<size_t>(place)] = order_[i];
  }
  order_.assign(largest.begin(), largest.end());
}

void HybridPredictor::SumLifts(size_t target) {
  const auto experts = static_cast<size_t>(model_->experts[target]);
  const auto k = static_cast<size_t>(model_->top_k);
  std::fill_n(near_.begin(), experts, 0.0f);
  std::fill_n(far_.begin(), experts, 0.0f);
  const bool wide = __builtin_cpu_supports("avx2");
  for (int32_t back = 0; back < kCoactivationLayers && back <= source_; ++back) {
    const auto layer = static_cast<size_t>(source_ - back);
    const int8_t* lift = model_->coactivation[target][target - layer - 1].data();
    const auto count = static_cast<size_t>(chosen_count_[layer]);
    for (size_t c = 0; c < count; ++c) lifts_[c] = lift + chosen_[layer * k + c] * experts;
    float* const sums = (back == 0 ? near_ : far_).data();
    const size_t done = wide ? AddRowsWide(lifts_.data(), count, experts, sums) : 0;
    AddRows(lifts_.data(), count, done, experts, sums);
  }
}

// Of the candidates from `first` on, which are of one distance.
void HybridPredictor::FillFeatures(size_t first, bool probe) {
  const int32_t distance = candidates_[first].distance;
  const auto target = static_cast<size_t>(source_) + static_cast<size_t>(distance);
  const auto kind = static_cast<size_t>(kind_);
  const Logistic& fit = model_->pre_gate_fit[kind][static_cast<size_t>(distance - 1)];
  const std::span<const float> pre_gate = PreGateMargins(distance);
  const std::span<const float> margins = ProbeMargins(distance);
  SumLifts(target);

  const bool known = token_row_ != SIZE_MAX;
  const uint8_t* prior =
      known ? model_->token_prior.data() + token_row_ * base_.back() + base_[target] : nullptr;
  const float token_count =
      known ? std::log2(1.0f + static_cast<float>(model_->token_count[token_row_])) : 0.0f;
  const float position = std::log2(1.0f + static_cast<float>(position_));
  for (size_t index = first; index < candidates_.size(); ++index) {
    const auto expert = static_cast<size_t>(candidates_[index].expert);
    const size_t through = base_[target] + expert;
    const auto set = [&](HybridFeature feature, float value) {
      features_[index * kHybridFeatures + static_cast<size_t>(feature)] = value;
    };
    set(kPreGateMargin, pre_gate[expert]);
    set(kPreGateRank, RankOf(pre_gate, expert));
    set(kPreGateProbability, Probability(fit, pre_gate[expert]));
    set(kCoactivationNear, near_[expert]);
    set(kCoactivationFar, far_[expert]);
    set(kTokenPrior, known ? static_cast<float>(prior[expert]) / 255 : model_->base[through]);
    set(kTokenCount, token_count);
    set(kPosition, position);
    set(kTokenDistance, token_distance_);
    set(kUse1, use_[0][through]);
    set(kUse8, use_[1][through]);
    set(kUse64, use_[2][through]);
    set(kEntropy, entropy_);
    set(kNorm, norm_);
    set(kBase, model_->base[through]);
    set(kDistance, static_cast<float>(distance));
    set(kSource, static_cast<float>(source_));
    if (!probe) continue;
    set(kProbeMargin, margins[expert]);
    set(kProbeRank, RankOf(margins, expert));
    set(kProbeProbability, candidates_[index].base);
  }
}

int32_t HybridPredictor::Evaluate(PredictionArm arm, int32_t distances) {
  HybridPredictor* const row = this;
  return EvaluateTogether({&row, 1}, arm, distances);
}

int32_t HybridPredictor::EvaluateTogether(std::span<HybridPredictor* const> rows, PredictionArm arm,
                                          int32_t distances) {
  CHECK(!rows.empty() && rows[0]->source_ >= 0);
  for (HybridPredictor* row : rows) {
    CHECK(row->model_ == rows[0]->model_ && row->source_ == rows[0]->source_ &&
          row->kind_ == rows[0]->kind_);
    row->candidates_.clear();
  }
  const int32_t count = std::clamp(distances, 0, rows[0]->model_->DistancesFrom(rows[0]->source_));
  for (HybridPredictor* row : rows) row->distances_ = count;
  if (count == 0) return 0;
  for (size_t first = 0; first < rows.size(); first += kRowsTogether) {
    TakeMargins(rows.subspan(first, std::min(kRowsTogether, rows.size() - first)), count);
  }
  EvaluateMargins(rows, arm);
  Correct(rows, arm);
  return count;
}

void HybridPredictor::Reevaluate(PredictionArm arm) {
  HybridPredictor* const row = this;
  candidates_.clear();
  EvaluateMargins({&row, 1}, arm);
  Correct({&row, 1}, arm);
}

void HybridPredictor::EvaluateMargins(std::span<HybridPredictor* const> rows, PredictionArm arm) {
  // Looked up each time: the table may learn in between.
  for (HybridPredictor* row : rows) row->token_row_ = row->model_->TokenRowOf(row->token_);
  // All rows of a distance: its tables stay near.
  for (int32_t d = 1; d <= rows[0]->distances_; ++d) {
    for (HybridPredictor* row : rows) row->EvaluateMargins(arm, d);
  }
}

void HybridPredictor::EvaluateMargins(PredictionArm arm, int32_t distance) {
  const auto kind = static_cast<size_t>(kind_);
  const auto d = static_cast<size_t>(distance - 1);
  const bool probe = arm == PredictionArm::kProbe || arm == PredictionArm::kForestProbe;
  const bool forest = arm == PredictionArm::kForest || arm == PredictionArm::kForestProbe;
  const Logistic& fit = probe ? model_->probe_fit[kind][d] : model_->pre_gate_fit[kind][d];
  const std::span<const float> margins = probe ? ProbeMargins(distance) : PreGateMargins(distance);
  const bool all = static_cast<size_t>(model_->top_k) >= margins.size();
  const size_t at = At(distance);
  for (size_t e = 0; e < margins.size(); ++e) {
    probability_[at + e] = all ? 1.0f : Probability(fit, margins[e]);
  }
  if (!forest || all) return;
  const size_t first = candidates_.size();
  AddCandidates(arm, distance);
  if (first < candidates_.size()) FillFeatures(first, probe);
}

void HybridPredictor::Correct(std::span<HybridPredictor* const> rows, PredictionArm arm) {
  if (arm != PredictionArm::kForest && arm != PredictionArm::kForestProbe) return;
  const HybridPredictor& first = *rows[0];
  const auto kind = static_cast<size_t>(first.kind_);
  const bool probe = arm == PredictionArm::kForestProbe;
  const RandomForest& trees = probe ? first.model_->forest_probe[kind] : first.model_->forest[kind];
  if (trees.trees == 0) return;
  const ByteForest* bytes = nullptr;
  if (first.forests_ != nullptr) {
    bytes = &(probe ? first.forests_->forest_probe[kind] : first.forests_->forest[kind]);
  }
  if (bytes == nullptr || !bytes->fits()) {
    for (HybridPredictor* row : rows) {
      row->correction_.resize(row->candidates_.size());
      EvaluateForest(trees, row->features_.data(), kHybridFeatures, row->correction_);
      row->AddCorrections(row->correction_);
    }
    return;
  }
  std::vector<const float*>& asked = rows[0]->asked_;
  std::vector<float>& correction = rows[0]->correction_;
  asked.clear();
  for (const HybridPredictor* row : rows) {
    for (size_t i = 0; i < row->candidates_.size(); ++i) {
      asked.push_back(row->features_.data() + i * kHybridFeatures);
    }
  }
  correction.resize(asked.size());
  bytes->Evaluate(trees.leaf, asked, correction);
  size_t at = 0;
  for (HybridPredictor* row : rows) {
    row->AddCorrections(std::span<const float>(correction).subspan(at, row->candidates_.size()));
    at += row->candidates_.size();
  }
}

void HybridPredictor::AddCorrections(std::span<const float> corrections) {
  for (size_t i = 0; i < candidates_.size(); ++i) {
    float& probability =
        probability_[At(candidates_[i].distance) + static_cast<size_t>(candidates_[i].expert)];
    const float corrected = candidates_[i].base + corrections[i];
    // A correction of a damaged file may be no number.
    if (!std::isnan(corrected)) probability = std::clamp(corrected, 0.0f, 1.0f);
  }
}

}  // namespace expertflow

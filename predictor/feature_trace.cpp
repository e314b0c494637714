#include "predictor/feature_trace.h"

#include "common/digest.h"
#include "common/half.h"

namespace expertflow {
namespace {

void ToFloats(const std::vector<uint16_t>& from, size_t begin, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = FloatFromHalf(from[begin + i]);
}

}  // namespace

Status FeatureTrace::Begin(const TraceShape& shape) {
  if ((shape.columns & kTraceColumnsKnown) != kTraceColumnsKnown) {
    return InvalidArgument("the trace has no hidden states; record it with --record-features");
  }
  first_sequence_ = by_sequence_.size();
  if (!base_.empty()) {
    const bool same = ModelIdentity(shape) == ModelIdentity(shape_) &&
                      shape.experts == shape_.experts && shape.top_k == shape_.top_k &&
                      shape.hidden == shape_.hidden;
    return same ? OkStatus() : InvalidArgument("not of the same model as the first trace");
  }
  shape_ = shape;
  base_.assign(1, 0);
  for (const int32_t experts : shape.experts) {
    base_.push_back(base_.back() + static_cast<size_t>(experts));
  }
  return OkStatus();
}

Status FeatureTrace::Sequence(const TraceSequence& /*sequence*/) {
  by_sequence_.emplace_back();
  last_position_.push_back(-1);
  return OkStatus();
}

Status FeatureTrace::Rows(const TraceRows& rows) {
  RETURN_IF_ERROR(CheckTraceRows(shape_, by_sequence_.size() - first_sequence_, rows));
  const auto block = static_cast<uint32_t>(blocks_.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    const size_t sequence = first_sequence_ + rows.sequence[r];
    if (static_cast<int64_t>(rows.position[r]) <= last_position_[sequence]) {
      return InvalidArgument("the rows of a sequence are not in the order of its tokens");
    }
    last_position_[sequence] = rows.position[r];
    by_sequence_[sequence].push_back({block, static_cast<uint32_t>(r)});
  }
  tokens_ += rows.size();
  blocks_.push_back(rows);
  return OkStatus();
}

int32_t FeatureTrace::TokenId(size_t sequence, size_t at) const {
  const Place& place = At(sequence, at);
  return blocks_[place.block].token[place.row];
}

uint64_t FeatureTrace::HashOf(size_t sequence) const {
  Digest digest;
  for (size_t at = 0; at < length(sequence); ++at) {
    digest.Fold(static_cast<uint64_t>(static_cast<int64_t>(TokenId(sequence, at))));
  }
  return digest.value();
}

std::span<const uint16_t> FeatureTrace::Chosen(size_t sequence, size_t at, int32_t layer) const {
  const Place& place = At(sequence, at);
  const auto k = static_cast<size_t>(shape_.top_k);
  const size_t row = place.row * shape_.experts.size() + static_cast<size_t>(layer);
  return std::span(blocks_[place.block].experts).subspan(row * k, k);
}

void FeatureTrace::Weights(size_t sequence, size_t at, int32_t layer, std::span<float> out) const {
  const Place& place = At(sequence, at);
  const size_t row = place.row * shape_.experts.size() + static_cast<size_t>(layer);
  ToFloats(blocks_[place.block].weights, row * out.size(), out);
}

void FeatureTrace::Scores(size_t sequence, size_t at, int32_t layer, std::span<float> out) const {
  const Place& place = At(sequence, at);
  const size_t begin = place.row * base_.back() + base_[static_cast<size_t>(layer)];
  ToFloats(blocks_[place.block].scores, begin, out);
}

void FeatureTrace::RouterState(size_t sequence, size_t at, int32_t layer,
                               std::span<float> out) const {
  const Place& place = At(sequence, at);
  const size_t row = place.row * shape_.experts.size() + static_cast<size_t>(layer);
  ToFloats(blocks_[place.block].router_hidden, row * out.size(), out);
}

void FeatureTrace::ExpertResidual(size_t sequence, size_t at, int32_t layer,
                                  std::span<float> out) const {
  const Place& place = At(sequence, at);
  const size_t row = place.row * shape_.experts.size() + static_cast<size_t>(layer);
  ToFloats(blocks_[place.block].expert_residual, row * out.size(), out);
}

}  // namespace expertflow

#include "worker/routing_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/half.h"
#include "common/log.h"

namespace expertflow {
namespace {

// [n, width] floats to column `at` of [n, columns, width] halves.
void StoreHalves(const float* from, size_t n, size_t width, size_t columns, size_t at,
                 std::vector<uint16_t>* to) {
  for (size_t r = 0; r < n; ++r) {
    uint16_t* row = to->data() + (r * columns + at) * width;
    for (size_t i = 0; i < width; ++i) row[i] = HalfFromFloat(from[r * width + i]);
  }
}

}  // namespace

TraceShape RecordedShape(const StoreView& store, const ModelShape& model, bool features,
                         std::string config) {
  TraceShape shape;
  shape.layer_ids = model.moe_layers;
  shape.experts.assign(model.moe_layers.size(), model.experts);
  shape.top_k = model.top_k;
  if (features) {
    shape.hidden = model.hidden;
    shape.columns = kTraceColumnsKnown;
  }
  shape.expert_bytes = store.expert_block_bytes();
  if (store.expert_blocks().size() > 1) shape.block_bytes = store.ExpertBlockBytes();
  static_assert(sizeof(Fingerprint) == sizeof(shape.fingerprint));
  std::memcpy(shape.fingerprint.data(), &store.fingerprint(), sizeof(Fingerprint));
  shape.model = model.architecture;
  shape.config = std::move(config);
  return shape;
}

RoutingRecorder::RoutingRecorder(const TraceShape& shape, TraceSink& sink)
    : shape_(shape), sink_(sink) {
  size_t base = 0;
  for (size_t i = 0; i < shape.layer_ids.size(); ++i) {
    const auto layer = static_cast<size_t>(shape.layer_ids[i]);
    moe_index_.resize(std::max(moe_index_.size(), layer + 1), -1);
    moe_index_[layer] = static_cast<int32_t>(i);
    score_base_.push_back(base);
    base += static_cast<size_t>(shape.experts[i]);
  }
}

Result<std::unique_ptr<RoutingRecorder>> RoutingRecorder::Create(const TraceShape& shape,
                                                                 TraceSink& sink) {
  RETURN_IF_ERROR(CheckTraceShape(shape));
  RETURN_IF_ERROR(sink.Begin(shape));
  return std::unique_ptr<RoutingRecorder>(new RoutingRecorder(shape, sink));
}

void RoutingRecorder::Keep(const Status& status) {
  if (status.ok() || !status_.ok()) return;
  status_ = status;
  LogError("{}; the recording ends here", status.message());
}

void RoutingRecorder::BeginStep() {
  rows_.Clear();
}

void RoutingRecorder::AddRows(const StartSequence& sequence, int32_t first,
                              std::span<const int32_t> tokens, bool prompt, bool last_is_sampled) {
  if (!status_.ok()) return;
  const auto [found, is_new] = numbers_.try_emplace(sequence.sequence.value, sequences_);
  if (is_new) {
    ++sequences_;
    Keep(sink_.Sequence({.id = sequence.sequence.value,
                         .prompt_tokens = static_cast<int32_t>(sequence.prompt_tokens),
                         .temperature = sequence.sampling.temperature,
                         .top_p = sequence.sampling.top_p,
                         .top_k = sequence.sampling.top_k,
                         .seed = sequence.sampling.seed,
                         .label = {}}));
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool sampled = last_is_sampled && i + 1 == tokens.size();
    rows_.step.push_back(step_);
    rows_.sequence.push_back(found->second);
    rows_.position.push_back(static_cast<uint32_t>(first) + static_cast<uint32_t>(i));
    rows_.token.push_back(tokens[i]);
    rows_.flags.push_back(
        static_cast<uint8_t>((prompt ? kTraceRowPrompt : 0) | (sampled ? kTraceRowSampled : 0)));
  }
}

void RoutingRecorder::OnRoutes(LayerId layer, const int32_t* ids, const float* weights) {
  if (!status_.ok()) return;
  const auto k = static_cast<size_t>(shape_.top_k);
  const size_t columns = shape_.experts.size();
  rows_.experts.resize(rows_.size() * columns * k);
  rows_.weights.resize(rows_.experts.size());
  const auto at = static_cast<size_t>(MoeIndex(layer));
  for (size_t r = 0; r < rows_.size(); ++r) {
    for (size_t j = 0; j < k; ++j) {
      rows_.experts[(r * columns + at) * k + j] = static_cast<uint16_t>(ids[r * k + j]);
    }
  }
  StoreHalves(weights, rows_.size(), k, columns, at, &rows_.weights);
}

void RoutingRecorder::OnRouterState(LayerId layer, const float* logits, const float* residual) {
  if (!status_.ok()) return;
  const auto at = static_cast<size_t>(MoeIndex(layer));
  const size_t n = rows_.size();
  const auto width = static_cast<size_t>(shape_.experts[at]);
  const auto total = static_cast<size_t>(shape_.experts_total());
  const auto hidden = static_cast<size_t>(shape_.hidden);
  rows_.scores.resize(n * total);
  for (size_t r = 0; r < n; ++r) {
    uint16_t* row = rows_.scores.data() + r * total + score_base_[at];
    for (size_t e = 0; e < width; ++e) row[e] = HalfFromFloat(logits[r * width + e]);
  }
  rows_.router_hidden.resize(n * shape_.experts.size() * hidden);
  StoreHalves(residual, n, hidden, shape_.experts.size(), at, &rows_.router_hidden);
}

void RoutingRecorder::OnExpertResidual(LayerId layer, const float* residual) {
  if (!status_.ok()) return;
  const auto hidden = static_cast<size_t>(shape_.hidden);
  rows_.expert_residual.resize(rows_.size() * shape_.experts.size() * hidden);
  StoreHalves(residual, rows_.size(), hidden, shape_.experts.size(),
              static_cast<size_t>(MoeIndex(layer)), &rows_.expert_residual);
}

void RoutingRecorder::EndStep(std::span<const TraceSpan> spans) {
  if (!status_.ok() || rows_.size() == 0) return;
  Keep(sink_.Rows(rows_));
  if (status_.ok() && !spans.empty()) Keep(sink_.Spans(spans));
  ++step_;
  if (step_ == UINT32_MAX) Keep(ResourceExhausted("a trace holds 2^32 steps"));
}

void RoutingRecorder::EndSequence(SequenceId sequence) {
  numbers_.erase(sequence.value);
}

}  // namespace expertflow

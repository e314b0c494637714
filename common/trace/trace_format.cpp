#include "common/trace/trace_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace expertflow {
namespace {

Status CheckBlocks(const TraceShape& shape) {
  const auto experts = static_cast<size_t>(shape.experts_total());
  if (shape.block_bytes.empty()) return OkStatus();
  if (shape.block_bytes.size() != experts) {
    return InvalidArgument(
        fmt::format("sizes of {} blocks for {} experts", shape.block_bytes.size(), experts));
  }
  const auto [least, most] =
      std::minmax_element(shape.block_bytes.begin(), shape.block_bytes.end());
  if (*least == 0 || *most != shape.expert_bytes) {
    return InvalidArgument(
        fmt::format("blocks of {} to {} bytes, but the largest is said to have {}", *least, *most,
                    shape.expert_bytes));
  }
  return OkStatus();
}

}  // namespace

int32_t TraceShape::experts_total() const {
  return std::accumulate(experts.begin(), experts.end(), int32_t{0});
}

int32_t TraceShape::experts_widest() const {
  return experts.empty() ? 0 : *std::max_element(experts.begin(), experts.end());
}

void TraceShape::SetExpertBytes(uint64_t bytes) {
  expert_bytes = bytes;
  block_bytes.clear();
}

Status CheckTraceShape(const TraceShape& shape) {
  if (shape.experts.empty() || shape.experts.size() > kTraceLayersMax) {
    return InvalidArgument(
        fmt::format("{} MoE layers; expected 1 to {}", shape.experts.size(), kTraceLayersMax));
  }
  if (shape.layer_ids.size() != shape.experts.size()) {
    return InvalidArgument(fmt::format("{} layer numbers for {} MoE layers", shape.layer_ids.size(),
                                       shape.experts.size()));
  }
  int32_t previous = -1;
  for (size_t l = 0; l < shape.experts.size(); ++l) {
    if (shape.experts[l] < 1 || shape.experts[l] > kTraceExpertsMax) {
      return InvalidArgument(fmt::format("layer {} has {} experts; expected 1 to {}", l,
                                         shape.experts[l], kTraceExpertsMax));
    }
    if (shape.layer_ids[l] <= previous) {
      return InvalidArgument(fmt::format("layer number {} after {}", shape.layer_ids[l], previous));
    }
    previous = shape.layer_ids[l];
  }
  if (shape.top_k < 1 || shape.top_k > kTraceTopKMax) {
    return InvalidArgument(
        fmt::format("top_k is {}; expected 1 to {}", shape.top_k, kTraceTopKMax));
  }
  if (shape.hidden < 0 || shape.hidden > kTraceHiddenMax) {
    return InvalidArgument(
        fmt::format("hidden size is {}; expected at most {}", shape.hidden, kTraceHiddenMax));
  }
  if ((shape.columns & ~kTraceColumnsKnown) != 0) {
    return InvalidArgument(fmt::format("unknown columns {:#x}; a newer program wrote this trace",
                                       shape.columns & ~kTraceColumnsKnown));
  }
  const bool states = (shape.columns & (kTraceRouterHidden | kTraceExpertResidual)) != 0;
  if (states && shape.hidden == 0) return InvalidArgument("hidden states of no size");
  return CheckBlocks(shape);
}

void TraceRows::Clear() {
  step.clear();
  sequence.clear();
  position.clear();
  token.clear();
  flags.clear();
  experts.clear();
  weights.clear();
  scores.clear();
  router_hidden.clear();
  expert_residual.clear();
}

void AppendRow(const TraceRows& from, size_t r, TraceRows* to) {
  const auto append = [&](const auto& column, auto* out) {
    const size_t width = column.size() / from.size();
    out->insert(out->end(), column.begin() + static_cast<ptrdiff_t>(r * width),
                column.begin() + static_cast<ptrdiff_t>((r + 1) * width));
  };
  append(from.step, &to->step);
  append(from.sequence, &to->sequence);
  append(from.position, &to->position);
  append(from.token, &to->token);
  append(from.flags, &to->flags);
  append(from.experts, &to->experts);
  append(from.weights, &to->weights);
  append(from.scores, &to->scores);
  append(from.router_hidden, &to->router_hidden);
  append(from.expert_residual, &to->expert_residual);
}

Status CheckTraceRows(const TraceShape& shape, size_t sequences, const TraceRows& rows) {
  const size_t n = rows.size();
  const size_t layers = shape.experts.size();
  const size_t chosen = n * layers * static_cast<size_t>(shape.top_k);
  const auto has = [&](TraceColumn column) { return (shape.columns & column) != 0; };
  const size_t states = n * layers * static_cast<size_t>(shape.hidden);
  const size_t scores =
      has(kTraceRouterScores) ? n * static_cast<size_t>(shape.experts_total()) : 0;
  if (rows.sequence.size() != n || rows.position.size() != n || rows.token.size() != n ||
      rows.flags.size() != n || rows.experts.size() != chosen || rows.weights.size() != chosen ||
      rows.scores.size() != scores ||
      rows.router_hidden.size() != (has(kTraceRouterHidden) ? states : 0) ||
      rows.expert_residual.size() != (has(kTraceExpertResidual) ? states : 0)) {
    return InvalidArgument("rows whose columns differ in length");
  }
  const auto k = static_cast<size_t>(shape.top_k);
  for (size_t r = 0; r < n; ++r) {
    if (rows.sequence[r] >= sequences) {
      return InvalidArgument(fmt::format("row {} is of sequence {}, but there are {}", r,
                                         rows.sequence[r], sequences));
    }
    if ((rows.flags[r] & ~kTraceRowFlagsKnown) != 0) {
      return InvalidArgument(fmt::format("row {} has unknown flags {:#x}", r, rows.flags[r]));
    }
    if (r > 0 && rows.step[r] < rows.step[r - 1]) {
      return InvalidArgument(
          fmt::format("row {} goes back to step {} from {}", r, rows.step[r], rows.step[r - 1]));
    }
  }
  const uint16_t* expert = rows.experts.data();
  for (size_t r = 0; r < n; ++r) {
    for (size_t l = 0; l < layers; ++l, expert += k) {
      for (size_t j = 0; j < k; ++j) {
        if (expert[j] >= shape.experts[l]) {
          return InvalidArgument(
              fmt::format("row {}, layer {}: expert {} of {}", r, l, expert[j], shape.experts[l]));
        }
      }
    }
  }
  return OkStatus();
}

}  // namespace expertflow

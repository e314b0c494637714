// The rows of a MoE layer call grouped by expert: experts ascending, rows ascending within one.
// Reused from call to call without allocating once it has seen the largest batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/status.h"
#include "device/ops.h"
#include "model/arch/moe_executor.h"
#include "worker/cache/expert_cache.h"

namespace expertflow {

class RowGroups {
 public:
  // Errors: an id outside [0, call.experts), sizes that do not fit together.
  Status Build(const MoeLayerCall& call);

  // One entry per distinct expert; rows(i) are the rows of demands()[i]. A row that lists an expert
  // twice counts twice and has two output rows (FIELD 15).
  std::span<const LayerDemand> demands() const { return demands_; }
  std::span<const ExpertRow> rows(size_t group) const {
    const auto begin = static_cast<size_t>(starts_[group]);
    return {rows_.data() + begin, static_cast<size_t>(starts_[group + 1]) - begin};
  }
  // Rows that decode, ascending.
  std::span<const int32_t> decode_rows() const { return decode_rows_; }

 private:
  std::vector<LayerDemand> demands_;
  std::vector<int32_t> starts_;
  std::vector<int32_t> cursor_;  // per expert
  std::vector<ExpertRow> rows_;
  std::vector<int32_t> decode_rows_;
};

}  // namespace expertflow

// The lead of all workers' prefetch: one controller over what all of them measure. Workers report
// windows; a round of reports, one of each worker that took part in the round before, is a window
// of the controller. One that reports twice before the others have closes the round without them.
// All that the controller goes by is ratios of sums, so that a round's sum speaks for the mean of
// its workers. Pure, one thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>

#include "common/ids.h"
#include "predictor/core/dynamic_stride.h"
#include "predictor/core/published_stride.h"

namespace expertflow {

class GlobalStride {
 public:
  // True when what is published() has changed. Reports of an impossible model are ignored.
  // `expert_bytes`: of the largest expert; the first report's count, and its `stride_max`.
  bool OnReport(WorkerId worker, uint64_t expert_bytes, int32_t stride_max,
                const StrideWindow& window);
  // It is not waited for any more.
  void Forget(WorkerId worker);

  const PublishedStride& published() const { return published_; }
  uint64_t rounds() const { return rounds_; }
  // The start and the changes since; empty before the first report.
  std::span<const StrideStep> steps() const {
    return stride_ ? stride_->steps() : std::span<const StrideStep>();
  }

 private:
  bool Close();

  std::optional<DynamicStride> stride_;
  PublishedStride published_;
  std::set<WorkerId> expected_;  // in a round
  std::map<WorkerId, StrideWindow> round_;
  uint64_t rounds_ = 0;
};

}  // namespace expertflow

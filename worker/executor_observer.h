// What an executor tells a trace recorder. All hooks do nothing by default. Layer and stall hooks
// come from the thread that calls RunExperts(); copy hooks from whichever thread drives the
// transfer stream at that moment, so two threads may be in an observer at once.
#pragma once

#include <cstdint>

#include "common/ids.h"
#include "worker/cache/transfer_queue.h"

namespace expertflow {

class ExecutorObserver {
 public:
  virtual ~ExecutorObserver() = default;
  virtual void OnLayerBegin(LayerId /*layer*/, int64_t /*now_ns*/) {}
  virtual void OnLayerEnd(LayerId /*layer*/, int64_t /*now_ns*/) {}
  // One pair per chunk.
  virtual void OnCopyBegin(ExpertKey /*key*/, CopyKind /*kind*/, uint64_t /*bytes*/,
                           int64_t /*now_ns*/) {}
  virtual void OnCopyEnd(ExpertKey /*key*/, CopyKind /*kind*/, uint64_t /*bytes*/,
                         int64_t /*now_ns*/) {}
  // Compute has nothing to run until an expert arrives.
  virtual void OnStallBegin(LayerId /*layer*/, int64_t /*now_ns*/) {}
  virtual void OnStallEnd(LayerId /*layer*/, int64_t /*now_ns*/) {}
};

}  // namespace expertflow

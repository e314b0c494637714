// The timeline of a worker: steps, layers, stalls on the compute stream; copies on the transfer
// stream. Recorded by `--trace FILE`, shown by `expertflow trace --perfetto`
// (docs/file-formats.md).
//
// A file is a header and fixed-size records, appended in blocks, so that recording costs a store
// per event and a crash loses at most the last block.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/unique_fd.h"
#include "worker/executor_observer.h"

namespace expertflow {

enum class SpanKind : uint8_t {  // values are part of the file format
  kStep = 0,
  kLayer = 1,  // the experts of one MoE layer
  kStall = 2,  // compute has nothing to run until an expert arrives
  kCopyDemand = 3,
  kCopyPrefetch = 4,
};
inline constexpr uint8_t kSpanKinds = 5;

struct TimelineSpan {
  int64_t begin_ns = 0;  // CLOCK_MONOTONIC of the host
  int64_t end_ns = 0;
  uint64_t bytes = 0;  // copies; kStep: rows of the batch
  int16_t layer = -1;
  int16_t expert = -1;
  SpanKind kind = SpanKind::kStep;
  uint8_t reserved[3] = {};
};
static_assert(sizeof(TimelineSpan) == 32);

struct TimelineHeader {
  uint64_t magic = 0;
  uint32_t version = 0;
  uint32_t span_bytes = 0;
  int64_t pid = 0;
  char host[40] = {};  // zero-terminated
};
static_assert(sizeof(TimelineHeader) == 64);

class TimelineRecorder final : public ExecutorObserver {
 public:
  // An error names the path.
  static Result<std::unique_ptr<TimelineRecorder>> Create(const std::string& path);
  ~TimelineRecorder() override;

  void OnLayerBegin(LayerId layer, int64_t now_ns) override;
  void OnLayerEnd(LayerId layer, int64_t now_ns) override;
  void OnStallBegin(LayerId layer, int64_t now_ns) override;
  void OnStallEnd(LayerId layer, int64_t now_ns) override;
  void OnCopyBegin(ExpertKey key, CopyKind kind, uint64_t bytes, int64_t now_ns) override;
  void OnCopyEnd(ExpertKey key, CopyKind kind, uint64_t bytes, int64_t now_ns) override;
  void OnStep(int64_t begin_ns, int64_t end_ns, int64_t rows);

 private:
  TimelineRecorder(UniqueFd fd, std::string path);
  void Add(const TimelineSpan& span);
  void WriteBlock();  // REQUIRES: mutex_ held

  UniqueFd fd_;
  const std::string path_;
  int64_t layer_begin_ns_ = 0;  // engine's thread
  int64_t stall_begin_ns_ = 0;  // engine's thread

  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<TimelineSpan> block_;
  struct OpenCopy {
    ExpertKey key;
    int64_t begin_ns = 0;
  };
  std::vector<OpenCopy> copies_;  // begun, not ended: a few
  bool failed_ = false;
};

struct Timeline {
  TimelineHeader header;
  std::vector<TimelineSpan> spans;
};

// A file that a crash cut short gives the spans before the cut. Errors name the path.
Result<Timeline> ReadTimeline(const std::string& path);

}  // namespace expertflow

// The timeline of a worker: steps, layers, stalls on the compute stream; copies on the transfer
// stream. Recorded by `--trace FILE`, shown by `expertflow trace --perfetto`
// (docs/file-formats.md).
//
// Sequences, which overlap, are beside the spans: each from its start at this worker to its end,
// with the trace id of the client's request.
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
#include "common/trace/trace_format.h"
#include "common/unique_fd.h"
#include "worker/executor_observer.h"

namespace expertflow {

using TimelineSpan = TraceSpan;

struct TimelineHeader {
  uint64_t magic = 0;
  uint32_t version = 0;
  uint32_t span_bytes = 0;
  int64_t pid = 0;
  char host[40] = {};  // zero-terminated
};
static_assert(sizeof(TimelineHeader) == 64);

struct TimelineSequence {
  uint64_t sequence = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  std::string trace_id = {};  // 32 hex digits, or empty
};

class TimelineRecorder final : public ExecutorObserver {
 public:
  // Into a file, unless `path` is empty. An error names the path. With `keep`, spans are kept for
  // TakeSpans() as well.
  static Result<std::unique_ptr<TimelineRecorder>> Create(const std::string& path,
                                                          bool keep = false);
  ~TimelineRecorder() override;

  void OnLayerBegin(LayerId layer, int64_t now_ns) override;
  void OnLayerEnd(LayerId layer, int64_t now_ns) override;
  void OnStallBegin(LayerId layer, int64_t now_ns) override;
  void OnStallEnd(LayerId layer, int64_t now_ns) override;
  void OnCopyBegin(ExpertKey key, CopyKind kind, uint64_t bytes, int64_t now_ns) override;
  void OnCopyEnd(ExpertKey key, CopyKind kind, uint64_t bytes, int64_t now_ns) override;
  void OnStep(int64_t begin_ns, int64_t end_ns, int64_t rows);
  void OnSequence(const TimelineSequence& sequence);
  // Moves the spans since the last call to `spans`.
  void TakeSpans(std::vector<TimelineSpan>* spans);

 private:
  TimelineRecorder(UniqueFd fd, std::string path, bool keep);
  void Add(const TimelineSpan& span);
  void AddRecord(const TimelineSpan& record);  // REQUIRES: mutex_ held
  void WriteBlock();                           // REQUIRES: mutex_ held

  UniqueFd fd_;
  const std::string path_;
  const bool keep_;
  int64_t layer_begin_ns_ = 0;  // engine's thread
  int64_t stall_begin_ns_ = 0;  // engine's thread

  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<TimelineSpan> block_;
  std::vector<TimelineSpan> kept_;
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
  std::vector<TimelineSequence> sequences;
};

// A file that a crash cut short gives the spans before the cut. Errors name the path.
Result<Timeline> ReadTimeline(const std::string& path);

}  // namespace expertflow

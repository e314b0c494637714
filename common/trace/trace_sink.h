// Where the rows of a trace go, one after the other: a file, or what works on them in memory.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>

#include "common/status.h"
#include "common/trace/trace_format.h"
#include "common/trace/trace_writer.h"

namespace expertflow {

class TraceSink {
 public:
  virtual ~TraceSink() = default;
  // Once, before everything else.
  virtual Status Begin(const TraceShape& shape) = 0;
  // Numbered in the order of their coming, from 0; before the rows that name them.
  virtual Status Sequence(const TraceSequence& sequence) = 0;
  virtual Status Rows(const TraceRows& rows) = 0;
  virtual Status Spans(std::span<const TraceSpan> /*spans*/) { return OkStatus(); }
};

// Into a new file. Without Close() it can still be read, up to the last full block.
class TraceFileSink final : public TraceSink {
 public:
  explicit TraceFileSink(std::string path, const TraceWriterOptions& options = {})
      : path_(std::move(path)), options_(options) {}

  Status Begin(const TraceShape& shape) override {
    ASSIGN_OR_RETURN(TraceWriter writer, TraceWriter::Create(path_, shape, options_));
    writer_.emplace(std::move(writer));
    return OkStatus();
  }
  Status Sequence(const TraceSequence& sequence) override {
    writer_->AddSequence(sequence);
    return OkStatus();
  }
  Status Rows(const TraceRows& rows) override { return writer_->Append(rows); }
  Status Spans(std::span<const TraceSpan> spans) override { return writer_->Append(spans); }
  Status Close() { return writer_ ? writer_->Close() : OkStatus(); }

 private:
  const std::string path_;
  const TraceWriterOptions options_;
  std::optional<TraceWriter> writer_;
};

}  // namespace expertflow

// Writes a trace file, appending block by block: a crash loses at most the block that was not yet
// full. One thread at a time. Errors name the file; after one, the trace ends where it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/trace/trace_codec.h"
#include "common/trace/trace_format.h"
#include "common/unique_fd.h"

namespace expertflow {

struct TraceWriterOptions {
  int32_t level = 3;              // of zstd
  size_t block_bytes = 4u << 20;  // of rows, before compression
};

class TraceWriter {
 public:
  // Replaces the file.
  static Result<TraceWriter> Create(const std::string& path, const TraceShape& shape,
                                    const TraceWriterOptions& options = {});

  // Returns its index, for the rows.
  uint32_t AddSequence(const TraceSequence& sequence);
  // kInvalidArgument when the rows do not fit the shape.
  Status Append(const TraceRows& rows);
  Status Append(std::span<const TraceSpan> spans);
  // Writes what is pending, and the index. Without it the file can still be read.
  Status Close();

  uint64_t bytes_written() const { return offset_; }
  const TraceShape& shape() const { return shape_; }

 private:
  TraceWriter() = default;
  Status Flush();
  Status WriteBlock(trace_codec::BlockKind kind, uint32_t count, uint64_t first,
                    std::span<const uint8_t> raw);
  Status Write(std::span<const uint8_t> bytes);

  std::string path_;
  UniqueFd fd_;
  TraceShape shape_;
  TraceWriterOptions options_;
  uint64_t row_bytes_ = 0;
  uint64_t offset_ = 0;
  std::vector<TraceSequence> sequences_;  // pending
  TraceRows rows_;                        // pending
  std::vector<TraceSpan> spans_;          // pending
  uint64_t sequences_written_ = 0;
  uint64_t rows_written_ = 0;
  uint64_t spans_written_ = 0;
  std::vector<trace_codec::IndexEntry> index_;
};

}  // namespace expertflow

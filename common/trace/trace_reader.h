// Reads a trace file. Every extent, hash and value is checked before use, so any bytes are a safe
// input. A file without its end (a crash) gives the blocks before the cut. Immutable once open; any
// thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/mapped_file.h"
#include "common/status.h"
#include "common/trace/trace_codec.h"
#include "common/trace/trace_format.h"

namespace expertflow {

class TraceReader {
 public:
  // Errors name the path and the block.
  static Result<TraceReader> Open(const std::string& path);
  // REQUIRES: `bytes` outlives the reader. `name` is for messages.
  static Result<TraceReader> Parse(std::span<const uint8_t> bytes, const std::string& name);

  const TraceShape& shape() const { return shape_; }
  const std::vector<TraceSequence>& sequences() const { return sequences_; }
  uint64_t rows() const { return rows_; }
  uint64_t spans() const { return spans_; }
  // The end is missing: some of the last rows may be lost.
  bool truncated() const { return truncated_; }

  size_t row_blocks() const { return row_blocks_.size(); }
  uint64_t rows_in(size_t block) const { return row_blocks_[block].count; }
  // REQUIRES: block < row_blocks()
  Result<TraceRows> ReadRows(size_t block) const;
  size_t span_blocks() const { return span_blocks_.size(); }
  // REQUIRES: block < span_blocks()
  Result<std::vector<TraceSpan>> ReadSpans(size_t block) const;

 private:
  TraceReader() = default;
  Status Init();
  Status ReadIndex();
  Status Scan(uint64_t offset);
  // The header at `offset`, checked against the file's size and for sense.
  Result<trace_codec::BlockHeader> HeaderAt(uint64_t offset) const;
  // Checks the hash and decompresses.
  Result<std::vector<uint8_t>> Unpack(uint64_t offset,
                                      const trace_codec::BlockHeader& header) const;
  Status Take(const trace_codec::IndexEntry& entry);

  std::string name_;
  std::shared_ptr<MappedFile> file_;  // null with Parse()
  std::span<const uint8_t> bytes_;
  TraceShape shape_;
  std::vector<TraceSequence> sequences_;
  std::vector<trace_codec::IndexEntry> row_blocks_;
  std::vector<trace_codec::IndexEntry> span_blocks_;
  uint64_t rows_ = 0;
  uint64_t spans_ = 0;
  bool truncated_ = false;
};

}  // namespace expertflow

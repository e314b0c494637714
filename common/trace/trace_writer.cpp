#include "common/trace/trace_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace expertflow {
namespace {

using trace_codec::BlockHeader;
using trace_codec::BlockKind;
using trace_codec::FileHeader;
using trace_codec::Trailer;

constexpr size_t kBlockRowsMax = 65536;
constexpr size_t kBlockSpansMax = 65536;

template <typename T>
std::span<const uint8_t> BytesOf(const T* data, size_t count) {
  return {reinterpret_cast<const uint8_t*>(data), count * sizeof(T)};
}

template <typename T>
void AppendTo(const std::vector<T>& from, std::vector<T>* to) {
  to->insert(to->end(), from.begin(), from.end());
}

}  // namespace

Result<TraceWriter> TraceWriter::Create(const std::string& path, const TraceShape& shape,
                                        const TraceWriterOptions& options) {
  RETURN_IF_ERROR(CheckTraceShape(shape).WithContext(path));
  TraceWriter writer;
  writer.path_ = path;
  writer.shape_ = shape;
  writer.options_ = options;
  writer.row_bytes_ = trace_codec::RowBytes(shape);
  if (writer.row_bytes_ > trace_codec::kBlockRawBytesMax) {
    return InvalidArgument(fmt::format("{}: a row of {} bytes is more than a block holds ({})",
                                       path, writer.row_bytes_, trace_codec::kBlockRawBytesMax));
  }
  const std::vector<uint8_t> meta = trace_codec::EncodeShape(shape);
  if (meta.size() > trace_codec::kMetaBytesMax) {
    return InvalidArgument(fmt::format("{}: the description is too long", path));
  }
  writer.fd_.Reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!writer.fd_.valid()) return FromErrno(errno, "cannot create " + path);
  FileHeader header;
  header.version = trace_codec::VersionOf(shape);
  header.meta_bytes = meta.size();
  header.meta_hash = trace_codec::Hash(meta);
  RETURN_IF_ERROR(writer.Write(BytesOf(&header, 1)));
  RETURN_IF_ERROR(writer.Write(meta));
  return writer;
}

uint32_t TraceWriter::AddSequence(const TraceSequence& sequence) {
  sequences_.push_back(sequence);
  return static_cast<uint32_t>(sequences_written_ + sequences_.size() - 1);
}

Status TraceWriter::Append(const TraceRows& rows) {
  const size_t sequences = sequences_written_ + sequences_.size();
  RETURN_IF_ERROR(CheckTraceRows(shape_, sequences, rows).WithContext(path_));
  if (rows.size() * row_bytes_ > trace_codec::kBlockRawBytesMax || rows.size() > kBlockRowsMax) {
    return InvalidArgument(fmt::format("{}: {} rows in one call", path_, rows.size()));
  }
  if ((rows_.size() + rows.size()) * row_bytes_ > trace_codec::kBlockRawBytesMax) {
    RETURN_IF_ERROR(Flush());
  }
  AppendTo(rows.step, &rows_.step);
  AppendTo(rows.sequence, &rows_.sequence);
  AppendTo(rows.position, &rows_.position);
  AppendTo(rows.token, &rows_.token);
  AppendTo(rows.flags, &rows_.flags);
  AppendTo(rows.experts, &rows_.experts);
  AppendTo(rows.weights, &rows_.weights);
  AppendTo(rows.scores, &rows_.scores);
  AppendTo(rows.router_hidden, &rows_.router_hidden);
  AppendTo(rows.expert_residual, &rows_.expert_residual);
  if (rows_.size() >= kBlockRowsMax || rows_.size() * row_bytes_ >= options_.block_bytes) {
    return Flush();
  }
  return OkStatus();
}

Status TraceWriter::Append(std::span<const TraceSpan> spans) {
  spans_.insert(spans_.end(), spans.begin(), spans.end());
  return spans_.size() >= kBlockSpansMax ? Flush() : OkStatus();
}

Status TraceWriter::Flush() {
  if (!sequences_.empty()) {
    const auto count = static_cast<uint32_t>(sequences_.size());
    RETURN_IF_ERROR(WriteBlock(BlockKind::kSequences, count, sequences_written_,
                               trace_codec::EncodeSequences(sequences_)));
    sequences_written_ += count;
    sequences_.clear();
  }
  if (rows_.size() > 0) {
    const auto count = static_cast<uint32_t>(rows_.size());
    RETURN_IF_ERROR(
        WriteBlock(BlockKind::kRows, count, rows_written_, trace_codec::EncodeRows(shape_, rows_)));
    rows_written_ += count;
    rows_.Clear();
  }
  for (size_t begin = 0; begin < spans_.size(); begin += kBlockSpansMax) {
    const size_t count = std::min(kBlockSpansMax, spans_.size() - begin);
    RETURN_IF_ERROR(WriteBlock(BlockKind::kSpans, static_cast<uint32_t>(count), spans_written_,
                               BytesOf(spans_.data() + begin, count)));
    spans_written_ += count;
  }
  spans_.clear();
  return OkStatus();
}

Status TraceWriter::WriteBlock(BlockKind kind, uint32_t count, uint64_t first,
                               std::span<const uint8_t> raw) {
  std::vector<uint8_t> frame(ZSTD_compressBound(raw.size()));
  const size_t size =
      ZSTD_compress(frame.data(), frame.size(), raw.data(), raw.size(), options_.level);
  if (ZSTD_isError(size) != 0) {
    return Internal(fmt::format("{}: zstd: {}", path_, ZSTD_getErrorName(size)));
  }
  frame.resize(size);
  BlockHeader header;
  header.kind = kind;
  header.count = count;
  header.raw_bytes = static_cast<uint32_t>(raw.size());
  header.stored_bytes = static_cast<uint32_t>(size);
  header.first = first;
  header.hash = trace_codec::BlockHash(header, frame);
  index_.push_back({.offset = offset_, .first = first, .count = count, .kind = kind});
  RETURN_IF_ERROR(Write(BytesOf(&header, 1)));
  return Write(frame);
}

Status TraceWriter::Close() {
  RETURN_IF_ERROR(Flush());
  const std::vector<trace_codec::IndexEntry> index = index_;
  const Trailer trailer{.index_offset = offset_};
  RETURN_IF_ERROR(WriteBlock(BlockKind::kIndex, static_cast<uint32_t>(index.size()), 0,
                             BytesOf(index.data(), index.size())));
  RETURN_IF_ERROR(Write(BytesOf(&trailer, 1)));
  const int fd = fd_.Release();
  if (::close(fd) != 0) return FromErrno(errno, "cannot write " + path_);
  return OkStatus();
}

Status TraceWriter::Write(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FromErrno(errno, "cannot write " + path_);
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset_ += static_cast<uint64_t>(n);
  }
  return OkStatus();
}

}  // namespace expertflow

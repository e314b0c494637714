#include "common/trace/trace_reader.h"

#include <fmt/format.h>
#include <zstd.h>

#include <cstring>
#include <utility>

namespace expertflow {
namespace {

using trace_codec::BlockHeader;
using trace_codec::BlockKind;
using trace_codec::FileHeader;
using trace_codec::IndexEntry;
using trace_codec::Trailer;

template <typename T>
T Load(std::span<const uint8_t> bytes, uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

}  // namespace

Result<TraceReader> TraceReader::Open(const std::string& path) {
  ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  TraceReader reader;
  reader.name_ = path;
  reader.file_ = std::make_shared<MappedFile>(std::move(mapped));
  reader.bytes_ = reader.file_->bytes();
  RETURN_IF_ERROR(reader.Init().WithContext(path));
  return reader;
}

Result<TraceReader> TraceReader::Parse(std::span<const uint8_t> bytes, const std::string& name) {
  TraceReader reader;
  reader.name_ = name;
  reader.bytes_ = bytes;
  RETURN_IF_ERROR(reader.Init().WithContext(name));
  return reader;
}

Status TraceReader::Init() {
  if (bytes_.size() < sizeof(FileHeader)) return InvalidArgument("too short for a trace");
  const auto header = Load<FileHeader>(bytes_, 0);
  if (header.magic != kTraceMagic) return InvalidArgument("not a trace (.eft)");
  if (header.version < 1 || header.version > kTraceVersion ||
      header.header_bytes != sizeof(FileHeader)) {
    return InvalidArgument(fmt::format("trace version {}; this program reads versions 1 to {}",
                                       header.version, kTraceVersion));
  }
  if (header.meta_bytes > trace_codec::kMetaBytesMax ||
      header.meta_bytes > bytes_.size() - sizeof(FileHeader)) {
    return InvalidArgument("the description reaches past the end");
  }
  const auto meta = bytes_.subspan(sizeof(FileHeader), header.meta_bytes);
  if (trace_codec::Hash(meta) != header.meta_hash) {
    return InvalidArgument("the description is damaged");
  }
  ASSIGN_OR_RETURN(shape_, trace_codec::DecodeShape(meta, header.version));
  if (ReadIndex().ok()) return OkStatus();
  // No index, or not all of it: go from block to block.
  truncated_ = true;
  sequences_.clear();
  row_blocks_.clear();
  span_blocks_.clear();
  rows_ = spans_ = 0;
  return Scan(sizeof(FileHeader) + header.meta_bytes);
}

Status TraceReader::ReadIndex() {
  if (bytes_.size() < sizeof(Trailer)) return InvalidArgument("no trailer");
  const auto trailer = Load<Trailer>(bytes_, bytes_.size() - sizeof(Trailer));
  if (trailer.magic != trace_codec::kTrailerMagic) return InvalidArgument("no trailer");
  ASSIGN_OR_RETURN(const BlockHeader header, HeaderAt(trailer.index_offset));
  if (header.kind != BlockKind::kIndex) return InvalidArgument("the trailer points elsewhere");
  ASSIGN_OR_RETURN(const std::vector<uint8_t> raw, Unpack(trailer.index_offset, header));
  for (size_t i = 0; i < header.count; ++i) {
    RETURN_IF_ERROR(Take(Load<IndexEntry>(raw, i * sizeof(IndexEntry))));
  }
  return OkStatus();
}

Status TraceReader::Scan(uint64_t offset) {
  while (offset < bytes_.size()) {
    const auto header = HeaderAt(offset);
    if (!header.ok() || header->kind == BlockKind::kIndex) break;
    const auto frame = bytes_.subspan(offset + sizeof(BlockHeader), header->stored_bytes);
    if (trace_codec::BlockHash(*header, frame) != header->hash) break;
    const IndexEntry entry{
        .offset = offset, .first = header->first, .count = header->count, .kind = header->kind};
    RETURN_IF_ERROR(Take(entry));
    offset += sizeof(BlockHeader) + header->stored_bytes;
  }
  return OkStatus();
}

Status TraceReader::Take(const IndexEntry& entry) {
  ASSIGN_OR_RETURN(const BlockHeader header, HeaderAt(entry.offset));
  if (header.kind != entry.kind || header.count != entry.count || header.first != entry.first) {
    return InvalidArgument(fmt::format("the block at {} is not what the index says", entry.offset));
  }
  const auto in_order = [&](uint64_t next) {
    return entry.first == next
               ? OkStatus()
               : InvalidArgument(fmt::format("the block at {} begins with record {}; expected {}",
                                             entry.offset, entry.first, next));
  };
  switch (header.kind) {
    case BlockKind::kSequences: {
      RETURN_IF_ERROR(in_order(sequences_.size()));
      if (entry.count > trace_codec::kSequencesMax - sequences_.size()) {
        return InvalidArgument(fmt::format("more than {} sequences", trace_codec::kSequencesMax));
      }
      ASSIGN_OR_RETURN(const std::vector<uint8_t> raw, Unpack(entry.offset, header));
      ASSIGN_OR_RETURN(std::vector<TraceSequence> more, trace_codec::DecodeSequences(raw));
      for (TraceSequence& sequence : more) sequences_.push_back(std::move(sequence));
      return OkStatus();
    }
    case BlockKind::kRows:
      RETURN_IF_ERROR(in_order(rows_));
      row_blocks_.push_back(entry);
      rows_ += entry.count;
      return OkStatus();
    case BlockKind::kSpans:
      RETURN_IF_ERROR(in_order(spans_));
      span_blocks_.push_back(entry);
      spans_ += entry.count;
      return OkStatus();
    case BlockKind::kIndex: break;
  }
  return InvalidArgument(fmt::format("an index among the blocks, at {}", entry.offset));
}

Result<BlockHeader> TraceReader::HeaderAt(uint64_t offset) const {
  const uint64_t size = bytes_.size();
  if (offset > size || size - offset < sizeof(BlockHeader)) {
    return InvalidArgument(fmt::format("no room for a block at {} of {}", offset, size));
  }
  const auto header = Load<BlockHeader>(bytes_, offset);
  if (header.magic != trace_codec::kBlockMagic) {
    return InvalidArgument(fmt::format("no block at {}", offset));
  }
  uint64_t record_bytes = 0;
  switch (header.kind) {
    case BlockKind::kSequences: record_bytes = trace_codec::kSequenceBytes; break;
    case BlockKind::kRows: record_bytes = trace_codec::RowBytes(shape_); break;
    case BlockKind::kSpans: record_bytes = sizeof(TraceSpan); break;
    case BlockKind::kIndex: record_bytes = sizeof(IndexEntry); break;
    default: return InvalidArgument(fmt::format("a block of an unknown kind at {}", offset));
  }
  if (header.raw_bytes > trace_codec::kBlockRawBytesMax ||
      header.raw_bytes != header.count * record_bytes ||
      header.stored_bytes > size - offset - sizeof(BlockHeader)) {
    return InvalidArgument(fmt::format("the block at {} has impossible sizes", offset));
  }
  return header;
}

Result<std::vector<uint8_t>> TraceReader::Unpack(uint64_t offset, const BlockHeader& header) const {
  const auto frame = bytes_.subspan(offset + sizeof(BlockHeader), header.stored_bytes);
  if (trace_codec::BlockHash(header, frame) != header.hash) {
    return InvalidArgument(fmt::format("the block at {} is damaged", offset));
  }
  // The frame's own word for its size must agree before memory is taken for it.
  if (ZSTD_getFrameContentSize(frame.data(), frame.size()) != header.raw_bytes) {
    return InvalidArgument(fmt::format("the block at {} has another size than it says", offset));
  }
  std::vector<uint8_t> raw(header.raw_bytes);
  const size_t size = ZSTD_decompress(raw.data(), raw.size(), frame.data(), frame.size());
  if (ZSTD_isError(size) != 0 || size != raw.size()) {
    return InvalidArgument(fmt::format("the block at {} cannot be decompressed", offset));
  }
  return raw;
}

Result<TraceRows> TraceReader::ReadRows(size_t block) const {
  const IndexEntry& entry = row_blocks_[block];
  const auto context = [&](const Status& status) { return status.WithContext(name_); };
  const auto header = HeaderAt(entry.offset);
  if (!header.ok()) return context(header.status());
  const auto raw = Unpack(entry.offset, *header);
  if (!raw.ok()) return context(raw.status());
  TraceRows rows = trace_codec::DecodeRows(shape_, header->count, *raw);
  const Status status = CheckTraceRows(shape_, sequences_.size(), rows);
  if (!status.ok()) {
    return context(status.WithContext(fmt::format("the block at {}", entry.offset)));
  }
  return rows;
}

Result<std::vector<TraceSpan>> TraceReader::ReadSpans(size_t block) const {
  const IndexEntry& entry = span_blocks_[block];
  const auto header = HeaderAt(entry.offset);
  if (!header.ok()) return header.status().WithContext(name_);
  const auto raw = Unpack(entry.offset, *header);
  if (!raw.ok()) return raw.status().WithContext(name_);
  std::vector<TraceSpan> spans(header->count);
  if (!spans.empty()) std::memcpy(spans.data(), raw->data(), raw->size());
  for (const TraceSpan& span : spans) {
    if (static_cast<uint8_t>(span.kind) >= kTraceSpanKinds) {
      return InvalidArgument(
          fmt::format("{}: the block at {} has a span of unknown kind", name_, entry.offset));
    }
  }
  return spans;
}

}  // namespace expertflow

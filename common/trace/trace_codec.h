// The bytes of a trace file's parts: shared by its writer and its reader, of no use to others.
// Pure functions; layouts are in docs/file-formats.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/status.h"
#include "common/trace/trace_format.h"

namespace expertflow::trace_codec {

enum class BlockKind : uint8_t { kSequences = 1, kRows = 2, kSpans = 3, kIndex = 4 };

struct FileHeader {
  uint64_t magic = kTraceMagic;
  uint32_t version = kTraceVersion;
  uint32_t header_bytes = 64;
  uint64_t meta_bytes = 0;
  uint64_t meta_hash = 0;  // XXH3-64
  uint8_t reserved[32] = {};
};
static_assert(sizeof(FileHeader) == 64);

inline constexpr uint32_t kBlockMagic = 0x42544645;  // "EFTB"
struct BlockHeader {
  uint32_t magic = kBlockMagic;
  BlockKind kind = BlockKind::kRows;
  uint8_t reserved[3] = {};
  uint32_t count = 0;         // records
  uint32_t raw_bytes = 0;     // once decompressed
  uint32_t stored_bytes = 0;  // the zstd frame that follows
  uint32_t zero = 0;
  uint64_t first = 0;  // number of the first record among those of its kind
  uint64_t hash = 0;   // XXH3-64 of the header with hash 0, then of the frame
};
static_assert(sizeof(BlockHeader) == 40);

struct IndexEntry {
  uint64_t offset = 0;
  uint64_t first = 0;
  uint32_t count = 0;
  BlockKind kind = BlockKind::kRows;
  uint8_t reserved[3] = {};
};
static_assert(sizeof(IndexEntry) == 24);

inline constexpr uint64_t kTrailerMagic = 0x444e454543415254;  // "TRACEEND"
struct Trailer {
  uint64_t magic = kTrailerMagic;
  uint64_t index_offset = 0;
};
static_assert(sizeof(Trailer) == 16);

inline constexpr uint32_t kBlockRawBytesMax = 256u << 20;
inline constexpr size_t kSequencesMax = 1u << 20;
inline constexpr uint64_t kMetaBytesMax = 16u << 20;

uint64_t Hash(std::span<const uint8_t> bytes);
uint64_t BlockHash(BlockHeader header, std::span<const uint8_t> frame);

// The lowest version that can hold the shape.
uint32_t VersionOf(const TraceShape& shape);
std::vector<uint8_t> EncodeShape(const TraceShape& shape);
// REQUIRES: 1 <= version <= kTraceVersion
Result<TraceShape> DecodeShape(std::span<const uint8_t> bytes, uint32_t version);

uint64_t RowBytes(const TraceShape& shape);  // raw, of one row
std::vector<uint8_t> EncodeRows(const TraceShape& shape, const TraceRows& rows);
// REQUIRES: bytes.size() == count * RowBytes(shape)
TraceRows DecodeRows(const TraceShape& shape, size_t count, std::span<const uint8_t> bytes);

inline constexpr size_t kSequenceBytes = 96;
std::vector<uint8_t> EncodeSequences(std::span<const TraceSequence> sequences);
// REQUIRES: bytes.size() == count * kSequenceBytes
Result<std::vector<TraceSequence>> DecodeSequences(std::span<const uint8_t> bytes);

}  // namespace expertflow::trace_codec

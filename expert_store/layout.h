// The bytes of an expert store: the same in a shared-memory segment and in a packed file, apart
// from the ownership part of the header, which is zero in a file.
//
//   header page | config.json text | names | dense index | expert index | dense tensors | experts
//
// Offsets count from the start of the store; there are no pointers. An expert block begins on a
// page and holds gate, up and down and perhaps a bias of each, each on a 64-byte boundary; its byte
// count is exact and its checksum covers the padding, too. The index and the immutable part of the
// header are hashed. Values are little-endian, as on every machine that we support.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "common/dtype.h"
#include "common/status.h"

namespace expertflow {

inline constexpr uint64_t kStoreMagic = 0x45524f5453465845;  // "EXFSTORE"
inline constexpr uint32_t kStoreVersion = 2;
inline constexpr uint64_t kStorePageBytes = 4096;
inline constexpr uint64_t kStoreHeaderBytes = kStorePageBytes;
inline constexpr uint64_t kTensorAlignment = 64;
inline constexpr uint32_t kStoreRankMax = 4;
inline constexpr int32_t kStoreLayersMax = 4096;
inline constexpr int32_t kStoreExpertsPerLayerMax = 65536;
inline constexpr int64_t kStoreDimensionMax = int64_t{1} << 31;
inline constexpr uint64_t kStoreElementsMax = uint64_t{1} << 56;  // of a tensor

// XXH3-128 over config, tensor names, shapes, types and checksums: equal for equal models, however
// they are laid out.
struct Fingerprint {
  uint64_t low = 0;
  uint64_t high = 0;
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
  std::string ToString() const;  // 32 hexadecimal digits
  static Result<Fingerprint> Parse(std::string_view text);
};

struct StoreExtent {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

enum class StoreState : uint32_t {
  kLoading = 1,  // only the ownership part of the header is valid
  kReady = 2,    // nothing but the ownership changes any more
};

// Who keeps a segment alive. A pid alone does not identify a process: it may be reused.
struct StoreOwner {
  int64_t pid = 0;
  int64_t start_ticks = 0;
  int64_t job_pid = 0;  // the process whose life is the job's; 0: none
  int64_t job_start_ticks = 0;
  char boot_id[40] = {};  // text, ends with zero
};

struct StoreHeader {
  uint64_t magic = 0;
  uint32_t version = 0;
  int32_t layers = 0;
  uint64_t layout_hash = 0;
  uint64_t total_bytes = 0;  // a multiple of the page size
  Fingerprint fingerprint;
  StoreExtent config;
  StoreExtent names;
  StoreExtent dense_index;   // DenseEntry, sorted by name
  StoreExtent expert_index;  // ExpertEntry, sorted by layer, expert
  int32_t experts_per_layer = 0;
  uint32_t reserved = 0;
  uint64_t index_hash = 0;   // XXH3-64 of everything from the header's end to the index's end
  uint64_t header_hash = 0;  // XXH3-64 of the fields above

  uint32_t state = 0;  // StoreState; read and written atomically
  uint32_t reserved_state = 0;
  StoreOwner owner;
};

struct DenseEntry {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t checksum = 0;     // XXH3-64
  uint64_t name_offset = 0;  // within the names
  uint32_t name_bytes = 0;
  uint32_t dtype = 0;  // DType
  uint32_t rank = 0;
  uint32_t reserved = 0;
  int64_t shape[kStoreRankMax] = {};
};

struct ExpertEntry {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t checksum = 0;  // XXH3-64
  int32_t layer = 0;
  int32_t expert = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  // DType of each matrix
  uint8_t gate_dtype = 0;
  uint8_t up_dtype = 0;
  uint8_t down_dtype = 0;
  uint8_t bias = 0;  // 0: no biases; otherwise 1 + the DType of all three
  uint32_t reserved = 0;
};

static_assert(sizeof(Fingerprint) == 16 && sizeof(StoreExtent) == 16 && sizeof(StoreOwner) == 72);
static_assert(sizeof(StoreHeader) == 216 && sizeof(StoreHeader) <= kStoreHeaderBytes);
static_assert(sizeof(DenseEntry) == 80 && sizeof(ExpertEntry) == 56);
static_assert(std::is_trivially_copyable_v<StoreHeader>);
static_assert(std::is_trivially_copyable_v<DenseEntry>);
static_assert(std::is_trivially_copyable_v<ExpertEntry>);

// Identifies the structs above as they were compiled; a store with another value is refused.
constexpr uint64_t StoreLayoutHash() {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const uint64_t value :
       {sizeof(StoreHeader), offsetof(StoreHeader, config), offsetof(StoreHeader, index_hash),
        offsetof(StoreHeader, state), sizeof(DenseEntry), offsetof(DenseEntry, shape),
        sizeof(ExpertEntry), offsetof(ExpertEntry, gate_dtype), size_t{kStorePageBytes},
        size_t{kTensorAlignment}}) {
    hash = (hash ^ value) * 0x100000001b3;
  }
  return hash;
}

constexpr uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

struct ExpertTypes {
  DType gate = DType::kF32;
  DType up = DType::kF32;
  DType down = DType::kF32;

  static ExpertTypes All(DType dtype) { return {dtype, dtype, dtype}; }
  static ExpertTypes Of(const ExpertEntry& entry) {
    return {static_cast<DType>(entry.gate_dtype), static_cast<DType>(entry.up_dtype),
            static_cast<DType>(entry.down_dtype)};
  }
  friend bool operator==(const ExpertTypes&, const ExpertTypes&) = default;
};

// How many experts have a block of so many bytes.
using BlockCounts = std::map<uint64_t, int64_t>;
// 0 without blocks.
inline uint64_t LargestBlock(const BlockCounts& blocks) {
  return blocks.empty() ? 0 : blocks.rbegin()->first;
}

// Adds those that are not there yet; ascending.
void AddTypes(const ExpertTypes& types, std::vector<DType>* distinct);

// Where the matrices and biases lie in a block. Offsets of absent biases are 0.
struct ExpertGeometry {
  uint64_t gate_offset = 0;
  uint64_t up_offset = 0;
  uint64_t down_offset = 0;
  uint64_t gate_bias_offset = 0;
  uint64_t up_bias_offset = 0;
  uint64_t down_bias_offset = 0;
  uint64_t block_bytes = 0;
};
// Sizes that no model has (or that would overflow) are errors. `bias` is the biases' type.
Result<ExpertGeometry> PlaceExpert(int64_t hidden, int64_t intermediate, const ExpertTypes& types,
                                   std::optional<DType> bias);
// ExpertEntry::bias of that type. REQUIRES of the second: a value that the first has given
uint8_t EncodeBias(std::optional<DType> bias);
std::optional<DType> DecodeBias(uint8_t encoded);

// Places the sections before the tensors: sets their offsets from their sizes. Returns the offset
// of the index's end. REQUIRES: each size is below 2^56
uint64_t PlaceSections(StoreHeader* header);

// `store` begins with a header whose sections are in place: sets both hashes.
void SealHeader(uint8_t* store);
uint64_t HashIndex(const StoreHeader& header, const uint8_t* store);
uint64_t HashHeader(const StoreHeader& header);

}  // namespace expertflow

#include "expert_store/layout.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

namespace expertflow {

std::string Fingerprint::ToString() const {
  return fmt::format("{:016x}{:016x}", high, low);
}

Result<Fingerprint> Fingerprint::Parse(std::string_view text) {
  Fingerprint fingerprint;
  const auto parse = [](std::string_view digits, uint64_t* value) {
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), *value, 16);
    return error == std::errc() && end == digits.data() + digits.size();
  };
  if (text.size() != 32 || !parse(text.substr(0, 16), &fingerprint.high) ||
      !parse(text.substr(16), &fingerprint.low)) {
    return InvalidArgument(fmt::format("'{}' is not a fingerprint of 32 hexadecimal digits", text));
  }
  return fingerprint;
}

void AddTypes(const ExpertTypes& types, std::vector<DType>* distinct) {
  for (const DType dtype : {types.gate, types.up, types.down}) {
    const auto at = std::lower_bound(distinct->begin(), distinct->end(), dtype);
    if (at == distinct->end() || *at != dtype) distinct->insert(at, dtype);
  }
}

Result<ExpertGeometry> PlaceExpert(int64_t hidden, int64_t intermediate, const ExpertTypes& types,
                                   std::optional<DType> bias) {
  // Two dimensions below 2^31 and four bytes stay below 2^64; the blocks are bounded further down.
  constexpr uint64_t kMatrixBytesMax = uint64_t{1} << 40;
  if (hidden < 1 || hidden >= kStoreDimensionMax || intermediate < 1 ||
      intermediate >= kStoreDimensionMax) {
    return InvalidArgument(
        fmt::format("expert with hidden size {} and intermediate size {}", hidden, intermediate));
  }
  const auto elements = static_cast<uint64_t>(hidden) * static_cast<uint64_t>(intermediate);
  for (const auto& [dtype, cols] : {std::pair(types.gate, hidden), std::pair(types.up, hidden),
                                    std::pair(types.down, intermediate)}) {
    const auto group = static_cast<int64_t>(GroupElements(dtype));
    if (cols % group != 0) {
      return InvalidArgument(fmt::format("{}: groups of {} do not divide the sizes {} and {}",
                                         DTypeName(dtype), group, hidden, intermediate));
    }
    if (MatrixBytes(dtype, elements) > kMatrixBytesMax) {
      return InvalidArgument(
          fmt::format("expert matrix of {} bytes", MatrixBytes(dtype, elements)));
    }
  }
  ExpertGeometry geometry;
  geometry.up_offset = AlignUp(MatrixBytes(types.gate, elements), kTensorAlignment);
  geometry.down_offset =
      AlignUp(geometry.up_offset + MatrixBytes(types.up, elements), kTensorAlignment);
  geometry.block_bytes = geometry.down_offset + MatrixBytes(types.down, elements);
  if (!bias) return geometry;
  const uint64_t wide = static_cast<uint64_t>(intermediate) * DTypeBytes(*bias);
  geometry.gate_bias_offset = AlignUp(geometry.block_bytes, kTensorAlignment);
  geometry.up_bias_offset = AlignUp(geometry.gate_bias_offset + wide, kTensorAlignment);
  geometry.down_bias_offset = AlignUp(geometry.up_bias_offset + wide, kTensorAlignment);
  geometry.block_bytes =
      geometry.down_bias_offset + static_cast<uint64_t>(hidden) * DTypeBytes(*bias);
  return geometry;
}

uint8_t EncodeBias(std::optional<DType> bias) {
  return bias ? static_cast<uint8_t>(1 + static_cast<uint32_t>(*bias)) : uint8_t{0};
}

std::optional<DType> DecodeBias(uint8_t encoded) {
  if (encoded == 0) return std::nullopt;
  return static_cast<DType>(encoded - 1);
}

uint64_t PlaceSections(StoreHeader* header) {
  uint64_t end = kStoreHeaderBytes;
  for (StoreExtent* section :
       {&header->config, &header->names, &header->dense_index, &header->expert_index}) {
    section->offset = AlignUp(end, alignof(DenseEntry));
    end = section->offset + section->bytes;
  }
  return end;
}

uint64_t HashIndex(const StoreHeader& header, const uint8_t* store) {
  const uint64_t end = header.expert_index.offset + header.expert_index.bytes;
  return XXH3_64bits(store + kStoreHeaderBytes, end - kStoreHeaderBytes);
}

uint64_t HashHeader(const StoreHeader& header) {
  return XXH3_64bits(&header, offsetof(StoreHeader, header_hash));
}

void SealHeader(uint8_t* store) {
  StoreHeader header;
  std::memcpy(&header, store, sizeof(header));
  header.index_hash = HashIndex(header, store);
  header.header_hash = HashHeader(header);
  std::memcpy(store, &header, offsetof(StoreHeader, state));
}

}  // namespace expertflow

#include "expert_store/store_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace expertflow {
namespace {

bool IsDType(uint32_t value) {
  return value <= static_cast<uint32_t>(DType::kBF16);
}

bool IsMatrixDType(uint32_t value) {
  return value <= static_cast<uint32_t>(DType::kQ6K);
}

bool Fits(uint64_t offset, uint64_t bytes, uint64_t total_bytes) {
  return offset <= total_bytes && bytes <= total_bytes - offset;
}

class Parser {
 public:
  Parser(std::span<const uint8_t> store, std::string_view name) : store_(store), name_(name) {}

  Result<StoreIndex> Parse() {
    RETURN_IF_ERROR(ParseHeader());
    RETURN_IF_ERROR(ParseDense());
    RETURN_IF_ERROR(ParseExperts());
    RETURN_IF_ERROR(CheckOverlaps());
    return std::move(index_);
  }

 private:
  Status Bad(std::string_view what) const {
    return InvalidArgument(fmt::format("{}: {}", name_, what));
  }

  Status ParseHeader() {
    StoreHeader& header = index_.header;
    if (store_.size() < kStoreHeaderBytes) {
      return Bad(fmt::format("{} bytes is too short for an expert store", store_.size()));
    }
    std::memcpy(&header, store_.data(), sizeof(header));
    if (header.magic != kStoreMagic) return Bad("not an expert store");
    if (header.version != kStoreVersion || header.layout_hash != StoreLayoutHash()) {
      return Bad(
          fmt::format("store format {} (layout {:016x}), this program reads {} ({:016x}); "
                      "pack the checkpoint again",
                      header.version, header.layout_hash, kStoreVersion, StoreLayoutHash()));
    }
    if (header.header_hash != HashHeader(header)) return Bad("the header is damaged");
    if (header.total_bytes != store_.size()) {
      return Bad(fmt::format("{} bytes, but the header says {}: truncated or not complete",
                             store_.size(), header.total_bytes));
    }
    if (header.layers < 0 || header.layers > kStoreLayersMax || header.experts_per_layer < 0 ||
        header.experts_per_layer > kStoreExpertsPerLayerMax) {
      return Bad(fmt::format("{} layers of {} experts", header.layers, header.experts_per_layer));
    }
    StoreHeader placed = header;
    for (const StoreExtent* section :
         {&header.config, &header.names, &header.dense_index, &header.expert_index}) {
      if (section->bytes > store_.size()) return Bad("a section is larger than the store");
    }
    index_end_ = PlaceSections(&placed);
    if (index_end_ > store_.size() || placed.config.offset != header.config.offset ||
        placed.names.offset != header.names.offset ||
        placed.dense_index.offset != header.dense_index.offset ||
        placed.expert_index.offset != header.expert_index.offset ||
        header.dense_index.bytes % sizeof(DenseEntry) != 0 ||
        header.expert_index.bytes % sizeof(ExpertEntry) != 0) {
      return Bad("the sections are not where they must be");
    }
    if (header.index_hash != HashIndex(header, store_.data())) return Bad("the index is damaged");
    const auto config = store_.subspan(header.config.offset, header.config.bytes);
    index_.config_json.assign(config.begin(), config.end());
    return OkStatus();
  }

  template <typename Entry>
  Entry EntryAt(const StoreExtent& section, size_t i) const {
    Entry entry;
    std::memcpy(&entry, store_.data() + section.offset + i * sizeof(Entry), sizeof(Entry));
    return entry;
  }

  Status CheckExtent(uint64_t offset, uint64_t bytes, uint64_t alignment, std::string_view what) {
    if (offset % alignment != 0 || offset < index_end_ || !Fits(offset, bytes, store_.size())) {
      return Bad(fmt::format("{}: extent of {} bytes at {} is misplaced", what, bytes, offset));
    }
    if (bytes > 0) extents_.push_back({offset, bytes});
    return OkStatus();
  }

  Status ParseDense() {
    const StoreHeader& header = index_.header;
    const size_t count = header.dense_index.bytes / sizeof(DenseEntry);
    index_.dense.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      const auto entry = EntryAt<DenseEntry>(header.dense_index, i);
      if (!Fits(entry.name_offset, entry.name_bytes, header.names.bytes)) {
        return Bad(fmt::format("dense tensor {}: its name is misplaced", i));
      }
      DenseTensor tensor;
      tensor.name.assign(
          reinterpret_cast<const char*>(store_.data()) + header.names.offset + entry.name_offset,
          entry.name_bytes);
      const bool is_type = entry.rank == 2 ? IsMatrixDType(entry.dtype) : IsDType(entry.dtype);
      if (!is_type || entry.rank > kStoreRankMax) {
        return Bad(
            fmt::format("tensor '{}': type {}, rank {}", tensor.name, entry.dtype, entry.rank));
      }
      tensor.dtype = static_cast<DType>(entry.dtype);
      uint64_t elements = 1;
      for (uint32_t d = 0; d < entry.rank; ++d) {
        if (entry.shape[d] < 0 ||
            __builtin_mul_overflow(elements, static_cast<uint64_t>(entry.shape[d]), &elements) ||
            elements > kStoreElementsMax) {
          return Bad(fmt::format("tensor '{}': impossible shape", tensor.name));
        }
        tensor.shape.push_back(entry.shape[d]);
      }
      if (entry.rank > 0 &&
          tensor.shape.back() % static_cast<int64_t>(GroupElements(tensor.dtype)) != 0) {
        return Bad(fmt::format("tensor '{}': rows of {} are no whole groups ({})", tensor.name,
                               tensor.shape.back(), DTypeName(tensor.dtype)));
      }
      const uint64_t bytes = MatrixBytes(tensor.dtype, elements);
      if (bytes != entry.bytes) {
        return Bad(fmt::format("tensor '{}': {} bytes for a shape of {}", tensor.name, entry.bytes,
                               bytes));
      }
      if (!index_.dense.empty() && !(index_.dense.back().name < tensor.name)) {
        return Bad(fmt::format("tensor '{}': the names are not in order", tensor.name));
      }
      RETURN_IF_ERROR(CheckExtent(entry.offset, entry.bytes, kTensorAlignment, tensor.name));
      tensor.data = store_.data() + entry.offset;
      tensor.bytes = entry.bytes;
      tensor.checksum = entry.checksum;
      index_.dense.push_back(std::move(tensor));
    }
    return OkStatus();
  }

  // A layer has either no experts or all of them, in order.
  Status ParseExperts() {
    const StoreHeader& header = index_.header;
    const size_t count = header.expert_index.bytes / sizeof(ExpertEntry);
    const auto per_layer = static_cast<size_t>(header.experts_per_layer);
    if ((per_layer == 0 && count > 0) || (per_layer > 0 && count % per_layer != 0)) {
      return Bad(fmt::format("{} experts for layers of {}", count, per_layer));
    }
    index_.layer_begin.assign(static_cast<size_t>(header.layers) + 1, 0);
    index_.experts.reserve(count);
    int32_t last_layer = -1;
    for (size_t i = 0; i < count; ++i) {
      const auto entry = EntryAt<ExpertEntry>(header.expert_index, i);
      const std::string what = fmt::format("layer {} expert {}", entry.layer, entry.expert);
      const size_t place = i % per_layer;
      const bool layer_ok = place == 0 ? entry.layer > last_layer : entry.layer == last_layer;
      if (!layer_ok || entry.layer >= header.layers || entry.expert < 0 ||
          static_cast<size_t>(entry.expert) != place) {
        return Bad(fmt::format("{}: not in order", what));
      }
      last_layer = entry.layer;
      if (!IsMatrixDType(entry.gate_dtype) || !IsMatrixDType(entry.up_dtype) ||
          !IsMatrixDType(entry.down_dtype) || (entry.bias != 0 && !IsDType(entry.bias - 1u))) {
        return Bad(fmt::format("{}: types {}, {}, {}, of biases {}", what, entry.gate_dtype,
                               entry.up_dtype, entry.down_dtype, entry.bias));
      }
      const auto geometry = PlaceExpert(entry.hidden, entry.intermediate, ExpertTypes::Of(entry),
                                        DecodeBias(entry.bias));
      if (!geometry.ok()) return geometry.status().WithContext(name_);
      if (geometry->block_bytes != entry.bytes) {
        return Bad(fmt::format("{}: {} bytes for a block of {}", what, entry.bytes,
                               geometry->block_bytes));
      }
      RETURN_IF_ERROR(CheckExtent(entry.offset, entry.bytes, kStorePageBytes, what));
      index_.layer_begin[static_cast<size_t>(entry.layer) + 1] = static_cast<uint32_t>(per_layer);
      index_.experts.push_back(entry);
    }
    for (size_t l = 1; l < index_.layer_begin.size(); ++l) {
      index_.layer_begin[l] += index_.layer_begin[l - 1];
    }
    return OkStatus();
  }

  Status CheckOverlaps() {
    std::sort(extents_.begin(), extents_.end(),
              [](const auto& a, const auto& b) { return a.offset < b.offset; });
    for (size_t i = 1; i < extents_.size(); ++i) {
      if (extents_[i].offset - extents_[i - 1].offset < extents_[i - 1].bytes) {
        return Bad(fmt::format("two tensors overlap at {}", extents_[i].offset));
      }
    }
    return OkStatus();
  }

  std::span<const uint8_t> store_;
  std::string_view name_;
  StoreIndex index_;
  uint64_t index_end_ = 0;
  std::vector<StoreExtent> extents_;
};

}  // namespace

Result<StoreIndex> ParseStore(std::span<const uint8_t> store, std::string_view name) {
  return Parser(store, name).Parse();
}

uint32_t LoadStoreState(const uint8_t* store) {
  auto* state = reinterpret_cast<const uint32_t*>(store + offsetof(StoreHeader, state));
  // An atomic_ref needs a mutable object in C++20; a lock-free load writes nothing.
  return std::atomic_ref<uint32_t>(const_cast<uint32_t&>(*state)).load(std::memory_order_acquire);
}

void PublishStoreState(uint8_t* store, StoreState state) {
  auto* field = reinterpret_cast<uint32_t*>(store + offsetof(StoreHeader, state));
  std::atomic_ref<uint32_t>(*field).store(static_cast<uint32_t>(state), std::memory_order_release);
}

}  // namespace expertflow

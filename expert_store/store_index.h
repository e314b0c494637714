// The parsed and fully checked index of a store. It is copied out of the mapping, so that nothing
// in the mapping is trusted after the check.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/dtype.h"
#include "common/ids.h"
#include "common/status.h"
#include "expert_store/layout.h"

namespace expertflow {

struct DenseTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const uint8_t* data = nullptr;  // 64-byte aligned
  uint64_t bytes = 0;
  uint64_t checksum = 0;
};

struct StoreIndex {
  StoreHeader header;
  std::string config_json;
  std::vector<DenseTensor> dense;    // sorted by name
  std::vector<ExpertEntry> experts;  // sorted by layer, expert
  // Of layer l in `experts`: [layer_begin[l], layer_begin[l + 1]).
  std::vector<uint32_t> layer_begin;
};

// `store` is the whole store; it must stay mapped while the tensors' data is used. Errors name
// `name`. The data itself is not read (its checksums are verified on demand).
Result<StoreIndex> ParseStore(std::span<const uint8_t> store, std::string_view name);

// The header's state, with acquire order: what the store held before Publish is visible.
// REQUIRES: `store` has at least kStoreHeaderBytes and is 8-byte aligned
uint32_t LoadStoreState(const uint8_t* store);
void PublishStoreState(uint8_t* store, StoreState state);

}  // namespace expertflow

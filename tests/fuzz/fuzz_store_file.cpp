// Any bytes as a packed store. The hashes would keep the fuzzer from everything behind them, so
// each input is parsed twice: as it is, and with the header's constants and hashes set right.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "expert_store/layout.h"
#include "expert_store/store_index.h"

namespace {

using expertflow::StoreHeader;

void CheckInside(std::span<const uint8_t> store, const uint8_t* data, uint64_t bytes) {
  if (bytes == 0) return;
  const auto offset = static_cast<uint64_t>(data - store.data());
  if (offset >= store.size() || bytes > store.size() - offset) std::abort();
}

void Parse(std::span<const uint8_t> store) {
  const auto index = expertflow::ParseStore(store, "input");
  if (!index.ok()) return;
  for (const auto& tensor : index->dense) CheckInside(store, tensor.data, tensor.bytes);
  for (const auto& expert : index->experts) {
    CheckInside(store, store.data() + expert.offset, expert.bytes);
  }
  if (index->layer_begin.back() != index->experts.size()) std::abort();
}

// False when the sections do not fit, so that there is nothing to hash.
bool Repair(std::span<uint8_t> store) {
  StoreHeader header;
  if (store.size() < expertflow::kStoreHeaderBytes) return false;
  std::memcpy(&header, store.data(), sizeof(header));
  header.magic = expertflow::kStoreMagic;
  header.version = expertflow::kStoreVersion;
  header.layout_hash = expertflow::StoreLayoutHash();
  header.total_bytes = store.size();
  for (const auto* section :
       {&header.config, &header.names, &header.dense_index, &header.expert_index}) {
    if (section->bytes > store.size()) return false;
  }
  if (expertflow::PlaceSections(&header) > store.size()) return false;
  std::memcpy(store.data(), &header, sizeof(header));
  expertflow::SealHeader(store.data());
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Its own allocation of exactly this size, so that the sanitizer sees every step outside.
  const std::unique_ptr<uint8_t[]> copy(new uint8_t[size]);
  if (size > 0) std::memcpy(copy.get(), data, size);
  const std::span<uint8_t> store(copy.get(), size);
  Parse(store);
  if (Repair(store)) Parse(store);
  return 0;
}

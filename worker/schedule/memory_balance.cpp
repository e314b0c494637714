#include "worker/schedule/memory_balance.h"

#include <algorithm>

#include "common/check.h"

namespace expertflow {

MemoryExchange ExchangeOf(uint64_t slot_bytes, uint64_t block_bytes) {
  CHECK(slot_bytes > 0 && block_bytes > 0);
  const uint64_t blocks = std::max<uint64_t>(1, slot_bytes / block_bytes);
  const uint64_t slots = (blocks * block_bytes + slot_bytes - 1) / slot_bytes;
  return {static_cast<int32_t>(slots), static_cast<int64_t>(blocks)};
}

int32_t MemoryBalance::ExchangesFor(int64_t blocks) const {
  const int64_t each = std::max<int64_t>(options_.exchange.blocks, 1);
  const int64_t wanted = (std::max<int64_t>(blocks, 0) + each - 1) / each;
  return static_cast<int32_t>(std::min<int64_t>(wanted, options_.exchanges_most - exchanges_));
}

void MemoryBalance::Gave() {
  CHECK(exchanges_ < options_.exchanges_most);
  ++exchanges_;
  ++moves_;
  idle_steps_ = 0;
}

void MemoryBalance::TookBack() {
  CHECK(exchanges_ > 0);
  --exchanges_;
  ++moves_;
  idle_steps_ = 0;
}

bool MemoryBalance::OnStep(int64_t available, int64_t running) {
  const bool idle = exchanges_ > 0 && available - options_.exchange.blocks >= running;
  idle_steps_ = idle ? idle_steps_ + 1 : 0;
  return idle_steps_ >= options_.patience_steps;
}

}  // namespace expertflow

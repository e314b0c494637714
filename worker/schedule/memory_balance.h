// How a worker's memory is shared between experts and KV cache while it runs: expert slots grow
// from one end of a region, KV blocks from the other, and the border moves by whole exchanges, so
// many slots for so many blocks. KV blocks come first: without them a sequence waits or is computed
// again, without a slot an expert is loaded again. They go back when they were not needed for a
// while. A pure policy.
#pragma once

#include <cstdint>

namespace expertflow {

struct MemoryExchange {
  int32_t slots = 0;
  int64_t blocks = 0;
};
// The smallest one: whole blocks in whole slots. REQUIRES: both > 0
MemoryExchange ExchangeOf(uint64_t slot_bytes, uint64_t block_bytes);

struct MemoryBalanceOptions {
  MemoryExchange exchange;
  int32_t exchanges_most = 0;
  int32_t patience_steps = 256;  // until blocks that are not needed go back, one exchange each
};

class MemoryBalance {
 public:
  explicit MemoryBalance(const MemoryBalanceOptions& options) : options_(options) {}

  // How many exchanges give `blocks`, as far as there may be so many.
  int32_t ExchangesFor(int64_t blocks) const;
  // One was made, from slots to blocks or back.
  void Gave();
  void TookBack();
  // A step has ended, with so many blocks available and so many sequences that may each need one.
  // Whether an exchange should be taken back now.
  bool OnStep(int64_t available, int64_t running);

  const MemoryExchange& exchange() const { return options_.exchange; }
  int32_t exchanges() const { return exchanges_; }  // that KV blocks have now
  uint64_t moves() const { return moves_; }

 private:
  const MemoryBalanceOptions options_;
  int32_t exchanges_ = 0;
  int32_t idle_steps_ = 0;
  uint64_t moves_ = 0;
};

}  // namespace expertflow

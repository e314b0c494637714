#include "device/cpu/link_pacer.h"

#include <algorithm>

namespace expertflow::cpu {

int64_t LinkPacer::TransferNs(size_t bytes) const {
  const auto scaled = static_cast<unsigned __int128>(bytes) * 1'000'000'000u;
  return static_cast<int64_t>((scaled + link_.bytes_per_second / 2) / link_.bytes_per_second);
}

int64_t LinkPacer::Submit(int64_t now_ns, size_t bytes) {
  wire_free_ns_ = std::max(now_ns, wire_free_ns_) + TransferNs(bytes);
  return wire_free_ns_ + link_.latency_ns;
}

}  // namespace expertflow::cpu

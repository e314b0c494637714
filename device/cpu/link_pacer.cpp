#include "device/cpu/link_pacer.h"

#include <algorithm>

namespace expertflow::cpu {

int64_t LinkPacer::TransferNs(size_t bytes) const {
  const auto scaled = static_cast<unsigned __int128>(bytes) * 1'000'000'000u;
  return static_cast<int64_t>((scaled + link_.bytes_per_second / 2) / link_.bytes_per_second);
}

int64_t LinkPacer::Submit(int64_t now_ns, size_t bytes) {
  const bool queued = now_ns < free_ns_ || now_ns - returned_ns_ <= kTurnaroundNs;
  free_ns_ = (queued ? free_ns_ : now_ns + link_.latency_ns) + TransferNs(bytes);
  return free_ns_;
}

void LinkPacer::Return(int64_t now_ns) {
  returned_ns_ = now_ns;
  free_ns_ = std::max(free_ns_, now_ns - kLagNsMax);
}

}  // namespace expertflow::cpu

// The kernels for AVX-512 (F, BW, VL, DQ).
#include "device/cpu/kernels/avx512.h"

#include "device/cpu/kernels/make_table.h"

namespace expertflow::cpu {

const KernelTable& Avx512Kernels() {
  return kKernelTable<Avx512, nullptr>;
}

}  // namespace expertflow::cpu

#include "device/cpu/kernels/kernel_table.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

namespace expertflow::cpu {
namespace {

bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

std::vector<const KernelTable*> AvailableKernelTables() {
  std::vector<const KernelTable*> tables{&ScalarKernels()};
  if (HasAvx2()) tables.push_back(&Avx2Kernels());
  if (HasAvx512()) tables.push_back(&Avx512Kernels());
  return tables;
}

}  // namespace

std::vector<std::string> AvailableKernelNames() {
  std::vector<std::string> names;
  for (const KernelTable* table : AvailableKernelTables()) names.emplace_back(table->name);
  return names;
}

Result<const KernelTable*> SelectKernels(const std::string& name) {
  const std::vector<const KernelTable*> tables = AvailableKernelTables();
  if (name == "auto") return tables.back();
  for (const KernelTable* table : tables) {
    if (name == table->name) return table;
  }
  const std::string available = fmt::format("{}", fmt::join(AvailableKernelNames(), ", "));
  if (name == "avx2" || name == "avx512") {
    return FailedPrecondition(fmt::format(
        "CPU kernels '{}' need instructions that this machine lacks; it has: {}", name, available));
  }
  return InvalidArgument(fmt::format(
      "unknown CPU kernels '{}': expected auto, scalar, avx2 or avx512; this machine has: {}", name,
      available));
}

}  // namespace expertflow::cpu

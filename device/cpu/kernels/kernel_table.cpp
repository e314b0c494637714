#include "device/cpu/kernels/kernel_table.h"

#include <cpuid.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace expertflow::cpu {
namespace {

// clang 14 has no name for it in __builtin_cpu_supports.
bool HasF16c() {
  constexpr unsigned kF16c = 1u << 29;  // of leaf 1, ecx
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & kF16c) != 0;
}

bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
}

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool HasVnni() {
  return HasAvx512() && __builtin_cpu_supports("avx512vnni");
}

// Whether CPU and operating system know tiles, and products of bf16 and of bytes on them.
bool HasAmx() {
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;  // leaf 7, edx
  constexpr unsigned kTileConfig = 1u << 17, kTileData = 1u << 18;                   // of XCR0
  if (!HasVnni()) return false;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & kAmxTile) == 0 || (d & kAmxBf16) == 0 || (d & kAmxInt8) == 0) return false;
  unsigned enabled = 0, high = 0;
  __asm__("xgetbv" : "=a"(enabled), "=d"(high) : "c"(0));
  if ((enabled & kTileConfig) == 0 || (enabled & kTileData) == 0) return false;
  // Palette 1 has eight tiles of 16 rows of 64 bytes on every CPU so far.
  return __get_cpuid_count(0x1d, 1, &a, &b, &c, &d) != 0 && b == (8u << 16 | 64u) && c == 16;
}

// Linux enables tile registers per process, on request; threads inherit it.
Status AllowTiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0) return OkStatus();
  return FailedPrecondition(
      fmt::format("CPU kernels 'amx': the operating system does not allow this process to use "
                  "tile registers ({}); use another of: {}",
                  std::strerror(errno), fmt::join(AvailableKernelNames(), ", ")));
}

const KernelTable& BestAvx512Kernels() {
  static const KernelTable kTable = [] {
    KernelTable avx512 = Avx512Kernels();
    avx512.integer = HasVnni() ? &VnniIntegerKernels() : Avx2Kernels().integer;
    return avx512;
  }();
  return kTable;
}

const KernelTable& AmxKernels() {
  static const KernelTable kTable = [] {
    KernelTable amx = Avx512Kernels();
    amx.name = "amx";
    amx.arithmetic = "amx bf16 x 3";
    amx.bf16 = &AmxBf16Kernels();
    amx.integer = &AmxIntegerKernels();
    return amx;
  }();
  return kTable;
}

// Those that share the same bits.
std::vector<const KernelTable*> SameBitsTables() {
  std::vector<const KernelTable*> tables{&ScalarKernels()};
  if (HasAvx2()) tables.push_back(&Avx2Kernels());
  if (HasAvx512()) tables.push_back(&BestAvx512Kernels());
  return tables;
}

}  // namespace

std::vector<std::string> AvailableKernelNames() {
  std::vector<std::string> names;
  for (const KernelTable* table : SameBitsTables()) names.emplace_back(table->name);
  if (HasAmx()) names.emplace_back(AmxKernels().name);
  return names;
}

Result<const KernelTable*> SelectKernels(const std::string& name) {
  const std::vector<const KernelTable*> tables = SameBitsTables();
  if (name == "auto") return tables.back();
  for (const KernelTable* table : tables) {
    if (name == table->name) return table;
  }
  if (name == "amx" && HasAmx()) {
    RETURN_IF_ERROR(AllowTiles());
    return &AmxKernels();
  }
  const std::string available = fmt::format("{}", fmt::join(AvailableKernelNames(), ", "));
  if (name == "avx2" || name == "avx512" || name == "amx") {
    return FailedPrecondition(fmt::format(
        "CPU kernels '{}' need instructions that this machine lacks; it has: {}", name, available));
  }
  return InvalidArgument(fmt::format(
      "unknown CPU kernels '{}': expected auto, scalar, avx2, avx512 or amx; this machine has: {}",
      name, available));
}

}  // namespace expertflow::cpu

// EXPERTFLOW_WIDE before a function of plain loops compiles it for wider registers, too; which one
// runs is picked at run time. The arithmetic is the same: nothing is fused in either. For loops
// outside device/, whose kernels choose for themselves.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define EXPERTFLOW_WIDE __attribute__((target_clones("default", "avx2")))
#else
#define EXPERTFLOW_WIDE
#endif

// EXPERTFLOW_AVX2 before a function that has AVX2 instructions in it: the rest of the program is
// compiled for processors without them. Callers ask __builtin_cpu_supports("avx2").
#define EXPERTFLOW_AVX2 __attribute__((target("avx2,popcnt")))

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

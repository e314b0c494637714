// Products with the rows of a weight matrix added up, x * W instead of x * W^T, as a template over
// a back end (see elementwise.h for the rules). An output is summed over the rows, ascending, by
// fused multiply-add: neither the number of activation rows nor the cut into columns changes a bit.
#pragma once

#include <cstdint>

#include "device/cpu/kernels/elementwise.h"

namespace expertflow::cpu {

// `count` columns (16 or fewer) of M activation rows.
template <typename B, int M, typename P>
inline void TransposedTile(const TransposedArgs& args, P weight, int32_t first, int32_t col,
                           int count) {
  using V = typename B::Vec;
  const float* x = args.x + first * args.x_stride;
  P w = weight + col;
  V acc[M];
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i) acc[i] = B::Zero();
  for (int32_t r = 0; r < args.rows; ++r) {
    const V v = count == kLanes ? B::Load(w) : LoadTail<B>(w, count);
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) acc[i] = B::Fma(B::Set(x[i * args.x_stride + r]), v, acc[i]);
    w = w + args.cols;
  }
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i) {
    B::StorePartial(args.out + (first + i) * args.out_stride + col, acc[i], count);
  }
}

template <typename B>
void Transposed(const TransposedArgs& args, int32_t col_begin, int32_t col_end) {
  WithWeights<B>(args, [&](auto weight) {
    for (int32_t col = col_begin; col < col_end; col += kLanes) {
      const int count = col_end - col < kLanes ? static_cast<int>(col_end - col) : kLanes;
      int32_t first = 0;
      for (; first + 4 <= args.m; first += 4) {
        TransposedTile<B, 4>(args, weight, first, col, count);
      }
      for (; first < args.m; ++first) TransposedTile<B, 1>(args, weight, first, col, count);
    }
  });
}

}  // namespace expertflow::cpu

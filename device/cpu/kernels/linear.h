// Matrix times activations, as templates over a back end (see elementwise.h for the rules).
//
// Both paths sum an output in the same order: 16 lanes, each ascending by fused multiply-add, then
// the tree of B::Reduce. The back end splits the 16 lanes into B::kGroups vectors (two on AVX2);
// lanes do not meet before the reduction, so the many-row path works on one group at a time, which
// leaves registers for a larger tile.
#pragma once

#include <cstdint>

#include "device/cpu/kernels/elementwise.h"

namespace expertflow::cpu {

inline constexpr int64_t kPrefetchElements = 64;  // at least every 64 bytes

template <typename B, typename P>
inline const void* AddressOf(P weight) {
  if constexpr (kHasTails<P>) {
    return weight;
  } else {
    return weight.address();
  }
}

// The reduced lanes of N sums, in their order.
template <typename B, int N>
inline void ReduceAll(const typename B::Vec* sums, float* out) {
  int i = 0;
#pragma GCC unroll 8
  for (; i + kLanes <= N; i += kLanes) B::Reduce16(sums + i, out + i);
#pragma GCC unroll 8
  for (; i + 4 <= N; i += 4) B::Reduce4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3], out + i);
#pragma GCC unroll 8
  for (; i < N; ++i) out[i] = B::Reduce(sums[i]);
}

// M activation rows times R consecutive weight rows. P points to a weight.
template <typename B, typename P, int M, int R>
inline void DotTile(P weight, int64_t cols, const float* const* x, float (*sums)[R]) {
  using V = typename B::Vec;
  V acc[M * R];
#pragma GCC unroll 32
  for (int i = 0; i < M * R; ++i) acc[i] = B::Zero();
  int64_t k = 0;
  if constexpr (kIsBlocks<P>) {
    alignas(64) float raised[R][P::kElements];
    for (; k < cols; k += P::kElements) {
      for (int r = 0; r < R; ++r) {
        const P block = weight + (r * cols + k);
        // The same place in the next R rows: they are read next.
        for (int64_t at = 0; at < P::kBytes; at += 64) {
          __builtin_prefetch((weight + ((r + R) * cols + k)).block() + at);
        }
        B::RaiseBlock(block, raised[r]);
      }
      for (int64_t j = 0; j < P::kElements; j += kLanes) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const V w = B::Load(raised[r] + j);
#pragma GCC unroll 8
          for (int i = 0; i < M; ++i) {
            acc[i * R + r] = B::Fma(B::Load(x[i] + k + j), w, acc[i * R + r]);
          }
        }
      }
    }
  } else if constexpr (!kHasTails<P>) {
    // Whole groups: a row's scale is found once for two vectors.
    for (; k < cols; k += kQuantisedGroup) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const P group = weight + (r * cols + k);
        // The same place in the next R rows: they are read next.
        if (k % kPrefetchElements == 0) {
          __builtin_prefetch(AddressOf<B>(weight + ((r + R) * cols + k)));
        }
        const V first = B::Load(group);
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i) {
          acc[i * R + r] = B::Fma(B::Load(x[i] + k), first, acc[i * R + r]);
        }
        const V second = B::Load(group.SecondHalf());
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i) {
          acc[i * R + r] = B::Fma(B::Load(x[i] + k + kLanes), second, acc[i * R + r]);
        }
      }
    }
  } else {
    for (; k + kLanes <= cols; k += kLanes) {
      // What there is less of stays in registers.
      if constexpr (M < R) {
        V v[M];
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i) v[i] = B::Load(x[i] + k);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          // As above.
          __builtin_prefetch(AddressOf<B>(weight + ((r + R) * cols + k)));
          const V w = B::Load(weight + (r * cols + k));
#pragma GCC unroll 8
          for (int i = 0; i < M; ++i) acc[i * R + r] = B::Fma(v[i], w, acc[i * R + r]);
        }
      } else {
        V w[R];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          __builtin_prefetch(AddressOf<B>(weight + ((r + R) * cols + k)));
          w[r] = B::Load(weight + (r * cols + k));
        }
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i) {
          const V v = B::Load(x[i] + k);
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) acc[i * R + r] = B::Fma(v, w[r], acc[i * R + r]);
        }
      }
    }
    if (k < cols) {
      const int count = static_cast<int>(cols - k);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const V w = B::LoadPartial(weight + (r * cols + k), count);
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i) {
          acc[i * R + r] = B::Fma(B::LoadPartial(x[i] + k, count), w, acc[i * R + r]);
        }
      }
    }
  }
  ReduceAll<B, M * R>(acc, sums[0]);
}

template <typename B>
inline float BiasOf(const MatmulArgs& args, int32_t row) {
  float bias = 0;
  if (args.bias == nullptr) return bias;
  WithElementType<B>(args.bias_dtype, [&](auto type) {
    bias = B::ToFloat(static_cast<decltype(type)>(args.bias)[row]);
  });
  return bias;
}

template <typename B, typename P, int M, int R>
inline void GemvTile(const MatmulArgs& args, P matrix, int32_t first, int32_t row) {
  float sums[M][R];
  const P weight = matrix + static_cast<int64_t>(row) * args.cols;
  DotTile<B, P, M, R>(weight, args.cols, args.x + first, sums);
  for (int r = 0; r < R; ++r) {
    if (args.bias == nullptr) {
      for (int i = 0; i < M; ++i) args.out[first + i][row + r] = sums[i][r];
    } else {
      const float bias = BiasOf<B>(args, row + r);
      for (int i = 0; i < M; ++i) args.out[first + i][row + r] = sums[i][r] + bias;
    }
  }
}

// Weight rows of a tile with one activation row, where fewer than below take less time: measured.
template <typename P>
inline constexpr int kRowsForOne = 8;
template <typename B>
inline constexpr int kRowsForOne<Int8Pointer<B>> = 1;
template <typename B>
inline constexpr int kRowsForOne<Int4Pointer<B>> = 2;
template <typename B>
inline constexpr int kRowsForOne<UInt4Pointer<B>> = 2;

// Weight rows of a tile with M activation rows. Raising a quantised vector takes registers, too.
template <typename B, typename P, int M>
constexpr int TileWeightRows() {
  if (M == 1 && kRowsForOne<P> < 8) return kRowsForOne<P>;
  const int sums = kHasTails<P> || B::kAccumulators < 6 ? B::kAccumulators : 6;
  int rows = 8;
  while (rows > 1 && M * rows > sums) rows /= 2;
  return rows;
}

template <typename B, typename P, int M, int R = TileWeightRows<B, P, M>()>
inline void GemvRows(const MatmulArgs& args, P matrix, int32_t first, int32_t row_begin,
                     int32_t row_end) {
  int32_t row = row_begin;
  for (; row + R <= row_end; row += R) GemvTile<B, P, M, R>(args, matrix, first, row);
  if (row == row_end) return;
  if constexpr (R > 4) {
    GemvRows<B, P, M, 4>(args, matrix, first, row, row_end);
  } else if constexpr (R > 1) {
    GemvRows<B, P, M, 1>(args, matrix, first, row, row_end);
  }
}

template <typename B, typename P>
inline void GemvTyped(const MatmulArgs& args, P matrix, int32_t row_begin, int32_t row_end) {
  // More than six activation rows pass over a few weight rows at a time, which stay in the cache.
  const int32_t step = args.m > 6 ? 8 : row_end - row_begin;
  for (int32_t row = row_begin; row < row_end; row += step) {
    const int32_t end = row_end - row < step ? row_end : row + step;
    int32_t first = 0;
    while (first < args.m) {
      const int32_t left = args.m - first;
      switch (left) {
        case 1: GemvRows<B, P, 1>(args, matrix, first, row, end); break;
        case 2: GemvRows<B, P, 2>(args, matrix, first, row, end); break;
        case 3: GemvRows<B, P, 3>(args, matrix, first, row, end); break;
        case 5: GemvRows<B, P, 5>(args, matrix, first, row, end); break;
        case 6: GemvRows<B, P, 6>(args, matrix, first, row, end); break;
        default: GemvRows<B, P, 4>(args, matrix, first, row, end); break;
      }
      first += left == 5 || left == 6 ? left : (left < 4 ? left : 4);
    }
  }
}

// Row `row` as float32.
template <typename B>
void RaiseRow(const MatmulArgs& args, int32_t row, float* to) {
  WithWeights<B>(args, [&](auto matrix) {
    auto from = matrix + static_cast<int64_t>(row) * args.cols;
    RowLoader<B, decltype(from)> loader(from);
    ForLanes<B>(
        args.cols, [&](int64_t i) { B::Store(to + i, loader.At(i)); },
        [&](int64_t i, int count) {
          B::StorePartial(to + i, LoadTail<B>(from + i, count), count);
        });
  });
}

template <typename B>
void Gemv(const MatmulArgs& args, int32_t row_begin, int32_t row_end) {
  if (row_begin >= row_end) return;
  WithWeights<B>(args, [&](auto matrix) { GemvTyped<B>(args, matrix, row_begin, row_end); });
}

// ---- Many rows. Packed layouts, with K cut into blocks of B::kBlockCols columns:
//   activations [tile][block][group][chunk of 16][B::kTileRows][lanes of a group]
//   weights     [block][tile][group][chunk of 16][B::kTileCols][lanes of a group]

template <typename B>
inline constexpr int32_t kGroupLanes = kLanes / B::kGroups;

template <typename B>
inline int32_t PaddedCols(int32_t cols) {
  return (cols + kLanes - 1) / kLanes * kLanes;
}

template <typename B>
int32_t TileFloats(int32_t cols) {
  return B::kTileRows * PaddedCols<B>(cols);
}

template <typename B>
int32_t GemmPanelRows(int32_t cols) {
  constexpr int32_t kStep = 12;  // whole tiles, and whole groups of four for Reduce4
  static_assert(kStep % B::kTileCols == 0 && kStep % 4 == 0);
  const int32_t rows = B::kPanelFloats / PaddedCols<B>(cols) / kStep * kStep;
  return rows < kStep ? kStep : (rows > 8 * kStep ? 8 * kStep : rows);
}

template <typename B>
size_t GemmScratchFloats(int32_t cols) {
  const size_t rows = static_cast<size_t>(GemmPanelRows<B>(cols));
  return rows * static_cast<size_t>(PaddedCols<B>(cols)) + rows * B::kTileRows * kLanes;
}

template <typename B>
void PackX(const float* const* x, int32_t m, int32_t cols, int32_t tile, float* packed) {
  using V = typename B::Vec;
  const int32_t padded = PaddedCols<B>(cols);
  float* to = packed + static_cast<int64_t>(tile) * B::kTileRows * padded;
  for (int32_t block = 0; block < padded; block += B::kBlockCols) {
    const int32_t block_cols = padded - block < B::kBlockCols ? padded - block : B::kBlockCols;
    const int64_t group_floats = static_cast<int64_t>(block_cols / B::kGroups) * B::kTileRows;
    for (int i = 0; i < B::kTileRows; ++i) {
      const int32_t row = tile * B::kTileRows + i;
      for (int32_t k = 0; k < block_cols; k += kLanes) {
        V v = B::Zero();
        if (row < m) {
          const int32_t left = cols - block - k;
          v = left >= kLanes ? B::Load(x[row] + block + k)
                             : B::LoadPartial(x[row] + block + k, left);
        }
        float* chunk = to + (k / kLanes * B::kTileRows + i) * kGroupLanes<B>;
        for (int g = 0; g < B::kGroups; ++g) B::StoreGroup(chunk + g * group_floats, v, g);
      }
    }
    to += static_cast<int64_t>(block_cols) * B::kTileRows;
  }
}

// Raises weight rows [row_begin, row_end) to float32; rows up to a whole tile are zero.
template <typename B, typename P>
inline void PackPanel(P weight, int32_t cols, int32_t row_begin, int32_t row_end, float* panel) {
  using V = typename B::Vec;
  const int32_t padded = PaddedCols<B>(cols);
  const int32_t tiles = (row_end - row_begin + B::kTileCols - 1) / B::kTileCols;
  for (int32_t t = 0; t < tiles; ++t) {
    for (int j = 0; j < B::kTileCols; ++j) {
      const int32_t row = row_begin + t * B::kTileCols + j;
      const P from = weight + static_cast<int64_t>(row) * cols;
      RowLoader<B, P> loader(from);
      float* to = panel;
      for (int32_t block = 0; block < padded; block += B::kBlockCols) {
        const int32_t block_cols = padded - block < B::kBlockCols ? padded - block : B::kBlockCols;
        const int64_t group_floats = static_cast<int64_t>(block_cols / B::kGroups) * B::kTileCols;
        float* tile = to + static_cast<int64_t>(t) * block_cols * B::kTileCols;
        for (int32_t k = 0; k < block_cols; k += kLanes) {
          V v = B::Zero();
          if (row < row_end) {
            const int32_t left = cols - block - k;
            if (left >= kLanes) {
              v = loader.At(block + k);
            } else if constexpr (kHasTails<P>) {
              v = B::LoadPartial(from + (block + k), left);
            }
          }
          float* chunk = tile + (k / kLanes * B::kTileCols + j) * kGroupLanes<B>;
          for (int g = 0; g < B::kGroups; ++g) B::StoreGroup(chunk + g * group_floats, v, g);
        }
        to += static_cast<int64_t>(tiles) * block_cols * B::kTileCols;
      }
    }
  }
}

// One group of lanes of kTileRows x kTileCols outputs over `chunks` chunks of K. Fetches
// `ahead_step` floats from `ahead` with each chunk: what the next tile row will read.
template <typename B, bool kFirst>
inline void GemmTile(const float* x, const float* w, int32_t chunks, const float* ahead,
                     int32_t ahead_step, float* acc_memory) {
  using G = typename B::Group;
  constexpr int kRows = B::kTileRows, kCols = B::kTileCols, kWidth = kGroupLanes<B>;
  G acc[kRows][kCols];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) {
      acc[i][j] = kFirst ? B::GroupZero() : B::GroupLoad(acc_memory + (i * kCols + j) * kWidth);
    }
  }
  for (int32_t c = 0; c < chunks; ++c) {
    __builtin_prefetch(ahead);
    ahead += ahead_step;
    G weights[kCols];
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) weights[j] = B::GroupLoad(w + j * kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const G v = B::GroupLoad(x + i * kWidth);
#pragma GCC unroll 8
      for (int j = 0; j < kCols; ++j) acc[i][j] = B::GroupFma(v, weights[j], acc[i][j]);
    }
    x += kRows * kWidth;
    w += kCols * kWidth;
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) {
      B::GroupStore(acc_memory + (i * kCols + j) * kWidth, acc[i][j]);
    }
  }
}

template <typename B>
void Gemm(const MatmulArgs& args, int32_t row_begin, int32_t row_end, float* scratch) {
  using V = typename B::Vec;
  constexpr int kRows = B::kTileRows, kCols = B::kTileCols, kWidth = kGroupLanes<B>;
  constexpr int kTileFloats = kRows * kCols * kWidth;  // accumulators of one group
  const int32_t padded = PaddedCols<B>(args.cols);
  const int32_t tiles = (row_end - row_begin + kCols - 1) / kCols;
  float* acc = scratch;  // [tile][group][kRows][kCols][lanes of a group]
  float* panel = scratch + GemmPanelRows<B>(args.cols) * kRows * kLanes;
  WithWeights<B>(args,
                 [&](auto matrix) { PackPanel<B>(matrix, args.cols, row_begin, row_end, panel); });

  // The activations of the next tile row are fetched while this one is computed, a share with each
  // tile.
  const int32_t ahead_step = (kRows * kWidth + tiles - 1) / tiles;
  for (int32_t first = 0; first < args.m; first += kRows) {
    const int64_t next_tile = first + kRows < args.m ? int64_t{kRows} * padded : 0;
    const float* x = args.packed_x + static_cast<int64_t>(first) * padded;
    const float* w = panel;
    for (int32_t block = 0; block < padded; block += B::kBlockCols) {
      const int32_t block_cols = padded - block < B::kBlockCols ? padded - block : B::kBlockCols;
      const int32_t chunks = block_cols / kLanes;
      for (int g = 0; g < B::kGroups; ++g) {
        const float* group_x = x + static_cast<int64_t>(g) * chunks * kRows * kWidth;
        for (int32_t t = 0; t < tiles; ++t) {
          const float* group_w =
              w + (static_cast<int64_t>(t) * B::kGroups + g) * chunks * kCols * kWidth;
          const float* ahead = group_x + next_tile + t * chunks * ahead_step;
          float* tile_acc = acc + (t * B::kGroups + g) * kTileFloats;
          if (block == 0) {
            GemmTile<B, true>(group_x, group_w, chunks, ahead, ahead_step, tile_acc);
          } else {
            GemmTile<B, false>(group_x, group_w, chunks, ahead, ahead_step, tile_acc);
          }
        }
      }
      x += static_cast<int64_t>(block_cols) * kRows;
      w += static_cast<int64_t>(tiles) * block_cols * kCols;
    }

    const auto lanes = [&](int i, int32_t column) -> V {
      const float* at =
          acc + (column / kCols) * B::kGroups * kTileFloats + (i * kCols + column % kCols) * kWidth;
      return B::FromGroups(at, kTileFloats);
    };
    const int32_t columns = row_end - row_begin;
    for (int i = 0; i < kRows && first + i < args.m; ++i) {
      float* out = args.out[first + i] + row_begin;
      int32_t c = 0;
      for (; c + kLanes <= columns; c += kLanes) {
        V sums[kLanes];
#pragma GCC unroll 16
        for (int j = 0; j < kLanes; ++j) sums[j] = lanes(i, c + j);
        B::Reduce16(sums, out + c);
      }
      for (; c + 4 <= columns; c += 4) {
        B::Reduce4(lanes(i, c), lanes(i, c + 1), lanes(i, c + 2), lanes(i, c + 3), out + c);
      }
      for (; c < columns; ++c) out[c] = B::Reduce(lanes(i, c));
      if (args.bias != nullptr) {
        for (c = 0; c < columns; ++c) out[c] += BiasOf<B>(args, row_begin + c);
      }
    }
  }
}

}  // namespace expertflow::cpu

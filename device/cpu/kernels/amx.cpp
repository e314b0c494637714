// Products with bf16 weights on AMX tiles, for every number of rows.
//
// The sum, exactly (tests/unit/device/amx_kernels_test.cpp computes it in plain C++):
//   A float32 activation is split into three bf16 parts by cutting off bits: high = x cut,
//   middle = (x - high) cut, low = x - high - middle; nothing is lost. Infinity and NaN are high
//   alone. For each part, over chunks of 32 columns, ascending, the last filled up with zeros:
//     even = odd = 0; for the 16 pairs, ascending: even = fma(w[2i], x[2i], even), odd likewise
//     sum = sum + (even + odd)
//   as TDPBF16PS does it: round to nearest even, denormal inputs and results count as zero.
//   The output is high_sum + (middle_sum + low_sum), then + bias, in plain float32.
// A column of a tile is one part of one activation row, and columns do not meet, so a row's result
// does not depend on the rows beside it.
//
// Weights are the left operand: 16 rows of 32 columns as they lie in memory. Packed activations:
//   [tile of 16 rows][tile of columns][chunk][16 pairs][columns] of two bf16 each
// where column p * r + i is part p of row i of the r rows of a tile; up to 5 rows have one tile of
// columns, as narrow as that, and more have tiles of 16.
#include <immintrin.h>

#include "device/cpu/kernels/avx512.h"

namespace expertflow::cpu {
namespace {

constexpr int kParts = 3;
constexpr int kTile = 16;         // rows of a tile; columns of a result
constexpr int kChunk = 32;        // columns of W in a tile
constexpr int kTileBytes = 1024;  // of 16 rows of 64 bytes
constexpr int kGroups = 2;        // tiles of x that are multiplied before results are added up
constexpr int kResultCols = kGroups * kParts * kTile;
// Up to here weights are read where they lie; above, a panel is first laid out tile by tile.
constexpr int kInPlaceRowsMax = 10;
constexpr int kPrefetchChunks = 8;

inline int32_t Chunks(int32_t cols) {
  return (cols + kChunk - 1) / kChunk;
}
inline int32_t Smaller(int32_t a, int32_t b) {
  return a < b ? a : b;
}
inline uint32_t LowBits(int count) {
  return count >= 32 ? ~0u : (1u << count) - 1u;
}
inline __mmask16 Mask16(int count) {
  return static_cast<__mmask16>(LowBits(count));
}

// Activation rows of tile `tile` of m rows.
inline int32_t RowsOfTile(int32_t m, int32_t tile) {
  return Smaller(kTile, m - tile * kTile);
}
inline int32_t ColumnTiles(int32_t rows) {
  return (rows * kParts + kTile - 1) / kTile;
}
// Columns of every tile of packed activations.
inline int32_t TileColumns(int32_t m) {
  return Smaller(kTile, m * kParts);
}

int32_t TileFloats(int32_t cols) {
  return Chunks(cols) * kParts * kTileBytes / 4;
}

// 16 bf16 of two registers of float32 whose low halves are zero.
inline __m512i Join(__m512 low, __m512 high) {
  const __m256i a = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(low), 16));
  const __m256i b = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(high), 16));
  return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

inline void Split(__m512 x, __m512 (&parts)[kParts]) {
  constexpr int kNan = 0x81, kNanOrInfinity = 0x99;
  const __m512i cut = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const auto cut_off = [&](__m512 v) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), cut));
  };
  const __mmask16 finite = _knot_mask16(_mm512_fpclass_ps_mask(x, kNanOrInfinity));
  const __m512i high = _mm512_castps_si512(cut_off(x));
  // A NaN stays one without its low bits.
  parts[0] = _mm512_castsi512_ps(_mm512_mask_or_epi32(high, _mm512_fpclass_ps_mask(x, kNan), high,
                                                      _mm512_set1_epi32(0x00400000)));
  const __m512 rest = _mm512_maskz_sub_ps(finite, x, parts[0]);
  parts[1] = cut_off(rest);
  parts[2] = _mm512_sub_ps(rest, parts[1]);
}

void PackX(const float* const* x, int32_t m, int32_t cols, int32_t tile, float* packed) {
  const int32_t rows = RowsOfTile(m, tile);
  const int32_t columns = TileColumns(m);
  const int32_t column_tiles = ColumnTiles(rows);
  const int32_t chunks = Chunks(cols);
  auto* to = reinterpret_cast<uint32_t*>(packed + static_cast<int64_t>(tile) * TileFloats(cols));
  const int64_t column_tile_words = static_cast<int64_t>(chunks) * kTile * columns;
  alignas(64) uint32_t words[kParts * kTile][kTile] = {};  // [column][pair]
  for (int32_t c = 0; c < chunks; ++c) {
    const int32_t left = cols - c * kChunk;
    for (int32_t i = 0; i < rows; ++i) {
      const float* from = x[tile * kTile + i] + c * kChunk;
      __m512 low[kParts], high[kParts];
      Split(_mm512_maskz_loadu_ps(Mask16(Smaller(left, 16)), from), low);
      Split(_mm512_maskz_loadu_ps(Mask16(left > 16 ? Smaller(left - 16, 16) : 0), from + 16), high);
      for (int p = 0; p < kParts; ++p) {
        _mm512_store_si512(words[p * rows + i], Join(low[p], high[p]));
      }
    }
    for (int32_t t = 0; t < column_tiles; ++t) {
      __m512i pairs[kTile];
      for (int i = 0; i < kTile; ++i) pairs[i] = _mm512_load_si512(words[t * kTile + i]);
      Transpose(pairs);
      uint32_t* chunk = to + t * column_tile_words + c * kTile * columns;
      for (int i = 0; i < kTile; ++i) {
        _mm512_mask_storeu_epi32(chunk + i * columns, Mask16(columns), pairs[i]);
      }
    }
  }
}

// 16 rows of weights, chunk after chunk. The last chunk lies elsewhere if it had to be filled up.
struct WeightTile {
  const std::byte* data;
  int64_t row_bytes;
  int64_t chunk_bytes;
  const std::byte* tail;  // null: like the others
};

struct ColumnTile {
  const std::byte* data;
  int64_t row_bytes;
};

// kRows x kCols result tiles over all chunks, stored at `results` [kRows * 16][kResultCols].
// Fetches from `ahead`, a row of weights after the other, what the next call will read.
template <int kRows, int kCols>
inline void MultiplyTiles(const WeightTile* w, const ColumnTile* x, int32_t chunks,
                          const std::byte* ahead, int64_t ahead_row_bytes, float* results) {
  _tile_zero(0);
  if constexpr (kCols > 1) _tile_zero(1);
  if constexpr (kRows > 1) _tile_zero(2);
  if constexpr (kRows > 1 && kCols > 1) _tile_zero(3);
  const std::byte* w0 = w[0].data;
  const std::byte* w1 = w[kRows - 1].data;
  const std::byte* x0 = x[0].data;
  const std::byte* x1 = x[kCols - 1].data;
  const int64_t x_row = x[0].row_bytes;
  const auto step = [&](int64_t row0, int64_t row1) {
    _tile_loadd(6, x0, x_row);
    _tile_loadd(4, w0, row0);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kCols > 1) {
      _tile_loadd(7, x1, x_row);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kRows > 1) {
      _tile_loadd(5, w1, row1);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kCols > 1) _tile_dpbf16ps(3, 5, 7);
    }
  };
  const int32_t plain = w[0].tail != nullptr ? chunks - 1 : chunks;
  for (int32_t c = 0; c < plain; ++c) {
    if (ahead != nullptr) {
      // Some chunks ahead in these rows, and past their end in the rows that come next.
      const int32_t at = c + kPrefetchChunks;
      const std::byte* line =
          at < chunks ? w0 + kPrefetchChunks * 64 : ahead + static_cast<int64_t>(at - chunks) * 64;
#pragma GCC unroll 8
      for (int i = 0; i < kRows * kTile; ++i) __builtin_prefetch(line + i * ahead_row_bytes);
    }
    step(w[0].row_bytes, w[kRows - 1].row_bytes);
    w0 += w[0].chunk_bytes;
    w1 += w[kRows - 1].chunk_bytes;
    x0 += kTile * x_row;
    x1 += kTile * x_row;
  }
  if (plain < chunks) {
    w0 = w[0].tail;
    w1 = w[kRows - 1].tail;
    step(kChunk * 2, kChunk * 2);
  }
  constexpr int64_t kResultBytes = kResultCols * sizeof(float);
  _tile_stored(0, results, kResultBytes);
  if constexpr (kCols > 1) _tile_stored(1, results + kTile, kResultBytes);
  if constexpr (kRows > 1) _tile_stored(2, results + kTile * kResultCols, kResultBytes);
  if constexpr (kRows > 1 && kCols > 1) {
    _tile_stored(3, results + kTile * kResultCols + kTile, kResultBytes);
  }
}

// Bias of weight rows [row, row + count); zeros beyond.
inline __m512 LoadBias(const MatmulArgs& args, int32_t row, int32_t count) {
  const __mmask16 mask = Mask16(count);
  switch (args.bias_dtype) {
    case DType::kF32:
      return _mm512_maskz_loadu_ps(mask, static_cast<const float*>(args.bias) + row);
    case DType::kF16:
      return _mm512_cvtph_ps(
          _mm256_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(args.bias) + row));
    case DType::kBF16:
      return _mm512_castsi512_ps(
          _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(
                                mask, static_cast<const uint16_t*>(args.bias) + row)),
                            16));
    default: return _mm512_setzero_ps();
  }
}

// Adds the parts of the `rows` activation rows from `first` on, for weight rows
// [row, row + count), count <= 16.
inline void AddParts(const MatmulArgs& args, int32_t first, int32_t rows, int32_t row,
                     int32_t count, const float* results) {
  __m512i sums[kTile];
  const __mmask16 mask = Mask16(rows);
  for (int i = 0; i < kTile; ++i) {
    const float* high = results + i * kResultCols;
    const __m512 low = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, high + rows),
                                     _mm512_maskz_loadu_ps(mask, high + 2 * rows));
    sums[i] = _mm512_castps_si512(_mm512_add_ps(_mm512_maskz_loadu_ps(mask, high), low));
  }
  Transpose(sums);
  __m512 bias = _mm512_setzero_ps();
  if (args.bias != nullptr) bias = LoadBias(args, row, count);
  for (int32_t i = 0; i < rows; ++i) {
    __m512 out = _mm512_castsi512_ps(sums[i]);
    if (args.bias != nullptr) out = _mm512_add_ps(out, bias);
    _mm512_mask_storeu_ps(args.out[first + i] + row, Mask16(count), out);
  }
}

// Copies columns [c * 32, ...) of up to 16 rows to a tile, filled up with zeros.
inline void CopyChunk(const uint16_t* from, int32_t cols, int32_t rows, int32_t c, std::byte* to) {
  const __mmask32 mask = LowBits(Smaller(kChunk, cols - c * kChunk));
  for (int32_t i = 0; i < kTile; ++i) {
    __m512i line = _mm512_setzero_si512();
    if (i < rows) {
      line = _mm512_maskz_loadu_epi16(mask, from + static_cast<int64_t>(i) * cols + c * kChunk);
    }
    _mm512_store_si512(to + i * 64, line);
  }
}

// Lays up to 16 rows of weights out chunk by chunk.
inline void CopyRows(const uint16_t* from, int32_t cols, int32_t rows, std::byte* to) {
  const int32_t chunks = Chunks(cols);
  for (int32_t i = 0; i < kTile; ++i) {
    const uint16_t* row = from + static_cast<int64_t>(i) * cols;
    for (int32_t c = 0; c < chunks; ++c) {
      __m512i line = _mm512_setzero_si512();
      if (i < rows) {
        line =
            _mm512_maskz_loadu_epi16(LowBits(Smaller(kChunk, cols - c * kChunk)), row + c * kChunk);
      }
      _mm512_store_si512(to + static_cast<int64_t>(c) * kTileBytes + i * 64, line);
    }
  }
}

// Multiples of two tiles; a panel of tiles fits the second-level cache with room for activations.
int32_t PanelRows(int32_t cols) {
  constexpr int32_t kStep = 2 * kTile, kPanelBytes = 1 << 20, kRowsMax = 128;
  const int32_t rows = kPanelBytes / (Chunks(cols) * kChunk * 2) / kStep * kStep;
  return rows < kStep ? kStep : Smaller(rows, kRowsMax);
}

constexpr size_t kResultFloats = 2 * kTile * kResultCols;
constexpr size_t kTailFloats = 2 * kTileBytes / 4;

size_t ScratchFloats(int32_t cols) {
  const auto panel = static_cast<size_t>(PanelRows(cols)) * static_cast<size_t>(Chunks(cols));
  return kResultFloats + kTailFloats + panel * kChunk / 2;
}

class Product {
 public:
  Product(const MatmulArgs& args, int32_t row_begin, int32_t row_end, float* scratch)
      : args_(args),
        row_begin_(row_begin),
        row_end_(row_end),
        chunks_(Chunks(args.cols)),
        in_place_(args.m <= kInPlaceRowsMax),
        results_(scratch),
        tails_(reinterpret_cast<std::byte*>(scratch + kResultFloats)),
        panel_(reinterpret_cast<std::byte*>(scratch + kResultFloats + kTailFloats)) {}

  void Run() {
    if (!in_place_) {
      for (int32_t row = row_begin_; row < row_end_; row += kTile) {
        CopyRows(Weights(row), args_.cols, Smaller(kTile, row_end_ - row), PanelTile(row));
      }
    }
    Configure();
    for (int32_t first = 0; first < args_.m; first += kGroups * kTile) {
      for (int32_t row = row_begin_; row < row_end_; row += 2 * kTile) MultiplyRows(first, row);
    }
    _tile_release();
  }

 private:
  const uint16_t* Weights(int32_t row) const {
    return static_cast<const uint16_t*>(args_.weight) + static_cast<int64_t>(row) * args_.cols;
  }
  std::byte* PanelTile(int32_t row) const {
    return panel_ + static_cast<int64_t>(row - row_begin_) / kTile * chunks_ * kTileBytes;
  }

  void Configure() const {
    TileConfig config;
    const auto column_bytes = static_cast<uint16_t>(TileColumns(args_.m) * 4);
    for (int i = 0; i < 8; ++i) {
      const bool weights = i == 4 || i == 5;
      config.rows[i] = kTile;
      config.row_bytes[i] = weights ? uint16_t{64} : column_bytes;
    }
    MemoryIsUsed();
    _tile_loadconfig(&config);
  }

  WeightTile PrepareTile(int32_t row, std::byte* tail) const {
    const int32_t rows = Smaller(kTile, row_end_ - row);
    if (!in_place_) return {PanelTile(row), 64, kTileBytes, nullptr};
    if (rows < kTile) {
      CopyRows(Weights(row), args_.cols, rows, PanelTile(row));
      return {PanelTile(row), 64, kTileBytes, nullptr};
    }
    WeightTile tile{reinterpret_cast<const std::byte*>(Weights(row)), int64_t{2} * args_.cols, 64,
                    nullptr};
    if (args_.cols % kChunk != 0) {
      CopyChunk(Weights(row), args_.cols, rows, chunks_ - 1, tail);
      tile.tail = tail;
    }
    return tile;
  }

  // Weight rows [row, row + 32) times up to 32 activation rows.
  void MultiplyRows(int32_t first, int32_t row) const {
    WeightTile w[2];
    const int row_tiles = row_end_ - row > kTile ? 2 : 1;
    for (int i = 0; i < row_tiles; ++i)
      w[i] = PrepareTile(row + i * kTile, tails_ + i * kTileBytes);
    // The column tiles of both groups, and where each group's results begin.
    ColumnTile x[kGroups * kParts];
    int tiles = 0;
    int first_tile[kGroups + 1] = {};
    const int64_t row_bytes = int64_t{4} * TileColumns(args_.m);
    int groups = 0;
    for (; groups < kGroups && first + groups * kTile < args_.m; ++groups) {
      const int32_t tile = first / kTile + groups;
      const auto* data = reinterpret_cast<const std::byte*>(
          args_.packed_x + static_cast<int64_t>(tile) * TileFloats(args_.cols));
      for (int t = 0; t < ColumnTiles(RowsOfTile(args_.m, tile)); ++t) {
        x[tiles++] = {data + t * chunks_ * kTile * row_bytes, row_bytes};
      }
      first_tile[groups + 1] = tiles;
    }
    MemoryIsUsed();
    const bool fetch = in_place_ && row_tiles == 2 && w[1].row_bytes != 64;
    const std::byte* ahead =
        fetch ? reinterpret_cast<const std::byte*>(Weights(row + 2 * kTile)) : nullptr;
    int t = 0;
    for (; t + 2 <= tiles; t += 2) Multiply<2>(w, row_tiles, x + t, ahead, results_ + t * kTile);
    if (t < tiles) Multiply<1>(w, row_tiles, x + t, ahead, results_ + t * kTile);
    for (int g = 0; g < groups; ++g) {
      const int32_t at = first + g * kTile;
      for (int i = 0; i < row_tiles; ++i) {
        const int32_t at_row = row + i * kTile;
        AddParts(args_, at, Smaller(kTile, args_.m - at), at_row, Smaller(kTile, row_end_ - at_row),
                 results_ + first_tile[g] * kTile + i * kTile * kResultCols);
      }
    }
  }

  template <int kCols>
  void Multiply(const WeightTile* w, int row_tiles, const ColumnTile* x, const std::byte* ahead,
                float* results) const {
    const int64_t row_bytes = int64_t{2} * args_.cols;
    if (row_tiles == 2) {
      // Both tiles or neither have a tail of their own; a copied one has none.
      if ((w[0].tail == nullptr) == (w[1].tail == nullptr)) {
        MultiplyTiles<2, kCols>(w, x, chunks_, ahead, row_bytes, results);
        return;
      }
      MultiplyTiles<1, kCols>(w + 1, x, chunks_, nullptr, row_bytes, results + kTile * kResultCols);
    }
    MultiplyTiles<1, kCols>(w, x, chunks_, nullptr, row_bytes, results);
  }

  const MatmulArgs& args_;
  const int32_t row_begin_;
  const int32_t row_end_;
  const int32_t chunks_;
  const bool in_place_;
  float* const results_;
  std::byte* const tails_;
  std::byte* const panel_;
};

void MultiplyPacked(const MatmulArgs& args, int32_t row_begin, int32_t row_end, float* scratch) {
  Product(args, row_begin, row_end, scratch).Run();
}

constexpr PackedKernels kKernels = {.tile_rows = kTile,
                                    .tile_floats = TileFloats,
                                    .pack_x = PackX,
                                    .panel_rows = PanelRows,
                                    .scratch_floats = ScratchFloats,
                                    .multiply = MultiplyPacked};

}  // namespace

const PackedKernels& AmxBf16Kernels() {
  return kKernels;
}

}  // namespace expertflow::cpu

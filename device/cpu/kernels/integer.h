// Products of quantised matrices with activations that are rounded to integers of 8 bits, as
// templates over a back end I (scalar.cpp shows what one consists of).
//
// The sum, exactly (tests/unit/device/integer_kernels_test.cpp computes it in plain C++). Of each
// group of kQuantisedGroup elements of an activation row:
//   largest = max |x|, step = largest / 127, q = x * (127 / largest) to the nearest integer, to
//   even largest < 2^-100: step = 0 and q = 0; something not finite: step = NaN and q = 0
// and with the weights of that group: dot = sum of (code - zero point) * q, an integer. The output
// is the dot product of float(dot) and (weight scale * step) over all groups, in 16 lanes as
// device/ops.h has it for elements, and then the bias. Integers add up in any order, so
// instructions that differ in theirs give the same bits.
//
// REQUIRES of every function template here: instantiated only with a back end of internal linkage.
// No function that is not such a template, and nothing of the standard library: see kernel_table.h.
#pragma once

#include <cstdint>

#include "device/cpu/kernels/linear.h"

namespace expertflow::cpu {

inline constexpr int kGroup = static_cast<int>(kQuantisedGroup);
inline constexpr int kChunkGroups =
    kLanes;  // groups that are worked on together, one for each lane
// Lanes in the order in which the tree of B::Reduce meets them.
constexpr int kLaneOrder[kLanes] = {0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, 3, 11, 7, 15};

template <DType kDType>
inline constexpr int kCodeBytesOfGroup = kGroup* static_cast<int>(CodeBits(kDType)) / 8;

// A group whose largest element is below this counts as zeros: 127 / largest stays finite.
inline constexpr float kLargestTooSmall = 0x1p-100f;
inline constexpr uint32_t kInfinityBits = 0x7f800000u;
inline constexpr uint32_t kNanBits = 0x7fc00000u;

// ---- Activations. A packed row holds, for whole chunks of groups (zeros behind the last):
//   integers in their order, integers in the order of I::Arrange, steps, sums of the integers

template <typename I>
inline int32_t PaddedGroups(int32_t cols) {
  return (cols / kGroup + kChunkGroups - 1) / kChunkGroups * kChunkGroups;
}

template <typename I>
struct IntegerRow {
  int8_t* integers;
  int8_t* arranged;  // of few rows only
  float* steps;
  int32_t* sums;
};

template <typename I>
inline int32_t RowFloats(int32_t cols) {
  constexpr int32_t kFloatsOfGroup = 2 * kGroup / 4 + 2;
  return PaddedGroups<I>(cols) * kFloatsOfGroup;
}

template <typename I>
inline IntegerRow<I> RowAt(const float* packed, int32_t cols, int32_t row) {
  const int64_t groups = PaddedGroups<I>(cols);
  // Who packs may write there; who multiplies only reads.
  float* at = const_cast<float*>(packed) + static_cast<int64_t>(row) * RowFloats<I>(cols);
  auto* integers = reinterpret_cast<int8_t*>(at);
  int8_t* arranged = integers + groups * kGroup;
  auto* steps = reinterpret_cast<float*>(arranged + groups * kGroup);
  return {integers, arranged, steps, reinterpret_cast<int32_t*>(steps + groups)};
}

// The order of codes of 4 bits that are read as vectors of kGroups groups: the elements 0-7 and
// 16-23 of each, then 8-15 and 24-31 of each.
template <typename I, int kGroups>
inline void ArrangeHalves(const int8_t* from, int8_t* to) {
  for (int g = 0; g < kChunkGroups; ++g) {
    const int8_t* group = from + g * kGroup;
    int8_t* low = to + g / kGroups * (kGroups * kGroup) + g % kGroups * 16;
    int8_t* high = low + kGroups * 16;
    __builtin_memcpy(low, group, 8);
    __builtin_memcpy(high, group + 8, 8);
    __builtin_memcpy(low + 8, group + 16, 8);
    __builtin_memcpy(high + 8, group + 24, 8);
  }
}

template <typename I>
int32_t IntegerTileFloats(int32_t cols) {
  return I::kTileRows * RowFloats<I>(cols);
}

template <typename I>
void PackIntegers(const float* const* x, int32_t m, int32_t cols, int32_t tile, float* packed) {
  const bool few = m <= I::kFewRowsMax;
  const int32_t groups = PaddedGroups<I>(cols);
  for (int32_t row = tile * I::kTileRows; row < (tile + 1) * I::kTileRows; ++row) {
    if (few && row >= m) return;
    const IntegerRow<I> to = RowAt<I>(packed, cols, row);
    const int32_t used = row < m ? cols / kGroup : 0;
    for (int32_t g = 0; g < used; ++g) {
      I::Quantise(x[row] + g * kGroup, to.integers + g * kGroup, to.steps + g, to.sums + g);
    }
    for (int32_t g = used; g < groups; ++g) {
      __builtin_memset(to.integers + g * kGroup, 0, kGroup);
      to.steps[g] = 0;
      to.sums[g] = 0;
    }
    if (!few) continue;
    for (int32_t g = 0; g < groups; g += kChunkGroups) {
      I::Arrange(to.integers + g * kGroup, to.arranged + g * kGroup);
    }
  }
}

// ---- Weights

// The codes, scales and zero points of a matrix by the number of a group in it.
template <typename I, DType kDType>
struct GroupCodes {
  const uint8_t* codes;
  const void* scales;
  const uint8_t* zeros;  // of kUInt4
  int64_t groups;

  explicit GroupCodes(const MatmulArgs& args) {
    const uint64_t elements =
        static_cast<uint64_t>(args.stored_rows) * static_cast<uint64_t>(args.cols);
    codes = static_cast<const uint8_t*>(args.weight);
    scales = codes + ScalesOffset(kDType, elements);
    zeros = codes + ZerosOffset(elements);
    groups = static_cast<int64_t>(elements / kQuantisedGroup);
  }
  const uint8_t* At(int64_t group) const { return codes + group * kCodeBytesOfGroup<kDType>; }
  // Of what I takes for a code less its zero point.
  float Scale(int64_t group) const {
    if constexpr (kDType == DType::kMxfp4) {
      return Mxfp4Pointer<typename I::B>{codes, scales, nullptr, group * kGroup}.factor();
    } else {
      return static_cast<const float*>(scales)[group];
    }
  }
};

// Groups of a row, up to kChunkGroups of them. Behind the last are others of the matrix or zeros,
// with scales that are finite: activations are zero there.
template <typename I, DType kDType>
class ChunkReader {
 public:
  explicit ChunkReader(const MatmulArgs& args) : from_(args) {}

  void Read(int64_t group, int count) {
    const bool inside = group + kChunkGroups <= from_.groups;
    codes = from_.At(group);
    for (int64_t at = 0; at < kChunkBytes; at += 64) {
      __builtin_prefetch(codes + kChunkBytes * kChunksAhead + at);
    }
    if (!inside) {
      const auto used = static_cast<size_t>(count) * kCodeBytesOfGroup<kDType>;
      __builtin_memcpy(codes_, codes, used);
      __builtin_memset(codes_ + used, 0, sizeof(codes_) - used);
      codes = codes_;
    }
    if constexpr (kDType == DType::kMxfp4) {
      scales = I::TwoTo(Bytes(static_cast<const uint8_t*>(from_.scales) + group, count, inside));
    } else {
      const float* at = static_cast<const float*>(from_.scales) + group;
      scales = count == kChunkGroups ? I::B::Load(at) : I::B::LoadPartial(at, count);
    }
    if constexpr (kDType == DType::kUInt4) {
      zeros = I::Widen(Bytes(from_.zeros + group, count, inside));
    }
  }

  const uint8_t* codes;
  typename I::B::Vec scales;
  typename I::Ints zeros;

 private:
  static constexpr int64_t kChunkBytes = kChunkGroups * kCodeBytesOfGroup<kDType>;
  static constexpr int64_t kChunksAhead = 4;

  // A byte for each group.
  const uint8_t* Bytes(const uint8_t* at, int count, bool inside) {
    if (inside) return at;
    for (int g = 0; g < kChunkGroups; ++g) bytes_[g] = g < count ? at[g] : uint8_t{0};
    return bytes_;
  }

  const GroupCodes<I, kDType> from_;
  alignas(64) uint8_t codes_[kChunkBytes];
  uint8_t bytes_[kChunkGroups];
};

// acc + float(dots) * (scales * steps)
template <typename I>
inline typename I::B::Vec AddDots(typename I::Ints dots, typename I::B::Vec scales,
                                  typename I::B::Vec steps, typename I::B::Vec acc) {
  return I::B::Fma(I::ToFloats(dots), I::B::Mul(scales, steps), acc);
}

// ---- Few rows: each weight row is read once.

template <typename I, DType kDType>
inline void FewRows(const MatmulArgs& args, int32_t row_begin, int32_t row_end) {
  using V = typename I::B::Vec;
  constexpr bool kHalves = CodeBits(kDType) == 4;
  const int32_t groups = args.cols / kGroup;
  IntegerRow<I> rows[I::kFewRowsMax];
  for (int32_t i = 0; i < args.m; ++i) rows[i] = RowAt<I>(args.packed_x, args.cols, i);
  const auto at = [&](int32_t i, int32_t g) {
    return (kHalves ? rows[i].arranged : rows[i].integers) + g * kGroup;
  };
  ChunkReader<I, kDType> chunk(args);
  V acc[I::kFewRowsMax];
  for (int32_t row = row_begin; row < row_end; ++row) {
    const int64_t first = static_cast<int64_t>(args.first_row + row) * groups;
    for (int32_t i = 0; i < args.m; ++i) acc[i] = I::B::Zero();
    for (int32_t g = 0; g < groups; g += kChunkGroups) {
      chunk.Read(first + g, groups - g < kChunkGroups ? groups - g : kChunkGroups);
      const auto add = [&](int32_t i, typename I::Ints dots) {
        const typename I::Ints sums = I::Load(rows[i].sums + g);
        if constexpr (kDType == DType::kUInt4) {
          dots = I::Sub(dots, I::Mul(chunk.zeros, sums));
        } else if constexpr (I::template kZero<kDType> != 0) {
          dots = I::Sub(dots, I::Mul(I::Set(I::template kZero<kDType>), sums));
        }
        acc[i] = AddDots<I>(dots, chunk.scales, I::B::Load(rows[i].steps + g), acc[i]);
      };
      if (args.m == 1 || !kHalves) {
        for (int32_t i = 0; i < args.m; ++i)
          add(i, I::template Dots<kDType>(chunk.codes, at(i, g)));
      } else {
        alignas(64) uint8_t raised[kChunkGroups * kGroup];
        I::template Raise<kDType>(chunk.codes, raised);
        for (int32_t i = 0; i < args.m; ++i) add(i, I::DotsOfRaised(raised, at(i, g)));
      }
    }
    const float bias = BiasOf<typename I::B>(args, row);
    for (int32_t i = 0; i < args.m; ++i) {
      const float sum = I::B::Reduce(acc[i]);
      args.out[i][row] = args.bias == nullptr ? sum : sum + bias;
    }
  }
}

// ---- Many rows. A tile of kTileWeights weight rows is laid out as
//   codes  [group][four elements][row][element], groups up to a multiple of I::kPanelGroups
//   scales [group][row], zero points likewise
// and multiplied with I::kTileRows activation rows at a time.

template <typename I>
inline int32_t PanelGroups(int32_t cols) {
  return (cols / kGroup + I::kPanelGroups - 1) / I::kPanelGroups * I::kPanelGroups;
}
inline constexpr int kTileWeights = 16;
inline constexpr int kTileGroupBytes = kGroup * kTileWeights;

// Of a chunk of work: whole tiles, and enough rows to stream well where there are few activations.
template <typename I>
int32_t IntegerPanelRows(int32_t cols) {
  constexpr int32_t kElements = 64 * 1024;
  const int32_t rows = kElements / cols / kTileWeights * kTileWeights;
  return rows < kTileWeights ? kTileWeights : (rows > 8 * kTileWeights ? 8 * kTileWeights : rows);
}

template <typename I>
size_t IntegerScratchFloats(int32_t cols) {
  return static_cast<size_t>(PanelGroups<I>(cols)) * (kTileGroupBytes / 4 + 2 * kTileWeights);
}

template <typename I>
struct WeightTile {
  uint8_t* codes;
  float* scales;
  int32_t* zeros;
};

// Lays out weight rows [row, row + rows), rows <= kTileWeights.
template <typename I, DType kDType>
inline void PackCodesOf(const MatmulArgs& args, int32_t row, int32_t rows, WeightTile<I> to) {
  constexpr int kBytes = kCodeBytesOfGroup<kDType>;
  const GroupCodes<I, kDType> from(args);
  const int32_t groups = args.cols / kGroup;
  const int64_t first = static_cast<int64_t>(args.first_row + row) * groups;
  alignas(64) uint8_t copies[kTileWeights][kGroup * I::kPanelGroups] = {};
  const uint8_t* codes[kTileWeights];
  for (int32_t g = 0; g < groups; g += I::kPanelGroups) {
    const int32_t left = groups - g;
    for (int32_t r = 0; r < kTileWeights; ++r) {
      codes[r] = copies[r];
      if (r >= rows) continue;
      codes[r] = from.At(first + static_cast<int64_t>(r) * groups + g);
      if (left >= I::kPanelGroups) continue;
      __builtin_memcpy(copies[r], codes[r], static_cast<size_t>(left) * kBytes);
      codes[r] = copies[r];
    }
    I::template PackCodes<kDType>(codes, to.codes + g * kTileGroupBytes);
  }
  for (int32_t r = 0; r < kTileWeights; ++r) {
    const int64_t at = first + static_cast<int64_t>(r) * groups;
    for (int32_t g = 0; g < groups; ++g) {
      to.scales[g * kTileWeights + r] = r < rows ? from.Scale(at + g) : 0.0f;
      if constexpr (kDType == DType::kUInt4) {
        to.zeros[g * kTileWeights + r] = r < rows ? from.zeros[at + g] : 0;
      }
    }
  }
}

// I::kTileRows activation rows from `first` on times one tile of the panel.
template <typename I, DType kDType>
inline void MultiplyTile(const MatmulArgs& args, int32_t first, WeightTile<I> tile,
                         typename I::B::Vec* out) {
  using V = typename I::B::Vec;
  constexpr int kRows = I::kTileRows;
  const int32_t groups = args.cols / kGroup;
  const IntegerRow<I> x = RowAt<I>(args.packed_x, args.cols, first);
  const int64_t row_floats = RowFloats<I>(args.cols);
  // Sums of 1, 2, 4 and 8 lanes that wait for their neighbours.
  V waiting[4][kRows];
  for (int n = 0; n < kLanes; ++n) {
    V sums[kRows];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) sums[i] = I::B::Zero();
    for (int32_t g = kLaneOrder[n]; g < groups; g += kLanes) {
      typename I::Ints dots[kRows];
      I::template TileDots<kDType>(tile.codes + g * kTileGroupBytes, x.integers + g * kGroup,
                                   row_floats * 4, dots);
      const V scales = I::B::Load(tile.scales + g * kTileWeights);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const int32_t sum = x.sums[i * row_floats + g];
        if constexpr (kDType == DType::kUInt4) {
          const typename I::Ints zeros = I::Load(tile.zeros + g * kTileWeights);
          dots[i] = I::Sub(dots[i], I::Mul(zeros, I::Set(sum)));
        } else if constexpr (I::template kTileZero<kDType> != 0) {
          dots[i] = I::Sub(dots[i], I::Set(I::template kTileZero<kDType> * sum));
        }
        sums[i] = AddDots<I>(dots[i], scales, I::B::Set(x.steps[i * row_floats + g]), sums[i]);
      }
    }
    int level = 0;
    for (; (n >> level & 1) != 0; ++level) {
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) sums[i] = I::B::Add(waiting[level][i], sums[i]);
    }
    V* to = level < 4 ? waiting[level] : out;
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) to[i] = sums[i];
  }
}

template <typename I, DType kDType>
inline void ManyRows(const MatmulArgs& args, int32_t row_begin, int32_t row_end, float* scratch) {
  const int64_t groups = PanelGroups<I>(args.cols);
  auto* codes = reinterpret_cast<uint8_t*>(scratch);
  auto* scales = reinterpret_cast<float*>(codes + groups * kTileGroupBytes);
  const WeightTile<I> tile{codes, scales,
                           reinterpret_cast<int32_t*>(scales + groups * kTileWeights)};
  I::BeginTiles();
  for (int32_t row = row_begin; row < row_end; row += kTileWeights) {
    const int32_t rows = row_end - row < kTileWeights ? row_end - row : kTileWeights;
    PackCodesOf<I, kDType>(args, row, rows, tile);
    for (int32_t first = 0; first < args.m; first += I::kTileRows) {
      typename I::B::Vec sums[I::kTileRows];
      MultiplyTile<I, kDType>(args, first, tile, sums);
      for (int32_t i = 0; i < I::kTileRows && first + i < args.m; ++i) {
        float* out = args.out[first + i] + row;
        I::B::StorePartial(out, sums[i], rows);
        if (args.bias == nullptr) continue;
        for (int32_t r = 0; r < rows; ++r) out[r] += BiasOf<typename I::B>(args, row + r);
      }
    }
  }
  I::EndTiles();
}

template <typename I, DType kType>
struct IntegerType {
  static constexpr DType kDType = kType;
};

template <typename I>
void MultiplyIntegers(const MatmulArgs& args, int32_t row_begin, int32_t row_end, float* scratch) {
  const auto run = [&](auto type) {
    constexpr DType kDType = decltype(type)::kDType;
    if (args.m <= I::kFewRowsMax) {
      FewRows<I, kDType>(args, row_begin, row_end);
    } else {
      ManyRows<I, kDType>(args, row_begin, row_end, scratch);
    }
  };
  switch (args.weight_dtype) {
    case DType::kInt8: run(IntegerType<I, DType::kInt8>{}); return;
    case DType::kInt4: run(IntegerType<I, DType::kInt4>{}); return;
    case DType::kUInt4: run(IntegerType<I, DType::kUInt4>{}); return;
    case DType::kMxfp4: run(IntegerType<I, DType::kMxfp4>{}); return;
    default: return;  // HasIntegerProducts() says no
  }
}

template <typename I>
inline constexpr PackedKernels kIntegerKernels = {.tile_rows = I::kTileRows,
                                                  .tile_floats = IntegerTileFloats<I>,
                                                  .pack_x = PackIntegers<I>,
                                                  .panel_rows = IntegerPanelRows<I>,
                                                  .scratch_floats = IntegerScratchFloats<I>,
                                                  .multiply = MultiplyIntegers<I>};

}  // namespace expertflow::cpu

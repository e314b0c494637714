// Products of quantised matrices with activations that are rounded to integers of 8 bits, as
// templates over a back end I (scalar.cpp shows what one consists of).
//
// The sum, exactly (tests/unit/device/integer_kernels_test.cpp computes it in plain C++). Of each
// group of kQuantisedGroup elements of an activation row:
//   largest = max |x|, step = largest / 127, q = x * (127 / largest), rounded to nearest even
//   where largest < 2^-100: step = 0, q = 0; where something is not finite: step = NaN, q = 0
// and with the weights of that group: dot = sum of (code - zero point) * q, an integer. The output
// is the dot product of float(dot) and (weight scale * step) over all groups, in 16 lanes as
// device/ops.h has it for elements, and then the bias. Integers add up in any order, so
// instructions that differ in theirs give the same bits. Of GGUF's blocks
//   Q4_1, Q5_1, Q4_K, Q5_K: the weight scale is d (times the sub-block's), and a lane next adds
//   float(sum of q) * (minimum * step), where the minimum is m, or -(d_min * the sub-block's)
//   Q6_K: the weight scale is d, and the scales of 16 elements are part of the integers
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

// The codes of a group; of GGUF's blocks, which have their scales within, see CodeBytes().
template <DType kDType>
inline constexpr int kCodeBytesOfGroup = kGroup* static_cast<int>(CodeBits(kDType)) / 8;
template <DType kDType>
inline constexpr bool kHasMinima = IsGgufBlocks(kDType) && kDType != DType::kQ6K;

// A group whose largest element is below this counts as zeros: 127 / largest stays finite.
inline constexpr float kLargestTooSmall = 0x1p-100f;
inline constexpr uint32_t kInfinityBits = 0x7f800000u;
inline constexpr uint32_t kNanBits = 0x7fc00000u;

// ---- Activations. A packed row holds, for whole chunks of groups (zeros behind the last):
//   integers in their order, integers in the order of I::Arrange, steps, sums of the integers, and
//   of the first half of each group

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
  int32_t* half_sums;
};

template <typename I>
inline int32_t RowFloats(int32_t cols) {
  constexpr int32_t kFloatsOfGroup = 2 * kGroup / 4 + 3;
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
  auto* sums = reinterpret_cast<int32_t*>(steps + groups);
  return {integers, arranged, steps, sums, sums + groups};
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
      I::Quantise(x[row] + g * kGroup, to.integers + g * kGroup, to.steps + g, to.sums + g,
                  to.half_sums + g);
    }
    for (int32_t g = used; g < groups; ++g) {
      __builtin_memset(to.integers + g * kGroup, 0, kGroup);
      to.steps[g] = 0;
      to.sums[g] = 0;
      to.half_sums[g] = 0;
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
  static constexpr int64_t CodeBytes(int64_t groups) {
    if constexpr (IsGgufBlocks(kDType)) {
      return groups * kGroup / static_cast<int64_t>(GroupElements(kDType)) *
             static_cast<int64_t>(BlockBytes(kDType));
    }
    return groups * kCodeBytesOfGroup<kDType>;
  }
  const uint8_t* At(int64_t group) const { return codes + CodeBytes(group); }
  // Of what I takes for a code less its zero point.
  float Scale(int64_t group) const {
    if constexpr (kDType == DType::kMxfp4) {
      return E8m0Half<typename I::B>(static_cast<const uint8_t*>(scales)[group]);
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

  // REQUIRES: `group` begins a block
  void Read(int64_t group, int count) {
    const bool inside =
        IsGgufBlocks(kDType) ? count == kChunkGroups : group + kChunkGroups <= from_.groups;
    codes = from_.At(group);
    for (int64_t at = 0; at < kChunkBytes; at += 64) {
      __builtin_prefetch(codes + kChunkBytes * kChunksAhead + at);
    }
    if (!inside) {
      const auto used = static_cast<size_t>(from_.CodeBytes(count));
      __builtin_memcpy(codes_, codes, used);
      __builtin_memset(codes_ + used, 0, sizeof(codes_) - used);
      codes = codes_;
    }
    if constexpr (IsGgufBlocks(kDType)) {
      ReadScalesOfBlocks();
    } else if constexpr (kDType == DType::kMxfp4) {
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
  typename I::B::Vec minima;              // kHasMinima
  typename I::Ints zeros;                 // kUInt4
  int16_t half_scales[2 * kChunkGroups];  // kQ6K: of 16 elements each

 private:
  using B = typename I::B;
  static constexpr int64_t kChunkBytes = GroupCodes<I, kDType>::CodeBytes(kChunkGroups);
  static constexpr int64_t kChunksAhead = 4;

  // A byte for each group.
  const uint8_t* Bytes(const uint8_t* at, int count, bool inside) {
    if (inside) return at;
    for (int g = 0; g < kChunkGroups; ++g) bytes_[g] = g < count ? at[g] : uint8_t{0};
    return bytes_;
  }

  void ReadScalesOfBlocks() {
    using P = BlockPointer<B, kDType>;
    constexpr int kBlocks = kChunkGroups * kGroup / static_cast<int>(GroupElements(kDType));
    if constexpr (kDType == DType::kQ4_1 || kDType == DType::kQ5_1) {
      alignas(64) float d[kBlocks], m[kBlocks];
      for (int b = 0; b < kBlocks; ++b) {
        const P block{codes, b * P::kElements};
        d[b] = block.half(0);
        m[b] = block.half(2);
      }
      scales = B::Load(d);
      minima = B::Load(m);
    } else {
      const P first{codes, 0}, second{codes, P::kElements};
      if constexpr (kDType == DType::kQ6K) {
        scales = I::TwoHalves(first.half(208), second.half(208));
        for (int i = 0; i < 2 * kChunkGroups; ++i) {
          const P& block = i < kChunkGroups ? first : second;
          half_scales[i] = static_cast<int8_t>(block.block()[192 + i % kChunkGroups]);
        }
      } else {
        const SubBlockScales<B> a = UnpackSubBlockScales<B>(first.block() + 4);
        const SubBlockScales<B> b = UnpackSubBlockScales<B>(second.block() + 4);
        const auto times = [](uint64_t low, uint64_t high, typename B::Vec d) {
          const uint64_t both[2] = {low, high};
          return B::Mul(I::ToFloats(I::Widen(reinterpret_cast<const uint8_t*>(both))), d);
        };
        scales = times(a.scales, b.scales, I::TwoHalves(first.half(0), second.half(0)));
        minima = times(a.minima, b.minima, I::TwoHalves(-first.half(2), -second.half(2)));
      }
    }
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
  constexpr bool kHalves = !IsGgufBlocks(kDType) && CodeBits(kDType) == 4;
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
        const V steps = I::B::Load(rows[i].steps + g);
        if constexpr (kDType == DType::kUInt4) {
          dots = I::Sub(dots, I::Mul(chunk.zeros, sums));
        } else if constexpr (!IsGgufBlocks(kDType) && I::template kZero<kDType> != 0) {
          dots = I::Sub(dots, I::Mul(I::Set(I::template kZero<kDType>), sums));
        }
        acc[i] = AddDots<I>(dots, chunk.scales, steps, acc[i]);
        if constexpr (kHasMinima<kDType>) acc[i] = AddDots<I>(sums, chunk.minima, steps, acc[i]);
      };
      alignas(64) uint8_t raised[kChunkGroups * kGroup];
      if constexpr (IsGgufBlocks(kDType)) {
        I::template RaiseBlocks<kDType>(chunk.codes, raised);
        for (int32_t i = 0; i < args.m; ++i) {
          if constexpr (kDType == DType::kQ6K) {
            add(i, I::ScaledDots(raised, at(i, g), chunk.half_scales));
          } else {
            add(i, I::DotsOfBytes(raised, at(i, g)));
          }
        }
      } else if (args.m == 1 || !kHalves) {
        for (int32_t i = 0; i < args.m; ++i) {
          add(i, I::template Dots<kDType>(chunk.codes, at(i, g)));
        }
      } else {
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
//   scales [group][row], zero points or minima likewise
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
  return static_cast<size_t>(PanelGroups<I>(cols)) * (kTileGroupBytes / 4 + 3 * kTileWeights);
}

template <typename I>
struct WeightTile {
  uint8_t* codes;
  float* scales;
  float* minima;         // kHasMinima
  int32_t* zeros;        // kUInt4
  int32_t* half_scales;  // kQ6K: [group][half][row]
};

inline constexpr uint8_t kQ6KZero = 32;

template <typename I, DType kDType>
inline void PackBlocksOf(const MatmulArgs& args, int32_t row, int32_t rows, WeightTile<I> to) {
  const int32_t groups = args.cols / kGroup;
  const int64_t first = static_cast<int64_t>(args.first_row + row) * groups;
  ChunkReader<I, kDType> chunk(args);
  alignas(64) uint8_t raised[kTileWeights][kChunkGroups * kGroup] = {};
  for (int32_t g = 0; g < groups; g += kChunkGroups) {
    const int32_t count = groups - g < kChunkGroups ? groups - g : kChunkGroups;
    for (int32_t r = 0; r < rows; ++r) {
      chunk.Read(first + static_cast<int64_t>(r) * groups + g, count);
      I::template RaiseBlocks<kDType>(chunk.codes, raised[r]);
      alignas(64) float scales[kChunkGroups], minima[kChunkGroups];
      I::B::Store(scales, chunk.scales);
      if constexpr (kHasMinima<kDType>) I::B::Store(minima, chunk.minima);
      for (int32_t k = 0; k < count; ++k) {
        const int32_t at = (g + k) * kTileWeights + r;
        to.scales[at] = scales[k];
        if constexpr (kHasMinima<kDType>) to.minima[at] = minima[k];
        if constexpr (kDType == DType::kQ6K) {
          for (int half = 0; half < 2; ++half) {
            to.half_scales[((g + k) * 2 + half) * kTileWeights + r] =
                chunk.half_scales[2 * k + half];
          }
        }
      }
    }
    for (int32_t k = 0; k < count; k += I::kPanelGroups) {
      const uint8_t* codes[kTileWeights];
      for (int32_t r = 0; r < kTileWeights; ++r) codes[r] = raised[r] + k * kGroup;
      I::PackBytes(codes, to.codes + (g + k) * kTileGroupBytes);
    }
  }
}

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
      const uint8_t* codes = tile.codes + g * kTileGroupBytes;
      const int8_t* integers = x.integers + g * kGroup;
      typename I::Ints dots[kRows], others[kRows];  // of Q6_K: of the halves of a group
      if constexpr (kDType == DType::kQ6K) {
        I::TileHalfDots(codes, integers, row_floats * 4, dots, others);
      } else {
        I::template TileDots<kDType>(codes, integers, row_floats * 4, dots);
      }
      const V scales = I::B::Load(tile.scales + g * kTileWeights);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const int32_t sum = x.sums[i * row_floats + g];
        const V step = I::B::Set(x.steps[i * row_floats + g]);
        typename I::Ints dot = dots[i];
        if constexpr (kDType == DType::kQ6K) {
          const int32_t half_sum = x.half_sums[i * row_floats + g];
          const int32_t* halves = tile.half_scales + g * 2 * kTileWeights;
          const auto scaled = [&](const int32_t* by, typename I::Ints of, int32_t integers_sum) {
            return I::Mul(I::Load(by), I::Sub(of, I::Set(kQ6KZero * integers_sum)));
          };
          dot = I::Add(scaled(halves, dot, half_sum),
                       scaled(halves + kTileWeights, others[i], sum - half_sum));
        } else if constexpr (kDType == DType::kUInt4) {
          dot = I::Sub(dot, I::Mul(I::Load(tile.zeros + g * kTileWeights), I::Set(sum)));
        } else if constexpr (I::template kTileZero<kDType> != 0) {
          dot = I::Sub(dot, I::Set(I::template kTileZero<kDType> * sum));
        }
        sums[i] = AddDots<I>(dot, scales, step, sums[i]);
        if constexpr (kHasMinima<kDType>) {
          const V minima = I::B::Load(tile.minima + g * kTileWeights);
          sums[i] = AddDots<I>(I::Set(sum), minima, step, sums[i]);
        }
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
  float* others = scales + groups * kTileWeights;  // of one kind
  const WeightTile<I> tile{codes, scales, others, reinterpret_cast<int32_t*>(others),
                           reinterpret_cast<int32_t*>(others)};
  I::BeginTiles();
  for (int32_t row = row_begin; row < row_end; row += kTileWeights) {
    const int32_t rows = row_end - row < kTileWeights ? row_end - row : kTileWeights;
    if constexpr (IsGgufBlocks(kDType)) {
      PackBlocksOf<I, kDType>(args, row, rows, tile);
    } else {
      PackCodesOf<I, kDType>(args, row, rows, tile);
    }
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
    case DType::kQ4_1: run(IntegerType<I, DType::kQ4_1>{}); return;
    case DType::kQ5_1: run(IntegerType<I, DType::kQ5_1>{}); return;
    case DType::kQ4K: run(IntegerType<I, DType::kQ4K>{}); return;
    case DType::kQ5K: run(IntegerType<I, DType::kQ5K>{}); return;
    case DType::kQ6K: run(IntegerType<I, DType::kQ6K>{}); return;
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

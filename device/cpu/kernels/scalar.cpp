// The reference back end: plain C++ for any CPU. It also shows what a back end consists of.
//
// Vec: 16 float lanes. Group: 16 / kGroups of them. kAccumulators: sums (Vecs) that a tile of few
// rows keeps in registers. Max and Min return their second operand unless the first is strictly
// larger (smaller), as the vector instructions do. Reduce adds lane i and i + 8, then i and i + 4,
// then neighbours, then the two sums.
#include <math.h>

#include "device/cpu/kernels/make_table.h"

namespace expertflow::cpu {
namespace {

float FloatFromBits(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

struct Scalar {
  struct Vec {
    float lane[kLanes];
  };
  using Group = Vec;

  static constexpr const char* kName = "scalar";
  static constexpr int kGroups = 1;
  static constexpr int kAccumulators = 4;
  static constexpr int kTileRows = 2;
  static constexpr int kTileCols = 2;
  static constexpr int kBlockCols = 1024;
  static constexpr int kPanelFloats = 80 * 1024;

  static float ToFloat(float value) { return value; }
  static float ToFloat(BF16 value) { return FloatFromBits(uint32_t{value.bits} << 16); }
  static float ToFloat(F16 value) {
    const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16;
    const uint32_t exponent = value.bits >> 10 & 0x1fu;
    const uint32_t fraction = value.bits & 0x3ffu;
    if (exponent == 0) {
      const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
      return sign != 0 ? -magnitude : magnitude;
    }
    if (exponent == 31) {
      const uint32_t quiet = fraction != 0 ? 0x400000u : 0u;
      return FloatFromBits(sign | 0x7f800000u | fraction << 13 | quiet);
    }
    return FloatFromBits(sign | (exponent + 112) << 23 | fraction << 13);
  }

  template <typename Fn>
  static Vec Map(const Fn& fn) {
    Vec out;
    for (int i = 0; i < kLanes; ++i) out.lane[i] = fn(i);
    return out;
  }

  static Vec Zero() { return Set(0.0f); }
  static Vec Set(float value) {
    return Map([&](int) { return value; });
  }
  template <typename T>
  static Vec Load(const T* from) {
    return Map([&](int i) { return ToFloat(from[i]); });
  }
  static Vec Load(Int8Pointer<Scalar> from) {
    return Map([&](int i) {
      return static_cast<float>(static_cast<int8_t>(from.address()[i])) * from.factor();
    });
  }
  static Vec Load(Int4Pointer<Scalar> from) {
    return Map(
        [&](int i) { return static_cast<float>(Nibble(from.address(), i) - 8) * from.factor(); });
  }
  static Vec Load(UInt4Pointer<Scalar> from) {
    return Map([&](int i) {
      return static_cast<float>(Nibble(from.address(), i) - from.zero()) * from.factor();
    });
  }
  static Vec Load(Mxfp4Pointer<Scalar> from) {
    return Map([&](int i) {
      return static_cast<float>(kE2m1Twice[Nibble(from.address(), i)]) * from.factor();
    });
  }
  static Vec Load(Fp8Pointer<Scalar> from) {
    return Map([&](int i) {
      const uint32_t code = from.address()[i];
      const F16 shifted{static_cast<uint16_t>((code & 0x80u) << 8 | (code & 0x7fu) << 7)};
      return ToFloat(shifted) * from.factor();
    });
  }
  template <DType kDType>
  static Vec Load(BlockPointer<Scalar, kDType> from) {
    const BlockStep<Scalar> by = StepOf(from);
    return Map([&](int i) { return by.step * static_cast<float>(Code(from + i)) - by.base; });
  }
  // All elements of a block that `from` begins.
  template <DType kDType>
  static void RaiseBlock(BlockPointer<Scalar, kDType> from, float* to) {
    for (int i = 0; i < from.kElements; i += kLanes) Store(to + i, Load(from + i));
  }
  template <typename T>
  static Vec LoadPartial(const T* from, int count) {
    return Map([&](int i) { return i < count ? ToFloat(from[i]) : 0.0f; });
  }
  static void Store(float* to, const Vec& v) {
    for (int i = 0; i < kLanes; ++i) to[i] = v.lane[i];
  }
  static void StorePartial(float* to, const Vec& v, int count) {
    for (int i = 0; i < count; ++i) to[i] = v.lane[i];
  }
  static Vec ZeroTail(const Vec& v, int count) {
    return Map([&](int i) { return i < count ? v.lane[i] : 0.0f; });
  }

  static Vec Fma(const Vec& a, const Vec& b, const Vec& c) {
    return Map([&](int i) { return fmaf(a.lane[i], b.lane[i], c.lane[i]); });
  }
  static Vec Add(const Vec& a, const Vec& b) {
    return Map([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static Vec Sub(const Vec& a, const Vec& b) {
    return Map([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static Vec Mul(const Vec& a, const Vec& b) {
    return Map([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static Vec Div(const Vec& a, const Vec& b) {
    return Map([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  static Vec Max(const Vec& a, const Vec& b) {
    return Map([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static Vec Min(const Vec& a, const Vec& b) {
    return Map([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  // Of the bits of each lane.
  static Vec ShiftLeft23(const Vec& v) {
    return Map([&](int i) { return FloatFromBits(__builtin_bit_cast(uint32_t, v.lane[i]) << 23); });
  }

  static float Reduce(const Vec& v) {
    float quad[4];
    for (int i = 0; i < 4; ++i) {
      quad[i] = (v.lane[i] + v.lane[i + 8]) + (v.lane[i + 4] + v.lane[i + 12]);
    }
    return (quad[0] + quad[1]) + (quad[2] + quad[3]);
  }
  static void Reduce4(const Vec& a, const Vec& b, const Vec& c, const Vec& d, float* out) {
    out[0] = Reduce(a);
    out[1] = Reduce(b);
    out[2] = Reduce(c);
    out[3] = Reduce(d);
  }
  static void Reduce16(const Vec* v, float* out) {
    for (int i = 0; i < kLanes; ++i) out[i] = Reduce(v[i]);
  }
  static float ReduceMax(const Vec& v) {
    float quad[4];
    for (int i = 0; i < 4; ++i) {
      quad[i] = Larger(Larger(v.lane[i], v.lane[i + 8]), Larger(v.lane[i + 4], v.lane[i + 12]));
    }
    return Larger(Larger(quad[0], quad[2]), Larger(quad[1], quad[3]));
  }

  static Group GroupZero() { return Zero(); }
  static Group GroupLoad(const float* from) { return Load(from); }
  static void GroupStore(float* to, const Group& v) { Store(to, v); }
  static Group GroupFma(const Group& a, const Group& b, const Group& c) { return Fma(a, b, c); }
  static void StoreGroup(float* to, const Vec& v, int) { Store(to, v); }
  static Vec FromGroups(const float* first, int) { return Load(first); }

  // The integer of the element.
  template <DType kDType>
  static int Code(BlockPointer<Scalar, kDType> from) {
    const uint8_t* block = from.block();
    const int i = from.in_block();
    if constexpr (kDType == DType::kQ4_1) return Half(block[4 + i % 16], i / 16);
    if constexpr (kDType == DType::kQ5_1) {
      return Half(block[8 + i % 16], i / 16) | (block[4 + i / 8] >> (i % 8) & 1) << 4;
    }
    if constexpr (kDType == DType::kQ4K) return Half(block[16 + i / 64 * 32 + i % 32], i / 32 % 2);
    if constexpr (kDType == DType::kQ5K) {
      return Half(block[48 + i / 64 * 32 + i % 32], i / 32 % 2) |
             (block[16 + i % 32] >> (i / 32) & 1) << 4;
    }
    // Q6_K: halves of 128
    const int low = Half(block[i / 128 * 64 + i % 64], i / 64 % 2);
    const int high = block[128 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
    return (low | high << 4) - 32;
  }

 private:
  static int Half(int byte, int high) { return high != 0 ? byte >> 4 : byte & 15; }
  // Of 16 codes of 4 bits.
  static int Nibble(const uint8_t* codes, int i) {
    return i < 8 ? codes[i] & 15 : codes[i - 8] >> 4;
  }
  static float Larger(float a, float b) { return a > b ? a : b; }
};

// The integer back end. B: the float back end that it goes with. kFewRowsMax: up to so many
// activation rows weights are multiplied as they are read, above as tiles (measured). kTileRows:
// activation rows of a tile of many. kPanelGroups: groups whose codes PackCodes lays out in one go.
// kZero, kTileZero: what codes as Dots and PackCodes take them have to be lessened by to be
// integers (kUInt4: its zero points). BeginTiles, EndTiles: around all calls of TileDots.
struct ScalarInteger {
  using B = Scalar;
  struct Ints {
    int32_t lane[kLanes];
  };

  static constexpr int kFewRowsMax = 8;
  static constexpr int kTileRows = 2;
  static constexpr int kPanelGroups = 1;
  template <DType kDType>
  static constexpr int kZero = kDType == DType::kInt4 ? 8 : 0;
  template <DType kDType>
  static constexpr int kTileZero = kZero<kDType>;

  template <typename Fn>
  static Ints Map(const Fn& fn) {
    Ints out;
    for (int i = 0; i < kLanes; ++i) out.lane[i] = fn(i);
    return out;
  }
  static void BeginTiles() {}
  static void EndTiles() {}

  static Ints Set(int32_t value) {
    return Map([&](int) { return value; });
  }
  static Ints Load(const int32_t* from) {
    return Map([&](int i) { return from[i]; });
  }
  // 16 bytes without a sign.
  static Ints Widen(const uint8_t* from) {
    return Map([&](int i) { return int32_t{from[i]}; });
  }
  // E8m0Half() of 16 bytes.
  static Scalar::Vec TwoTo(const uint8_t* from) {
    return Scalar::Map([&](int i) { return E8m0Half<Scalar>(from[i]); });
  }
  static Ints Add(const Ints& a, const Ints& b) {
    return Map([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static Ints Sub(const Ints& a, const Ints& b) {
    return Map([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static Ints Mul(const Ints& a, const Ints& b) {
    return Map([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static Scalar::Vec ToFloats(const Ints& a) {
    return Scalar::Map([&](int i) { return static_cast<float>(a.lane[i]); });
  }
  // The first eight lanes and the others.
  static Scalar::Vec TwoHalves(float low, float high) {
    return Scalar::Map([&](int i) { return i < kLanes / 2 ? low : high; });
  }

  // One group of activations.
  static void Quantise(const float* x, int8_t* integers, float* step, int32_t* sum,
                       int32_t* half_sum) {
    uint32_t largest_bits = 0;
    for (int i = 0; i < kGroup; ++i) {
      const uint32_t bits = __builtin_bit_cast(uint32_t, x[i]) & 0x7fffffffu;
      if (bits > largest_bits) largest_bits = bits;
    }
    const float largest = FloatFromBits(largest_bits);
    __builtin_memset(integers, 0, kGroup);
    *sum = 0;
    *half_sum = 0;
    *step = largest_bits >= kInfinityBits ? FloatFromBits(kNanBits) : 0.0f;
    if (largest_bits >= kInfinityBits || largest < kLargestTooSmall) return;
    *step = largest / 127.0f;
    const float inverse = 127.0f / largest;
    for (int i = 0; i < kGroup; ++i) {
      constexpr float kRounder = 0x1.8p23f;  // adding it rounds to an integer
      const auto integer = static_cast<int32_t>((x[i] * inverse + kRounder) - kRounder);
      integers[i] = static_cast<int8_t>(integer);
      *sum += integer;
      if (i < kLanes) *half_sum += integer;
    }
  }
  // The order in which Dots and DotsOfRaised read the integers of a chunk where codes have 4 bits.
  static void Arrange(const int8_t* from, int8_t* to) {
    __builtin_memcpy(to, from, kChunkGroups * kGroup);
  }

  // The dot product of each group of a chunk: codes with integers, arranged where codes have 4
  // bits.
  template <DType kDType>
  static Ints Dots(const uint8_t* codes, const int8_t* integers) {
    return Map([&](int g) {
      int32_t dot = 0;
      for (int i = 0; i < kGroup; ++i) {
        dot += Code<kDType>(codes + g * kCodeBytesOfGroup<kDType>, i) * integers[g * kGroup + i];
      }
      return dot;
    });
  }
  // Codes of 4 bits as a byte for each, arranged; then the same with them.
  template <DType kDType>
  static void Raise(const uint8_t* codes, uint8_t* raised) {
    for (int i = 0; i < kChunkGroups * kGroup; ++i) {
      const uint8_t* group = codes + i / kGroup * kCodeBytesOfGroup<kDType>;
      raised[i] = static_cast<uint8_t>(Code<kDType>(group, i % kGroup));
    }
  }
  static Ints DotsOfRaised(const uint8_t* raised, const int8_t* integers) {
    return Dots<DType::kInt8>(raised, integers);
  }

  // The integers of a chunk of GGUF's blocks as bytes without a sign (Q6_K: 32 more).
  template <DType kDType>
  static void RaiseBlocks(const uint8_t* blocks, uint8_t* raised) {
    for (int i = 0; i < kChunkGroups * kGroup; ++i) {
      const int integer = Scalar::Code(BlockPointer<Scalar, kDType>{blocks, i});
      raised[i] = static_cast<uint8_t>(integer + (kDType == DType::kQ6K ? kQ6KZero : 0));
    }
  }
  // The dot product of each group of them with integers as they lie.
  static Ints DotsOfBytes(const uint8_t* raised, const int8_t* integers) {
    return Dots<DType::kInt8>(raised, integers);
  }
  // Of Q6_K, the integers less 32 and times the scale of their 16.
  static Ints ScaledDots(const uint8_t* raised, const int8_t* integers,
                         const int16_t* half_scales) {
    return Map([&](int g) {
      int32_t dot = 0;
      for (int i = g * kGroup; i < (g + 1) * kGroup; ++i) {
        dot += half_scales[i / kLanes] * (raised[i] - kQ6KZero) * integers[i];
      }
      return dot;
    });
  }

  // PackCodes where codes are bytes as they lie.
  static void PackBytes(const uint8_t* const* rows, uint8_t* to) {
    PackCodes<DType::kInt8>(rows, to);
  }
  // Lays out the codes of kPanelGroups groups of kTileWeights rows.
  template <DType kDType>
  static void PackCodes(const uint8_t* const* rows, uint8_t* to) {
    for (int r = 0; r < kTileWeights; ++r) {
      for (int i = 0; i < kGroup; ++i) {
        to[(i / 4 * kTileWeights + r) * 4 + i % 4] = static_cast<uint8_t>(Code<kDType>(rows[r], i));
      }
    }
  }
  // dots[i]: one group of activation row i, row_bytes after the one before, times those codes.
  template <DType kDType>
  static void TileDots(const uint8_t* codes, const int8_t* integers, int64_t row_bytes,
                       Ints* dots) {
    for (int i = 0; i < kTileRows; ++i) {
      dots[i] = TileDot(codes, integers + i * row_bytes, 0, kGroup);
    }
  }
  // The first half of the group, and the second.
  static void TileHalfDots(const uint8_t* codes, const int8_t* integers, int64_t row_bytes,
                           Ints* first, Ints* second) {
    for (int i = 0; i < kTileRows; ++i) {
      first[i] = TileDot(codes, integers + i * row_bytes, 0, kLanes);
      second[i] = TileDot(codes, integers + i * row_bytes, kLanes, kGroup);
    }
  }

 private:
  static Ints TileDot(const uint8_t* codes, const int8_t* integers, int begin, int end) {
    return Map([&](int r) {
      int32_t dot = 0;
      for (int k = begin; k < end; ++k) {
        const auto code = static_cast<int8_t>(codes[(k / 4 * kTileWeights + r) * 4 + k % 4]);
        dot += code * integers[k];
      }
      return dot;
    });
  }
  // Code `i` of a group.
  template <DType kDType>
  static int Code(const uint8_t* group, int i) {
    if constexpr (kDType == DType::kInt8) return static_cast<int8_t>(group[i]);
    const int byte = group[i / 16 * 8 + i % 8];
    const int code = i % 16 < 8 ? byte & 15 : byte >> 4;
    return kDType == DType::kMxfp4 ? kE2m1Twice[code] : code;
  }
};

}  // namespace

const KernelTable& ScalarKernels() {
  return kKernelTable<Scalar, &kIntegerKernels<ScalarInteger>>;
}

}  // namespace expertflow::cpu

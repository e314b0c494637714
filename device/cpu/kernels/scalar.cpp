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

 private:
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
  static int Half(int byte, int high) { return high != 0 ? byte >> 4 : byte & 15; }
  // Of 16 codes of 4 bits.
  static int Nibble(const uint8_t* codes, int i) {
    return i < 8 ? codes[i] & 15 : codes[i - 8] >> 4;
  }
  static float Larger(float a, float b) { return a > b ? a : b; }
};

}  // namespace

const KernelTable& ScalarKernels() {
  return kKernelTable<Scalar>;
}

}  // namespace expertflow::cpu

// Kernels without a matrix, as templates over a back end B (scalar.cpp shows what one consists of).
//
// REQUIRES of every function template here: instantiated only with a back end of internal linkage.
// No function that is not such a template, and nothing of the standard library: see kernel_table.h.
#pragma once

#include <cstdint>

#include "device/cpu/kernels/weights.h"

namespace expertflow::cpu {

// e^x within 2 ulp on [-87, 88], held at the ends outside; NaN stays NaN. x = n ln2 + r with
// |r| <= ln2 / 2; e^r by its Taylor series to the 7th power (relative error 5e-9); 2^n by its bits.
template <typename B>
inline typename B::Vec Exp(typename B::Vec x) {
  using V = typename B::Vec;
  // Clamping keeps NaN: Max and Min return their second operand when a comparison fails.
  x = B::Min(B::Set(88.0f), B::Max(B::Set(-87.0f), x));
  // Adding 1.5 * 2^23 rounds to an integer; the 127 more puts n + 127 into the lowest bits.
  const V magic = B::Set(12582912.0f + 127.0f);
  const V shifted = B::Fma(x, B::Set(0x1.715476p+0f), magic);
  const V n = B::Sub(shifted, magic);
  V r = B::Fma(n, B::Set(-0x1.62e4p-1f), x);
  r = B::Fma(n, B::Set(-0x1.7f7d1cp-20f), r);
  V p = B::Set(1.0f / 5040.0f);
  p = B::Fma(p, r, B::Set(1.0f / 720.0f));
  p = B::Fma(p, r, B::Set(1.0f / 120.0f));
  p = B::Fma(p, r, B::Set(1.0f / 24.0f));
  p = B::Fma(p, r, B::Set(1.0f / 6.0f));
  p = B::Fma(p, r, B::Set(0.5f));
  p = B::Fma(p, r, B::Set(1.0f));
  p = B::Fma(p, r, B::Set(1.0f));
  return B::Mul(p, B::ShiftLeft23(shifted));
}

template <typename B>
inline typename B::Vec Sigmoid(typename B::Vec x) {
  const typename B::Vec one = B::Set(1.0f);
  return B::Div(one, B::Add(one, Exp<B>(B::Sub(B::Zero(), x))));
}

// Calls full(i) for each 16 elements, then tail(i, count) for the rest.
template <typename B, typename Full, typename Tail>
inline void ForLanes(int64_t n, const Full& full, const Tail& tail) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) full(i);
  if (i < n) tail(i, static_cast<int>(n - i));
}

template <typename B>
void Convert(const void* from, DType dtype, int32_t n, float* to) {
  WithElementType<B>(dtype, [&](auto type) {
    const auto* source = static_cast<decltype(type)>(from);
    ForLanes<B>(
        n, [&](int64_t i) { B::Store(to + i, B::Load(source + i)); },
        [&](int64_t i, int count) {
          B::StorePartial(to + i, B::LoadPartial(source + i, count), count);
        });
  });
}

template <typename B>
void RmsNorm(const float* x, const void* weight, DType dtype, float eps, int32_t n, float* out) {
  using V = typename B::Vec;
  V squares = B::Zero();
  ForLanes<B>(
      n,
      [&](int64_t i) {
        const V v = B::Load(x + i);
        squares = B::Fma(v, v, squares);
      },
      [&](int64_t i, int count) {
        const V v = B::LoadPartial(x + i, count);
        squares = B::Fma(v, v, squares);
      });
  const float mean = B::Reduce(squares) / static_cast<float>(n);
  const V inverse = B::Set(1.0f / __builtin_sqrtf(mean + eps));
  WithElementType<B>(dtype, [&](auto type) {
    const auto* w = static_cast<decltype(type)>(weight);
    ForLanes<B>(
        n,
        [&](int64_t i) {
          B::Store(out + i, B::Mul(B::Mul(B::Load(x + i), inverse), B::Load(w + i)));
        },
        [&](int64_t i, int count) {
          const V v = B::Mul(B::LoadPartial(x + i, count), inverse);
          B::StorePartial(out + i, B::Mul(v, B::LoadPartial(w + i, count)), count);
        });
  });
}

template <typename B>
void SiluMul(float* gate, const float* up, int32_t n) {
  using V = typename B::Vec;
  const auto apply = [](V g, V u) { return B::Mul(B::Mul(g, Sigmoid<B>(g)), u); };
  ForLanes<B>(
      n, [&](int64_t i) { B::Store(gate + i, apply(B::Load(gate + i), B::Load(up + i))); },
      [&](int64_t i, int count) {
        const V g = B::LoadPartial(gate + i, count);
        B::StorePartial(gate + i, apply(g, B::LoadPartial(up + i, count)), count);
      });
}

template <typename B>
void ClampedSwiglu(float* gate, const float* up, float alpha, float limit, int32_t n) {
  using V = typename B::Vec;
  const V high = B::Set(limit), low = B::Set(-limit), slope = B::Set(alpha), one = B::Set(1.0f);
  // Max and Min return their second operand when a comparison fails, so that NaN stays.
  const auto apply = [&](V g, V u) {
    g = B::Min(high, g);
    u = B::Min(high, B::Max(low, u));
    return B::Mul(B::Mul(g, Sigmoid<B>(B::Mul(slope, g))), B::Add(u, one));
  };
  ForLanes<B>(
      n, [&](int64_t i) { B::Store(gate + i, apply(B::Load(gate + i), B::Load(up + i))); },
      [&](int64_t i, int count) {
        const V g = B::LoadPartial(gate + i, count);
        B::StorePartial(gate + i, apply(g, B::LoadPartial(up + i, count)), count);
      });
}

template <typename B>
void SigmoidOf(float* x, int32_t n) {
  ForLanes<B>(
      n, [&](int64_t i) { B::Store(x + i, Sigmoid<B>(B::Load(x + i))); },
      [&](int64_t i, int count) {
        B::StorePartial(x + i, Sigmoid<B>(B::LoadPartial(x + i, count)), count);
      });
}

template <typename B>
void Clamp(float* x, float limit, int64_t n) {
  using V = typename B::Vec;
  const V high = B::Set(limit), low = B::Set(-limit);
  const auto apply = [&](V v) { return B::Min(high, B::Max(low, v)); };
  ForLanes<B>(
      n, [&](int64_t i) { B::Store(x + i, apply(B::Load(x + i))); },
      [&](int64_t i, int count) {
        B::StorePartial(x + i, apply(B::LoadPartial(x + i, count)), count);
      });
}

template <typename B>
void Scale(float* x, float factor, int64_t n) {
  const typename B::Vec by = B::Set(factor);
  ForLanes<B>(
      n, [&](int64_t i) { B::Store(x + i, B::Mul(B::Load(x + i), by)); },
      [&](int64_t i, int count) {
        B::StorePartial(x + i, B::Mul(B::LoadPartial(x + i, count), by), count);
      });
}

template <typename B>
void RopeNeighbours(float* head, const float* cos, const float* sin, int32_t half) {
  for (int32_t i = 0; i < half; ++i) {
    const float a = head[2 * i], b = head[2 * i + 1];
    head[2 * i] = a * cos[i] - b * sin[i];
    head[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

template <typename B>
void Rope(float* head, const float* cos, const float* sin, int32_t half) {
  using V = typename B::Vec;
  float* low = head;
  float* high = head + half;
  ForLanes<B>(
      half,
      [&](int64_t i) {
        const V a = B::Load(low + i), b = B::Load(high + i);
        const V c = B::Load(cos + i), s = B::Load(sin + i);
        B::Store(low + i, B::Sub(B::Mul(a, c), B::Mul(b, s)));
        B::Store(high + i, B::Add(B::Mul(b, c), B::Mul(a, s)));
      },
      [&](int64_t i, int count) {
        const V a = B::LoadPartial(low + i, count), b = B::LoadPartial(high + i, count);
        const V c = B::LoadPartial(cos + i, count), s = B::LoadPartial(sin + i, count);
        B::StorePartial(low + i, B::Sub(B::Mul(a, c), B::Mul(b, s)), count);
        B::StorePartial(high + i, B::Add(B::Mul(b, c), B::Mul(a, s)), count);
      });
}

// x = e^(x - max(x)); returns the sum. REQUIRES: n > 0
template <typename B>
inline float ExpSum(float* x, int32_t n) {
  using V = typename B::Vec;
  V lanes_max = B::Set(x[0]);
  float largest = x[0];
  ForLanes<B>(
      n, [&](int64_t i) { lanes_max = B::Max(lanes_max, B::Load(x + i)); },
      [&](int64_t i, int count) {
        for (int j = 0; j < count; ++j) largest = largest > x[i + j] ? largest : x[i + j];
      });
  const float of_lanes = B::ReduceMax(lanes_max);
  largest = largest > of_lanes ? largest : of_lanes;
  const V offset = B::Set(largest);
  V sums = B::Zero();
  ForLanes<B>(
      n,
      [&](int64_t i) {
        const V e = Exp<B>(B::Sub(B::Load(x + i), offset));
        sums = B::Add(sums, e);
        B::Store(x + i, e);
      },
      [&](int64_t i, int count) {
        const V e = B::ZeroTail(Exp<B>(B::Sub(B::LoadPartial(x + i, count), offset)), count);
        sums = B::Add(sums, e);
        B::StorePartial(x + i, e, count);
      });
  return B::Reduce(sums);
}

template <typename B>
void Softmax(float* x, int32_t n) {
  const typename B::Vec sum = B::Set(ExpSum<B>(x, n));
  ForLanes<B>(
      n, [&](int64_t i) { B::Store(x + i, B::Div(B::Load(x + i), sum)); },
      [&](int64_t i, int count) {
        B::StorePartial(x + i, B::Div(B::LoadPartial(x + i, count), sum), count);
      });
}

template <typename B>
void Combine(const CombineArgs& args) {
  using V = typename B::Vec;
  V gate = B::Set(1.0f);
  if (args.shared_gate != nullptr) gate = Sigmoid<B>(B::Set(*args.shared_gate));
  const auto mix = [&](V residual, auto load) {
    V sum = B::Zero();
    for (int32_t s = 0; s < args.k; ++s) {
      const float* slot = args.expert_out + static_cast<int64_t>(s) * args.hidden;
      sum = B::Fma(B::Set(args.weights[s]), load(slot), sum);
    }
    if (args.shared_out != nullptr) sum = B::Fma(gate, load(args.shared_out), sum);
    return B::Add(residual, sum);
  };
  ForLanes<B>(
      args.hidden,
      [&](int64_t i) {
        const auto load = [i](const float* p) { return B::Load(p + i); };
        B::Store(args.residual + i, mix(load(args.residual), load));
      },
      [&](int64_t i, int count) {
        const auto load = [i, count](const float* p) { return B::LoadPartial(p + i, count); };
        B::StorePartial(args.residual + i, mix(load(args.residual), load), count);
      });
}

template <typename B>
void AddTo(float* x, const float* y, int64_t n) {
  ForLanes<B>(
      n, [&](int64_t i) { B::Store(x + i, B::Add(B::Load(x + i), B::Load(y + i))); },
      [&](int64_t i, int count) {
        B::StorePartial(x + i, B::Add(B::LoadPartial(x + i, count), B::LoadPartial(y + i, count)),
                        count);
      });
}

}  // namespace expertflow::cpu

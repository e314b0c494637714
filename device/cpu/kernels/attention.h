// Attention of the query heads that share a key/value head, as a template over a back end (see
// elementwise.h for the rules). Scores are kept for all positions, so the softmax knows its maximum
// before it sums; every sum over positions ascends and does not see the block boundaries. Keys and
// values are raised to float32 where they are read.
#pragma once

#include <cstdint>

#include "device/cpu/kernels/elementwise.h"

namespace expertflow::cpu {

// Keys or values of consecutive positions, `stride` bytes apart. At(t) points to those of the t-th.
template <typename B, typename T>
struct KvRows {
  const char* first;
  int64_t stride;
  int64_t head_dim;
  const T* At(int32_t t) const { return reinterpret_cast<const T*>(first + t * stride); }
};
template <typename B>
struct KvRows<B, int8_t> {
  const char* first;
  int64_t stride;
  int64_t head_dim;
  Int8Pointer<B> At(int32_t t) const {
    constexpr auto kGroup = static_cast<int64_t>(kQuantisedGroup);
    const char* row = first + t * stride;
    const char* scales = row + (head_dim + kGroup - 1) / kGroup * kGroup;
    return {reinterpret_cast<const uint8_t*>(row), scales, nullptr, 0};
  }
};

// scores[p] = q . key[p] for four keys from number `t` on.
template <typename B, typename Rows>
inline void FourScores(const float* q, const Rows& keys, int32_t t, int32_t head_dim,
                       float* scores) {
  using V = typename B::Vec;
  V a0 = B::Zero(), a1 = B::Zero(), a2 = B::Zero(), a3 = B::Zero();
  const auto k0 = keys.At(t), k1 = keys.At(t + 1), k2 = keys.At(t + 2), k3 = keys.At(t + 3);
  ForLanes<B>(
      head_dim,
      [&](int64_t i) {
        const V v = B::Load(q + i);
        a0 = B::Fma(v, B::Load(k0 + i), a0);
        a1 = B::Fma(v, B::Load(k1 + i), a1);
        a2 = B::Fma(v, B::Load(k2 + i), a2);
        a3 = B::Fma(v, B::Load(k3 + i), a3);
      },
      [&](int64_t i, int count) {
        const V v = B::LoadPartial(q + i, count);
        a0 = B::Fma(v, LoadTail<B>(k0 + i, count), a0);
        a1 = B::Fma(v, LoadTail<B>(k1 + i, count), a1);
        a2 = B::Fma(v, LoadTail<B>(k2 + i, count), a2);
        a3 = B::Fma(v, LoadTail<B>(k3 + i, count), a3);
      });
  B::Reduce4(a0, a1, a2, a3, scores);
}

template <typename B, typename P>
inline float OneScore(const float* q, P key, int32_t head_dim) {
  using V = typename B::Vec;
  V sum = B::Zero();
  ForLanes<B>(
      head_dim, [&](int64_t i) { sum = B::Fma(B::Load(q + i), B::Load(key + i), sum); },
      [&](int64_t i, int count) {
        sum = B::Fma(B::LoadPartial(q + i, count), LoadTail<B>(key + i, count), sum);
      });
  return B::Reduce(sum);
}

// out[0..16 N) += sum over tokens, ascending, of weights[t] * values[t][from..from + 16 N)
template <typename B, int N, typename Rows>
inline void AddValues(const float* weights, const Rows& values, int32_t from, int32_t tokens,
                      float* out) {
  using V = typename B::Vec;
  V acc[N];
#pragma GCC unroll 8
  for (int j = 0; j < N; ++j) acc[j] = B::Load(out + j * kLanes);
  for (int32_t t = 0; t < tokens; ++t) {
    const V w = B::Set(weights[t]);
    const auto row = values.At(t) + from;
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) acc[j] = B::Fma(w, B::Load(row + j * kLanes), acc[j]);
  }
#pragma GCC unroll 8
  for (int j = 0; j < N; ++j) B::Store(out + j * kLanes, acc[j]);
}

template <typename B, typename Rows>
inline void AddValuesPartial(const float* weights, const Rows& values, int32_t from, int32_t tokens,
                             int count, float* out) {
  using V = typename B::Vec;
  V acc = B::LoadPartial(out, count);
  for (int32_t t = 0; t < tokens; ++t) {
    acc = B::Fma(B::Set(weights[t]), LoadTail<B>(values.At(t) + from, count), acc);
  }
  B::StorePartial(out, acc, count);
}

// Calls body(begin, tokens, at) for the positions of each block: `at` is where they begin in the
// layer's memory, in bytes.
template <typename B, typename Body>
inline void ForBlocks(const AttentionArgs& args, const Body& body) {
  for (int32_t begin = args.first; begin < args.positions;) {
    const int32_t skipped = begin % args.block_tokens;
    const int32_t left = args.positions - begin, room = args.block_tokens - skipped;
    const int32_t tokens = left < room ? left : room;
    body(begin - args.first, tokens,
         args.block_table[begin / args.block_tokens] * args.block_stride +
             skipped * args.token_stride);
    begin += tokens;
  }
}

template <typename B, typename T>
inline void AttentionOver(const AttentionArgs& args, float* scores) {
  using Rows = KvRows<B, T>;
  const auto rows_at = [&](const void* head, int64_t at) {
    return Rows{static_cast<const char*>(head) + at, args.token_stride, args.head_dim};
  };
  const int32_t count = args.positions - args.first;
  const int32_t entries = count + (args.sinks != nullptr ? 1 : 0);
  const int64_t score_stride = static_cast<int64_t>(entries + kLanes - 1) / kLanes * kLanes;
  ForBlocks<B>(args, [&](int32_t begin, int32_t tokens, int64_t at) {
    const Rows keys = rows_at(args.keys, at);
    for (int32_t h = 0; h < args.queries; ++h) {
      const float* q = args.q + static_cast<int64_t>(h) * args.head_dim;
      float* row = scores + h * score_stride + begin;
      int32_t t = 0;
      for (; t + 4 <= tokens; t += 4) FourScores<B>(q, keys, t, args.head_dim, row + t);
      for (; t < tokens; ++t) row[t] = OneScore<B>(q, keys.At(t), args.head_dim);
      for (t = 0; t < tokens; ++t) row[t] *= args.scale;
    }
  });
  for (int32_t h = 0; h < args.queries; ++h) {
    float* out = args.out + static_cast<int64_t>(h) * args.value_dim;
    for (int32_t i = 0; i < args.value_dim; ++i) out[i] = 0;
    float* row = scores + h * score_stride;
    if (args.sinks != nullptr) row[count] = args.sinks[h];
    Softmax<B>(row, entries);
  }
  ForBlocks<B>(args, [&](int32_t begin, int32_t tokens, int64_t at) {
    const Rows values = rows_at(args.values, at);
    for (int32_t h = 0; h < args.queries; ++h) {
      const float* weights = scores + h * score_stride + begin;
      float* out = args.out + static_cast<int64_t>(h) * args.value_dim;
      int32_t i = 0;
      for (; i + 4 * kLanes <= args.value_dim; i += 4 * kLanes) {
        AddValues<B, 4>(weights, values, i, tokens, out + i);
      }
      for (; i + kLanes <= args.value_dim; i += kLanes) {
        AddValues<B, 1>(weights, values, i, tokens, out + i);
      }
      if (i < args.value_dim) {
        AddValuesPartial<B>(weights, values, i, tokens, args.value_dim - i, out + i);
      }
    }
  });
}

template <typename B>
void Attention(const AttentionArgs& args, float* scores) {
  switch (args.kv_dtype) {
    case DType::kF32: AttentionOver<B, float>(args, scores); return;
    case DType::kBF16: AttentionOver<B, BF16>(args, scores); return;
    case DType::kInt8: AttentionOver<B, int8_t>(args, scores); return;
    default: return;  // no KV cache is of these
  }
}

}  // namespace expertflow::cpu

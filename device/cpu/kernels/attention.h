// Attention of the query heads that share a key/value head, as a template over a back end (see
// elementwise.h for the rules). Scores are kept for all positions, so the softmax knows its maximum
// before it sums; every sum over positions ascends and does not see the block boundaries. Keys and
// values are raised to float32 where they are read.
#pragma once

#include <cstdint>

#include "device/cpu/kernels/linear.h"

namespace expertflow::cpu {

inline constexpr int64_t kCacheLineBytes = 64;

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

// sums[p] = the lanes of q . key[p] for four keys from number `t` on.
template <typename B, typename Rows>
inline void FourKeys(const float* q, const Rows& keys, int32_t t, int32_t head_dim,
                     typename B::Vec* sums) {
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
  sums[0] = a0;
  sums[1] = a1;
  sums[2] = a2;
  sums[3] = a3;
}

// Scores of N keys, a multiple of four, from number `t` on.
template <typename B, int N, typename Rows>
inline void ScoreKeys(const float* q, const Rows& keys, int32_t t, int32_t head_dim,
                      float* scores) {
  typename B::Vec sums[N];
#pragma GCC unroll 4
  for (int i = 0; i < N; i += 4) FourKeys<B>(q, keys, t + i, head_dim, sums + i);
  ReduceAll<B, N>(sums, scores);
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

// The weights of Q query heads for consecutive positions, and their outputs.
template <typename B>
struct HeadRows {
  const float* weights;
  int64_t weight_stride;
  float* out;
  int64_t out_stride;
};

// out[q][0..16 N) += sum over tokens, ascending, of weights[q][t] * values[t][from..from + 16 N).
// Several sums side by side, because each of them waits for its last addition.
template <typename B, int Q, int N, typename Rows>
inline void AddValues(const HeadRows<B>& heads, const Rows& values, int32_t from, int32_t tokens) {
  using V = typename B::Vec;
  V acc[Q * N];
#pragma GCC unroll 16
  for (int i = 0; i < Q * N; ++i) {
    acc[i] = B::Load(heads.out + i / N * heads.out_stride + from + i % N * kLanes);
  }
  for (int32_t t = 0; t < tokens; ++t) {
    const auto row = values.At(t) + from;
    V v[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) v[j] = B::Load(row + j * kLanes);
#pragma GCC unroll 8
    for (int q = 0; q < Q; ++q) {
      const V w = B::Set(heads.weights[q * heads.weight_stride + t]);
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) acc[q * N + j] = B::Fma(w, v[j], acc[q * N + j]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < Q * N; ++i) {
    B::Store(heads.out + i / N * heads.out_stride + from + i % N * kLanes, acc[i]);
  }
}

template <typename B, typename Rows>
inline void AddValuesPartial(const float* weights, const Rows& values, int32_t from, int32_t tokens,
                             int count, float* out) {
  using V = typename B::Vec;
  V acc = B::LoadPartial(out + from, count);
  for (int32_t t = 0; t < tokens; ++t) {
    acc = B::Fma(B::Set(weights[t]), LoadTail<B>(values.At(t) + from, count), acc);
  }
  B::StorePartial(out + from, acc, count);
}

// All of the value vectors' elements, for Q heads.
template <typename B, int Q, typename Rows>
inline void AddAllValues(const HeadRows<B>& heads, const Rows& values, int32_t tokens,
                         int32_t value_dim) {
  constexpr int kWide = Q * 4 <= B::kAccumulators ? 4 : (Q * 2 <= B::kAccumulators ? 2 : 1);
  int32_t i = 0;
  for (; i + kWide * kLanes <= value_dim; i += kWide * kLanes) {
    AddValues<B, Q, kWide>(heads, values, i, tokens);
  }
  if constexpr (kWide > 2) {
    for (; i + 2 * kLanes <= value_dim; i += 2 * kLanes) {
      AddValues<B, Q, 2>(heads, values, i, tokens);
    }
  }
  if constexpr (kWide > 1) {
    for (; i + kLanes <= value_dim; i += kLanes) AddValues<B, Q, 1>(heads, values, i, tokens);
  }
  for (int q = 0; i < value_dim && q < Q; ++q) {
    AddValuesPartial<B>(heads.weights + q * heads.weight_stride, values, i, tokens, value_dim - i,
                        heads.out + q * heads.out_stride);
  }
}

// Calls body(begin, tokens, at) for the positions of each block: `at` is where they begin in the
// layer's memory, in bytes. Meanwhile the next block is fetched, which lies anywhere: `row_bytes`
// of each of its tokens, counted from `head`.
template <typename B, typename Body>
inline void ForBlocks(const AttentionArgs& args, const void* head, int64_t row_bytes,
                      const Body& body) {
  for (int32_t begin = args.first; begin < args.positions;) {
    const int32_t skipped = begin % args.block_tokens;
    const int32_t left = args.positions - begin, room = args.block_tokens - skipped;
    const int32_t tokens = left < room ? left : room;
    const int32_t* block = args.block_table + begin / args.block_tokens;
    const int32_t ahead = left - tokens < args.block_tokens ? left - tokens : args.block_tokens;
    for (int32_t t = 0; t < ahead; ++t) {
      const char* row =
          static_cast<const char*>(head) + block[1] * args.block_stride + t * args.token_stride;
      for (int64_t i = 0; i < row_bytes; i += kCacheLineBytes) __builtin_prefetch(row + i);
    }
    body(begin - args.first, tokens, *block * args.block_stride + skipped * args.token_stride);
    begin += tokens;
  }
}

template <typename B, typename T>
inline void AttentionOver(const AttentionArgs& args, float* scores) {
  using Rows = KvRows<B, T>;
  const auto rows_at = [&](const void* head, int64_t at) {
    return Rows{static_cast<const char*>(head) + at, args.token_stride, args.head_dim};
  };
  const auto row_bytes = [](int32_t elements) {
    return static_cast<int64_t>(elements) * static_cast<int64_t>(sizeof(T));
  };
  const int32_t count = args.positions - args.first;
  const int32_t entries = count + (args.sinks != nullptr ? 1 : 0);
  const int64_t score_stride = static_cast<int64_t>(entries + kLanes - 1) / kLanes * kLanes;
  ForBlocks<B>(args, args.keys, row_bytes(args.head_dim),
               [&](int32_t begin, int32_t tokens, int64_t at) {
                 const Rows keys = rows_at(args.keys, at);
                 for (int32_t h = 0; h < args.queries; ++h) {
                   const float* q = args.q + static_cast<int64_t>(h) * args.head_dim;
                   float* row = scores + h * score_stride + begin;
                   int32_t t = 0;
                   if constexpr (B::kAccumulators >= kLanes) {
                     for (; t + kLanes <= tokens; t += kLanes) {
                       ScoreKeys<B, kLanes>(q, keys, t, args.head_dim, row + t);
                     }
                   }
                   for (; t + 4 <= tokens; t += 4)
                     ScoreKeys<B, 4>(q, keys, t, args.head_dim, row + t);
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
  ForBlocks<B>(args, args.values, row_bytes(args.value_dim),
               [&](int32_t begin, int32_t tokens, int64_t at) {
                 const Rows values = rows_at(args.values, at);
                 HeadRows<B> heads{scores + begin, score_stride, args.out, args.value_dim};
                 const auto next = [&](int32_t count) {
                   heads.weights += count * score_stride;
                   heads.out += static_cast<int64_t>(count) * args.value_dim;
                 };
                 int32_t left = args.queries;
                 for (; left >= 4; left -= 4, next(4))
                   AddAllValues<B, 4>(heads, values, tokens, args.value_dim);
                 if (left == 3) AddAllValues<B, 3>(heads, values, tokens, args.value_dim);
                 if (left == 2) AddAllValues<B, 2>(heads, values, tokens, args.value_dim);
                 if (left == 1) AddAllValues<B, 1>(heads, values, tokens, args.value_dim);
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

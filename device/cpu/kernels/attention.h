// Attention of the query heads that share a key/value head, as a template over a back end (see
// elementwise.h for the rules). Scores are kept for all positions, so the softmax knows its maximum
// before it sums; every sum over positions ascends and does not see the block boundaries.
#pragma once

#include <cstdint>

#include "device/cpu/kernels/elementwise.h"

namespace expertflow::cpu {

// scores[p] = scale * (q . key[p]) for four keys `stride` floats apart.
template <typename B>
inline void FourScores(const float* q, const float* key, int64_t stride, int32_t head_dim,
                       float* scores) {
  using V = typename B::Vec;
  V a0 = B::Zero(), a1 = B::Zero(), a2 = B::Zero(), a3 = B::Zero();
  ForLanes<B>(
      head_dim,
      [&](int64_t i) {
        const V v = B::Load(q + i);
        a0 = B::Fma(v, B::Load(key + i), a0);
        a1 = B::Fma(v, B::Load(key + stride + i), a1);
        a2 = B::Fma(v, B::Load(key + 2 * stride + i), a2);
        a3 = B::Fma(v, B::Load(key + 3 * stride + i), a3);
      },
      [&](int64_t i, int count) {
        const V v = B::LoadPartial(q + i, count);
        a0 = B::Fma(v, B::LoadPartial(key + i, count), a0);
        a1 = B::Fma(v, B::LoadPartial(key + stride + i, count), a1);
        a2 = B::Fma(v, B::LoadPartial(key + 2 * stride + i, count), a2);
        a3 = B::Fma(v, B::LoadPartial(key + 3 * stride + i, count), a3);
      });
  B::Reduce4(a0, a1, a2, a3, scores);
}

template <typename B>
inline float OneScore(const float* q, const float* key, int32_t head_dim) {
  using V = typename B::Vec;
  V sum = B::Zero();
  ForLanes<B>(
      head_dim, [&](int64_t i) { sum = B::Fma(B::Load(q + i), B::Load(key + i), sum); },
      [&](int64_t i, int count) {
        sum = B::Fma(B::LoadPartial(q + i, count), B::LoadPartial(key + i, count), sum);
      });
  return B::Reduce(sum);
}

// out[0..16 N) += sum over tokens, ascending, of weights[t] * values[t]
template <typename B, int N>
inline void AddValues(const float* weights, const float* values, int64_t stride, int32_t tokens,
                      float* out) {
  using V = typename B::Vec;
  V acc[N];
#pragma GCC unroll 8
  for (int j = 0; j < N; ++j) acc[j] = B::Load(out + j * kLanes);
  for (int32_t t = 0; t < tokens; ++t) {
    const V w = B::Set(weights[t]);
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) acc[j] = B::Fma(w, B::Load(values + j * kLanes), acc[j]);
    values += stride;
  }
#pragma GCC unroll 8
  for (int j = 0; j < N; ++j) B::Store(out + j * kLanes, acc[j]);
}

template <typename B>
inline void AddValuesPartial(const float* weights, const float* values, int64_t stride,
                             int32_t tokens, int count, float* out) {
  using V = typename B::Vec;
  V acc = B::LoadPartial(out, count);
  for (int32_t t = 0; t < tokens; ++t) {
    acc = B::Fma(B::Set(weights[t]), B::LoadPartial(values, count), acc);
    values += stride;
  }
  B::StorePartial(out, acc, count);
}

// Calls body(begin, tokens, at) for the positions of each block: `at` is where they begin in the
// layer's memory, in floats.
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

template <typename B>
void Attention(const AttentionArgs& args, float* scores) {
  const int32_t count = args.positions - args.first;
  const int32_t entries = count + (args.sinks != nullptr ? 1 : 0);
  const int64_t score_stride = static_cast<int64_t>(entries + kLanes - 1) / kLanes * kLanes;
  ForBlocks<B>(args, [&](int32_t begin, int32_t tokens, int64_t at) {
    const float* keys = args.keys + at;
    for (int32_t h = 0; h < args.queries; ++h) {
      const float* q = args.q + static_cast<int64_t>(h) * args.head_dim;
      float* row = scores + h * score_stride + begin;
      int32_t t = 0;
      for (; t + 4 <= tokens; t += 4) {
        FourScores<B>(q, keys + t * args.token_stride, args.token_stride, args.head_dim, row + t);
      }
      for (; t < tokens; ++t) {
        row[t] = OneScore<B>(q, keys + t * args.token_stride, args.head_dim);
      }
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
    const float* values = args.values + at;
    for (int32_t h = 0; h < args.queries; ++h) {
      const float* weights = scores + h * score_stride + begin;
      float* out = args.out + static_cast<int64_t>(h) * args.value_dim;
      int32_t i = 0;
      for (; i + 4 * kLanes <= args.value_dim; i += 4 * kLanes) {
        AddValues<B, 4>(weights, values + i, args.token_stride, tokens, out + i);
      }
      for (; i + kLanes <= args.value_dim; i += kLanes) {
        AddValues<B, 1>(weights, values + i, args.token_stride, tokens, out + i);
      }
      if (i < args.value_dim) {
        AddValuesPartial<B>(weights, values + i, args.token_stride, tokens, args.value_dim - i,
                            out + i);
      }
    }
  });
}

}  // namespace expertflow::cpu

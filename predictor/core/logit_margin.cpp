#include "predictor/core/logit_margin.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/wide.h"

namespace expertflow {

namespace {

// A whole number for each number, in the same order: quick to compare, many at a time.
int32_t OrderOf(float value) {
  const auto bits = std::bit_cast<int32_t>(value);
  return bits < 0 ? bits ^ INT32_MAX : bits;
}

float ValueOf(int32_t order) {
  return std::bit_cast<float>(order < 0 ? order ^ INT32_MAX : order);
}

// Of the numbers in order: the largest below `edge`, and how many are `edge`.
struct Below {
  int32_t largest = INT32_MIN;
  int32_t at_edge = 0;
};

// Several numbers of one register.
constexpr size_t kLanes = 8;
using Lanes = int32_t __attribute__((vector_size(kLanes * sizeof(int32_t))));

EXPERTFLOW_WIDE void FindBelow(const float* values, size_t n, int32_t edge, Below* below) {
  Lanes largest = Lanes{} + INT32_MIN;
  Lanes at_edge = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Lanes bits;
    std::memcpy(&bits, values + i, sizeof(bits));
    const Lanes order = bits ^ ((bits >> 31) & INT32_MAX);  // OrderOf()
    const Lanes lower = order < edge ? order : Lanes{} + INT32_MIN;
    largest = lower > largest ? lower : largest;
    at_edge -= order == edge;  // true is -1
  }
  for (size_t lane = 0; lane < kLanes; ++lane) {
    below->largest = std::max(below->largest, largest[lane]);
    below->at_edge += at_edge[lane];
  }
  for (; i < n; ++i) {
    const int32_t order = OrderOf(values[i]);
    if (order < edge) below->largest = std::max(below->largest, order);
    below->at_edge += order == edge ? 1 : 0;
  }
}

}  // namespace

// From the largest down, a pass over all for each: of few, that is quicker than to keep the largest
// in order, whose branches nobody can foresee.
float LogitEdge(const float* logits, int32_t n, int32_t k) {
  int32_t edge = INT32_MAX;
  int32_t from = 0;  // so many are at the edge or above
  for (;;) {
    Below below;
    FindBelow(logits, static_cast<size_t>(n), edge, &below);
    from += below.at_edge;
    if (from > k) return (ValueOf(edge) + ValueOf(edge)) / 2;
    if (from == k) return (ValueOf(edge) + ValueOf(below.largest)) / 2;
    edge = below.largest;
  }
}

float LogitDeviation(const float* logits, int32_t n) {
  double sum = 0;
  double squares = 0;
  for (int32_t e = 0; e < n; ++e) {
    sum += logits[e];
    squares += static_cast<double>(logits[e]) * logits[e];
  }
  const double mean = sum / n;
  return static_cast<float>(std::sqrt(std::max(squares / n - mean * mean, 0.0)));
}

}  // namespace expertflow

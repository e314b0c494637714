#include "sim/measured_times.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

namespace expertflow {
namespace {

int64_t Rounded(double ns) {
  return std::llround(std::max(ns, 0.0));
}

template <size_t kCosts>
struct Sample {
  std::array<double, kCosts> counts = {};
  double ns = 0;
};

template <size_t kCosts>
struct NormalEquations {
  std::array<std::array<double, kCosts>, kCosts> matrix = {};
  std::array<double, kCosts> right = {};
};

// By elimination, the variables of `used` alone; the others are 0. None: not determined.
template <size_t kCosts>
std::optional<std::array<double, kCosts>> Solve(NormalEquations<kCosts> equations,
                                                const std::array<bool, kCosts>& used) {
  auto& [a, b] = equations;
  for (size_t i = 0; i < kCosts; ++i) {
    if (used[i]) continue;
    for (size_t j = 0; j < kCosts; ++j) a[i][j] = a[j][i] = 0;
    a[i][i] = 1;
    b[i] = 0;
  }
  for (size_t i = 0; i < kCosts; ++i) {
    if (std::abs(a[i][i]) < 1e-9) return std::nullopt;
    for (size_t r = i + 1; r < kCosts; ++r) {
      const double factor = a[r][i] / a[i][i];
      for (size_t c = i; c < kCosts; ++c) a[r][c] -= factor * a[i][c];
      b[r] -= factor * b[i];
    }
  }
  for (size_t i = kCosts; i-- > 0;) {
    for (size_t c = i + 1; c < kCosts; ++c) b[i] -= a[i][c] * b[c];
    b[i] /= a[i][i];
  }
  return b;
}

// No cost is negative: the most negative one is taken out until none is.
template <size_t kCosts>
std::optional<std::array<double, kCosts>> SolveNonNegative(
    const NormalEquations<kCosts>& equations) {
  std::array<bool, kCosts> used;
  used.fill(true);
  while (true) {
    const auto costs = Solve(equations, used);
    if (!costs) return std::nullopt;
    const auto least = std::min_element(costs->begin(), costs->end());
    if (*least >= 0) return costs;
    used[static_cast<size_t>(least - costs->begin())] = false;
  }
}

// Least absolute relative deviations by reweighted least squares.
template <size_t kCosts>
Result<std::array<double, kCosts>> Fit(std::span<const Sample<kCosts>> samples, const char* what) {
  constexpr int kRounds = 40;
  constexpr double kExact = 0.001;  // relative deviations below this count alike
  std::array<double, kCosts> costs = {};
  for (int round = 0; round < kRounds; ++round) {
    NormalEquations<kCosts> equations;
    auto& [normal, right] = equations;
    for (const Sample<kCosts>& sample : samples) {
      double expected = 0;
      for (size_t i = 0; i < kCosts; ++i) expected += costs[i] * sample.counts[i];
      const double scale = std::max(round == 0 ? sample.ns : expected, 1.0);
      const double off = round == 0 ? 1 : std::abs(sample.ns - expected) / scale;
      const double weight = 1 / (scale * scale * std::max(off, kExact));
      for (size_t i = 0; i < kCosts; ++i) {
        for (size_t j = 0; j < kCosts; ++j) {
          normal[i][j] += weight * sample.counts[i] * sample.counts[j];
        }
        right[i] += weight * sample.counts[i] * sample.ns;
      }
    }
    // Scaled to a unit diagonal, so that "singular" has a size.
    std::array<double, kCosts> unit = {};
    for (size_t i = 0; i < kCosts; ++i) {
      if (!(normal[i][i] > 0)) return InvalidArgument(std::string("no samples for ") + what);
      unit[i] = std::sqrt(normal[i][i]);
    }
    for (size_t i = 0; i < kCosts; ++i) {
      for (size_t j = 0; j < kCosts; ++j) normal[i][j] /= unit[i] * unit[j];
      right[i] /= unit[i];
    }
    const auto scaled = SolveNonNegative(equations);
    if (!scaled) {
      return InvalidArgument(std::string("the samples do not tell apart what ") + what +
                             " consists of");
    }
    for (size_t i = 0; i < kCosts; ++i) costs[i] = (*scaled)[i] / unit[i];
  }
  return costs;
}

}  // namespace

int64_t MeasuredTimes::BeforeExpertsNs(int32_t layer, int32_t rows, int64_t context) const {
  return Rounded((layer == 0 ? costs_.step_begin : 0) + costs_.layer + costs_.layer_row * rows +
                 costs_.layer_context_token * static_cast<double>(context));
}

int64_t MeasuredTimes::ExpertsNs(int32_t /*layer*/, int32_t experts, int32_t rows) const {
  return Rounded(costs_.experts + costs_.expert * experts + costs_.expert_row * rows);
}

int64_t MeasuredTimes::StepEndNs(int32_t rows) const {
  return Rounded(costs_.step_end + costs_.step_end_row * rows);
}

Result<MeasuredCosts> FitCosts(std::span<const MeasuredLayer> layers,
                               std::span<const MeasuredStepEnd> ends, const MeasuredCopy& copy) {
  std::vector<Sample<4>> before;
  std::vector<Sample<6>> inside;
  for (const MeasuredLayer& l : layers) {
    before.push_back(
        {{l.layer == 0 ? 1.0 : 0.0, 1, static_cast<double>(l.rows), static_cast<double>(l.context)},
         static_cast<double>(l.before_ns)});
    inside.push_back({{1, static_cast<double>(l.runs), static_cast<double>(l.experts),
                       static_cast<double>(l.pairs), static_cast<double>(l.chunks),
                       static_cast<double>(l.ranked)},
                      static_cast<double>(l.inside_ns)});
  }
  std::vector<Sample<2>> end;
  for (const MeasuredStepEnd& e : ends) {
    end.push_back({{1, static_cast<double>(e.sampled)}, static_cast<double>(e.ns)});
  }
  ASSIGN_OR_RETURN(const auto layer_costs, Fit<4>(before, "the time before the experts"));
  ASSIGN_OR_RETURN(const auto expert_costs, Fit<6>(inside, "the time of the experts"));
  ASSIGN_OR_RETURN(const auto end_costs, Fit<2>(end, "the end of a step"));
  MeasuredCosts costs;
  costs.step_begin = layer_costs[0];
  // What the policies take comes before the experts, too.
  costs.layer = layer_costs[1] + expert_costs[0];
  costs.layer_row = layer_costs[2];
  costs.layer_context_token = layer_costs[3];
  costs.experts = expert_costs[1];
  costs.expert = expert_costs[2];
  costs.expert_row = expert_costs[3];
  costs.chunk_prepare = copy.prepare;
  costs.chunk_start = copy.start;
  costs.chunk_copy = copy.copy;
  costs.arrival = std::max(expert_costs[4] - copy.prepare - copy.start, 0.0);
  costs.ranked_slot = std::max(expert_costs[5], 0.0);
  costs.step_end = end_costs[0];
  costs.step_end_row = end_costs[1];
  return costs;
}

}  // namespace expertflow

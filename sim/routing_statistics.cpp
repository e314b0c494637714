#include "sim/routing_statistics.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

namespace expertflow {
namespace {

constexpr size_t kTokensLeast = 32;
constexpr size_t kTokensMost = 256;
constexpr size_t kSequencesMost = 64;
constexpr int kRounds = 4;  // of fitting one setting after the other
constexpr int kHalvings = 8;

// Of counts that it sorts.
double QuarterShare(std::vector<uint32_t>& counts) {
  std::sort(counts.begin(), counts.end(), std::greater<>());
  const auto quarter = static_cast<ptrdiff_t>((counts.size() + 3) / 4);
  const auto most = std::accumulate(counts.begin(), counts.begin() + quarter, uint64_t{0});
  const auto all = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  return all == 0 ? 0 : static_cast<double>(most) / static_cast<double>(all);
}

// The first `tokens` tokens of as many sequences as have them.
RoutingTrace CutTo(const RoutingTrace& trace, size_t tokens) {
  RoutingTrace cut;
  cut.experts = trace.experts;
  cut.top_k = trace.top_k;
  const size_t row = trace.experts.size() * static_cast<size_t>(trace.top_k);
  for (const RoutedSequence& sequence : trace.sequences) {
    if (sequence.rows < tokens || cut.sequences.size() == kSequencesMost) continue;
    cut.sequences.push_back({cut.sequences.size() * tokens, tokens});
    const auto begin = trace.chosen.begin() + static_cast<ptrdiff_t>(sequence.first * row);
    cut.chosen.insert(cut.chosen.end(), begin, begin + static_cast<ptrdiff_t>(tokens * row));
  }
  return cut;
}

// As long as half of the sequences are, of those that are long enough at all.
size_t TypicalTokens(const RoutingTrace& trace) {
  std::vector<size_t> lengths;
  for (const RoutedSequence& sequence : trace.sequences) {
    if (sequence.rows >= kTokensLeast) lengths.push_back(sequence.rows);
  }
  if (lengths.size() < 2) return 0;
  std::sort(lengths.begin(), lengths.end());
  return std::min(lengths[(lengths.size() - 1) / 2], kTokensMost);
}

// Where `reached`, which rises with the setting, comes to `wanted`.
double Bisect(double low, double high, double wanted,
              const std::function<double(double)>& reached) {
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (reached(middle) < wanted ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace

RoutingStatistics MeasureRouting(const RoutingTrace& trace) {
  RoutingStatistics sums;
  uint64_t followed = 0;  // tokens with one before them
  uint64_t tokens = 0;
  const auto k = static_cast<double>(trace.top_k);
  for (int32_t layer = 0; layer < trace.layers(); ++layer) {
    const auto experts = static_cast<size_t>(trace.experts[static_cast<size_t>(layer)]);
    std::vector<uint32_t> common(experts);
    for (const RoutedSequence& sequence : trace.sequences) {
      std::vector<uint32_t> own(experts);
      for (size_t row = sequence.first; row < sequence.first + sequence.rows; ++row) {
        const auto chosen = trace.ChosenAt(row, layer);
        for (const uint16_t expert : chosen) {
          if (expert >= experts) continue;
          ++own[expert];
          ++common[expert];
          if (row == sequence.first) continue;
          const auto before = trace.ChosenAt(row - 1, layer);
          sums.repeated += std::count(before.begin(), before.end(), expert) > 0 ? 1 : 0;
        }
      }
      followed += sequence.rows - 1;
      tokens += sequence.rows;
      sums.sequence_quarter += QuarterShare(own) * static_cast<double>(sequence.rows);
    }
    sums.common_quarter += QuarterShare(common);
  }
  const auto mean = [](double sum, double count) { return count == 0 ? 0 : sum / count; };
  return {.repeated = mean(sums.repeated, static_cast<double>(followed) * k),
          .sequence_quarter = mean(sums.sequence_quarter, static_cast<double>(tokens)),
          .common_quarter = mean(sums.common_quarter, trace.layers())};
}

Result<FittedRouting> FitRouting(const RoutingTrace& recorded) {
  const size_t tokens = TypicalTokens(recorded);
  if (tokens == 0) {
    return InvalidArgument("two sequences of 32 tokens are needed to say what a routing is like");
  }
  const RoutingTrace part = CutTo(recorded, tokens);
  FittedRouting fitted;
  fitted.recorded = MeasureRouting(part);
  SyntheticRouting draws;
  draws.experts = part.experts;
  draws.top_k = part.top_k;
  draws.sequences = static_cast<int32_t>(part.sequences.size());
  draws.tokens = static_cast<int32_t>(tokens);
  const auto drawn = [&] { return MeasureRouting(SynthesizeRouting(draws)); };
  for (int round = 0; round < kRounds; ++round) {
    draws.persistence = Bisect(0, 1, fitted.recorded.repeated, [&](double persistence) {
      draws.persistence = persistence;
      return drawn().repeated;
    });
    draws.skew = Bisect(0, 4, fitted.recorded.sequence_quarter, [&](double skew) {
      draws.skew = skew;
      return drawn().sequence_quarter;
    });
    draws.common = Bisect(0, 1, fitted.recorded.common_quarter, [&](double common) {
      draws.common = common;
      return drawn().common_quarter;
    });
  }
  fitted.drawn = drawn();
  fitted.skew = draws.skew;
  fitted.common = draws.common;
  fitted.persistence = draws.persistence;
  return fitted;
}

}  // namespace expertflow

#include "sim/expert_use.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace expertflow {
namespace {

struct Pair {
  uint64_t together = 0;
  int32_t a = 0;  // < b
  int32_t b = 0;
};

// The pairs that were used together at all, most often first.
std::vector<Pair> PairsOf(const LayerUse& use) {
  const size_t n = use.experts();
  std::vector<Pair> pairs;
  for (size_t a = 0; a < n; ++a) {
    for (size_t b = a + 1; b < n; ++b) {
      const uint64_t together = use.together[a * n + b];
      if (together == 0) continue;
      pairs.push_back({together, static_cast<int32_t>(a), static_cast<int32_t>(b)});
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const Pair& x, const Pair& y) { return x.together > y.together; });
  return pairs;
}

bool IsEnd(const std::vector<int32_t>& chain, int32_t expert) {
  return chain.front() == expert || chain.back() == expert;
}

// Chains of experts; each expert is in one.
class Chains {
 public:
  explicit Chains(size_t experts) : chains_(experts), of_(experts) {
    for (size_t e = 0; e < experts; ++e) {
      chains_[e] = {static_cast<int32_t>(e)};
      of_[e] = e;
    }
  }

  // Where both are ends of different chains.
  void Join(int32_t a, int32_t b) {
    const size_t first = of_[static_cast<size_t>(a)], second = of_[static_cast<size_t>(b)];
    std::vector<int32_t>&x = chains_[first], &y = chains_[second];
    if (first == second || !IsEnd(x, a) || !IsEnd(y, b)) return;
    if (x.back() != a) std::reverse(x.begin(), x.end());
    if (y.front() != b) std::reverse(y.begin(), y.end());
    for (const int32_t expert : y) of_[static_cast<size_t>(expert)] = first;
    x.insert(x.end(), y.begin(), y.end());
    y.clear();
  }

  const std::vector<std::vector<int32_t>>& chains() const { return chains_; }

 private:
  std::vector<std::vector<int32_t>> chains_;  // empty: joined to another
  std::vector<size_t> of_;                    // an expert's chain
};

}  // namespace

LayerUse CountUse(const RoutingTrace& trace, int32_t layer) {
  const auto n = static_cast<size_t>(trace.experts[static_cast<size_t>(layer)]);
  LayerUse use;
  use.uses.resize(n);
  use.together.resize(n * n);
  for (size_t row = 0; row < trace.rows(); ++row) {
    const auto chosen = trace.ChosenAt(row, layer);
    for (const uint16_t a : chosen) {
      ++use.uses[a];
      for (const uint16_t b : chosen) {
        if (a != b) ++use.together[a * n + b];
      }
    }
  }
  return use;
}

std::vector<int32_t> OrderByCoActivation(const LayerUse& use) {
  Chains joined(use.experts());
  for (const Pair& pair : PairsOf(use)) joined.Join(pair.a, pair.b);
  std::vector<std::pair<uint64_t, size_t>> by_uses;
  for (size_t c = 0; c < joined.chains().size(); ++c) {
    uint64_t uses = 0;
    for (const int32_t expert : joined.chains()[c]) uses += use.uses[static_cast<size_t>(expert)];
    by_uses.emplace_back(uses, c);
  }
  std::stable_sort(by_uses.begin(), by_uses.end(),
                   [](const auto& x, const auto& y) { return x.first > y.first; });
  std::vector<int32_t> order;
  for (const auto& [uses, c] : by_uses) {
    order.insert(order.end(), joined.chains()[c].begin(), joined.chains()[c].end());
  }
  return order;
}

std::vector<std::vector<bool>> MostUsed(const std::vector<LayerUse>& layers, size_t count) {
  struct Expert {
    uint64_t uses;
    size_t layer, expert;
  };
  std::vector<Expert> experts;
  std::vector<std::vector<bool>> chosen(layers.size());
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    chosen[layer].resize(layers[layer].experts());
    for (size_t e = 0; e < layers[layer].experts(); ++e) {
      experts.push_back({layers[layer].uses[e], layer, e});
    }
  }
  std::stable_sort(experts.begin(), experts.end(),
                   [](const Expert& x, const Expert& y) { return x.uses > y.uses; });
  experts.resize(std::min(count, experts.size()));
  for (const Expert& expert : experts) chosen[expert.layer][expert.expert] = true;
  return chosen;
}

}  // namespace expertflow

#include "predictor/forest_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "predictor/parallel_for.h"

namespace expertflow {
namespace {

constexpr size_t kThresholdsMax = 255;
constexpr size_t kThresholdRows = 100'000;  // that thresholds are taken from

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u) {}
  uint64_t Next() {  // splitmix64
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double Share() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  size_t Below(size_t n) { return static_cast<size_t>(Next() % n); }

 private:
  uint64_t state_;
};

// The rows as numbers of the intervals between a feature's thresholds.
struct Binned {
  size_t features = 0;
  std::vector<std::vector<float>> thresholds;  // by feature, ascending
  std::vector<uint8_t> bins;                   // [rows, features]: thresholds below the value
};

Binned Bin(const ForestRows& rows, int32_t threads) {
  Binned binned;
  binned.features = static_cast<size_t>(rows.features);
  binned.thresholds.resize(binned.features);
  binned.bins.resize(rows.values.size());
  const size_t step = std::max<size_t>(1, rows.rows() / kThresholdRows);
  ParallelFor(threads, binned.features, [&](size_t f) {
    std::vector<float> sample;
    for (size_t r = 0; r < rows.rows(); r += step) {
      sample.push_back(rows.values[r * binned.features + f]);
    }
    std::sort(sample.begin(), sample.end());
    std::vector<float>& thresholds = binned.thresholds[f];
    // Between neighbours of the sample that differ: all of them, or those at even shares of it.
    std::vector<float> distinct = sample;
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    const bool few = distinct.size() <= kThresholdsMax;
    const std::vector<float>& from = few ? distinct : sample;
    const size_t count = few ? distinct.size() - 1 : kThresholdsMax;
    for (size_t t = 0; t < count; ++t) {
      const size_t at = few ? t : (t + 1) * from.size() / (count + 1) - 1;
      const float threshold = few ? from[at] + (from[at + 1] - from[at]) / 2 : from[at];
      if (thresholds.empty() || threshold > thresholds.back()) thresholds.push_back(threshold);
    }
    for (size_t r = 0; r < rows.rows(); ++r) {
      const float value = rows.values[r * binned.features + f];
      const auto bin = std::lower_bound(thresholds.begin(), thresholds.end(), value);
      binned.bins[r * binned.features + f] = static_cast<uint8_t>(bin - thresholds.begin());
    }
  });
  return binned;
}

struct Split {
  double gain = 0;
  uint8_t feature = 0;
  uint8_t bin = 0;  // rows with a bin up to this go left
};

class TreeFit {
 public:
  TreeFit(const ForestRows& rows, const Binned& binned, const ForestFitOptions& options,
          size_t tree, RandomForest* forest)
      : rows_(rows),
        binned_(binned),
        options_(options),
        random_(options.seed + tree * 1'000'003),
        feature_(forest->feature.data() + tree * forest->nodes()),
        threshold_(forest->threshold.data() + tree * forest->nodes()),
        leaf_(forest->leaf.data() + tree * forest->leaves()),
        nodes_(forest->nodes()),
        order_(binned.features),
        sum_(kThresholdsMax + 1),
        count_(kThresholdsMax + 1) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    for (size_t r = 0; r < rows.rows(); ++r) {
      if (random_.Share() < options.rows_share) list_.push_back(static_cast<uint32_t>(r));
    }
    if (list_.empty()) list_.push_back(0);
    Grow(0, 0, list_.size(), 0);
  }

 private:
  double SumOf(size_t begin, size_t end) const {
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += rows_.target[list_[i]];
    return sum;
  }

  // `mean`: of the parent, for a node without rows.
  void Grow(size_t node, size_t begin, size_t end, float mean) {
    const double sum = SumOf(begin, end);
    if (end > begin) mean = static_cast<float>(sum / static_cast<double>(end - begin));
    if (node >= nodes_) {
      leaf_[node - nodes_] = mean;
      return;
    }
    const Split split = BestSplit(begin, end, sum);
    size_t middle = end;  // without a split all go left, and right is a copy of it
    feature_[node] = split.feature;
    threshold_[node] = std::numeric_limits<float>::infinity();
    if (split.gain > 0) {
      threshold_[node] = binned_.thresholds[split.feature][split.bin];
      const auto first = list_.begin();
      middle = static_cast<size_t>(
          std::stable_partition(
              first + static_cast<ptrdiff_t>(begin), first + static_cast<ptrdiff_t>(end),
              [&](uint32_t r) {
                return binned_.bins[r * binned_.features + split.feature] <= split.bin;
              }) -
          first);
    }
    Grow(2 * node + 1, begin, middle, mean);
    Grow(2 * node + 2, middle, end, mean);
  }

  Split BestSplit(size_t begin, size_t end, double sum) {
    Split best;
    const size_t n = end - begin;
    if (n < 2 * options_.leaf_rows_min) return best;
    const double alone = sum * sum / static_cast<double>(n);
    const size_t tried =
        std::min(binned_.features, static_cast<size_t>(std::max(options_.tried_features, 1)));
    for (size_t t = 0; t < tried; ++t) {
      std::swap(order_[t], order_[t + random_.Below(binned_.features - t)]);
      const size_t feature = order_[t];
      const size_t bins = binned_.thresholds[feature].size() + 1;
      std::fill_n(sum_.begin(), bins, 0.0);
      std::fill_n(count_.begin(), bins, size_t{0});
      for (size_t i = begin; i < end; ++i) {
        const uint32_t row = list_[i];
        const uint8_t bin = binned_.bins[row * binned_.features + feature];
        sum_[bin] += rows_.target[row];
        ++count_[bin];
      }
      double left_sum = 0;
      size_t left = 0;
      for (size_t bin = 0; bin + 1 < bins; ++bin) {
        left_sum += sum_[bin];
        left += count_[bin];
        if (left < options_.leaf_rows_min) continue;
        if (n - left < options_.leaf_rows_min) break;
        const double right_sum = sum - left_sum;
        const double gain = left_sum * left_sum / static_cast<double>(left) +
                            right_sum * right_sum / static_cast<double>(n - left) - alone;
        if (gain > best.gain) {
          best = {gain, static_cast<uint8_t>(feature), static_cast<uint8_t>(bin)};
        }
      }
    }
    return best;
  }

  const ForestRows& rows_;
  const Binned& binned_;
  const ForestFitOptions& options_;
  Random random_;
  uint8_t* const feature_;
  float* const threshold_;
  float* const leaf_;
  const size_t nodes_;
  std::vector<uint32_t> list_;  // rows of the tree; a node has a range of it
  std::vector<size_t> order_;
  std::vector<double> sum_;
  std::vector<size_t> count_;
};

}  // namespace

Result<RandomForest> FitForest(const ForestRows& rows, const ForestFitOptions& options) {
  const auto features = static_cast<size_t>(std::max(rows.features, 0));
  if (rows.rows() == 0 || features == 0 || features > kForestFeaturesMax ||
      rows.values.size() != rows.rows() * features || rows.rows() > UINT32_MAX) {
    return InvalidArgument("forest: no rows, or sizes that do not agree");
  }
  if (options.trees < 1 || options.trees > kForestTreesMax || options.depth < 1 ||
      options.depth > kForestDepthMax) {
    return InvalidArgument("forest: trees or depth out of range");
  }
  const auto finite = [](float value) { return std::isfinite(value); };
  if (!std::all_of(rows.values.begin(), rows.values.end(), finite) ||
      !std::all_of(rows.target.begin(), rows.target.end(), finite)) {
    return InvalidArgument("forest: a value that is no number");
  }
  const Binned binned = Bin(rows, options.threads);
  RandomForest forest;
  forest.trees = options.trees;
  forest.depth = options.depth;
  forest.features = rows.features;
  const auto trees = static_cast<size_t>(options.trees);
  forest.feature.resize(trees * forest.nodes());
  forest.threshold.resize(trees * forest.nodes());
  forest.leaf.resize(trees * forest.leaves());
  ParallelFor(options.threads, trees,
              [&](size_t tree) { TreeFit(rows, binned, options, tree, &forest); });
  return forest;
}

}  // namespace expertflow

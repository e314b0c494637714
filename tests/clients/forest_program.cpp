// For forest_sklearn.py: fits a forest to rows and predicts others. Standard input: the numbers of
// features, rows to fit and rows to predict, then the rows, the target last (0 where it is asked
// for). Standard output: a prediction a line.
#include <cstdio>
#include <vector>

#include "predictor/forest_fit.h"

int main() {
  size_t features = 0;
  size_t fit = 0;
  size_t ask = 0;
  if (std::scanf("%zu %zu %zu", &features, &fit, &ask) != 3) return 2;
  expertflow::ForestRows rows;
  rows.features = static_cast<int32_t>(features);
  std::vector<float> asked(features * ask);
  for (size_t r = 0; r < fit + ask; ++r) {
    for (size_t f = 0; f <= features; ++f) {
      float value = 0;
      if (std::scanf("%f", &value) != 1) return 2;
      if (r < fit) {
        (f < features ? rows.values : rows.target).push_back(value);
      } else if (f < features) {
        asked[(r - fit) * features + f] = value;
      }
    }
  }
  const auto forest = expertflow::FitForest(rows, {.trees = 60,
                                                   .depth = 8,
                                                   .tried_features = 4,
                                                   .leaf_rows_min = 5,
                                                   .rows_share = 0.6,
                                                   .threads = 2});
  if (!forest.ok()) return 1;
  std::vector<float> out(ask);
  expertflow::EvaluateForest(*forest, asked.data(), features, out);
  for (const float value : out) std::printf("%.7g\n", static_cast<double>(value));
  return 0;
}

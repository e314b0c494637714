#include "predictor/core/hybrid_model.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace expertflow {
namespace {

constexpr int32_t kLayersMax = 1024;
constexpr int32_t kExpertsMax = 4096;  // of a layer
constexpr int32_t kHiddenMax = 65536;
constexpr int32_t kWidthMax = 4096;
constexpr int32_t kTopKMax = 64;

Status Wrong(const std::string& what) {
  return InvalidArgument("predictor: " + what);
}

bool Finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

Status CheckMatrix(const ByteMatrix& matrix, const char* name, size_t inputs, size_t outputs) {
  const bool fits =
      matrix.inputs >= 0 && matrix.outputs >= 0 && static_cast<size_t>(matrix.inputs) == inputs &&
      static_cast<size_t>(matrix.outputs) == outputs && matrix.weight.size() == inputs * outputs &&
      matrix.scale.size() == outputs && matrix.bias.size() == outputs;
  if (!fits) return Wrong(std::string(name) + ": wrong sizes");
  if (!Finite(matrix.scale) || !Finite(matrix.bias)) {
    return Wrong(std::string(name) + ": a number that is none");
  }
  return OkStatus();
}

Status CheckShape(const HybridModel& model) {
  const int32_t layers = model.layers();
  if (layers < 2 || layers > kLayersMax) return Wrong("2 to 1024 MoE layers");
  for (const int32_t experts : model.experts) {
    if (experts < 1 || experts > kExpertsMax) return Wrong("1 to 4096 experts a layer");
  }
  if (model.top_k < 1 || model.top_k > kTopKMax || model.hidden < 1 || model.hidden > kHiddenMax ||
      model.width < 1 || model.width > kWidthMax || model.rank < 1 || model.rank > kWidthMax) {
    return Wrong("sizes out of range");
  }
  return OkStatus();
}

Status CheckMaps(const HybridModel& model) {
  const auto layers = static_cast<size_t>(model.layers());
  const auto hidden = static_cast<size_t>(model.hidden);
  const auto width = static_cast<size_t>(model.width);
  const auto rank = static_cast<size_t>(model.rank);
  for (const ByteMatrix& anchor : model.anchor) {
    RETURN_IF_ERROR(CheckMatrix(anchor, "anchor", hidden, width));
  }
  RETURN_IF_ERROR(CheckMatrix(model.context, "context", kContextBlocks * width, rank));
  if (model.pre_gate.size() != layers) return Wrong("a pre-gate for each layer");
  for (size_t l = 0; l < layers; ++l) {
    RETURN_IF_ERROR(
        CheckMatrix(model.pre_gate[l], "pre-gate", hidden, static_cast<size_t>(model.experts[l])));
  }
  for (const std::vector<ByteMatrix>& probes : model.probe) {
    if (probes.size() != layers - 1) return Wrong("a probe for each source layer");
    for (size_t l = 0; l < probes.size(); ++l) {
      const auto source = static_cast<int32_t>(l);
      const size_t outputs =
          model.BaseOf(source + 1 + model.DistancesFrom(source)) - model.BaseOf(source + 1);
      RETURN_IF_ERROR(CheckMatrix(probes[l], "probe", hidden + rank, outputs));
    }
  }
  for (size_t kind = 0; kind < kStateKinds; ++kind) {
    for (size_t d = 0; d < kPredictDistances; ++d) {
      const float numbers[] = {model.pre_gate_fit[kind][d].slope,
                               model.pre_gate_fit[kind][d].offset, model.probe_fit[kind][d].slope,
                               model.probe_fit[kind][d].offset};
      if (!Finite(numbers)) return Wrong("a calibration that is no number");
    }
  }
  return OkStatus();
}

Status CheckTables(const HybridModel& model) {
  const size_t total = model.experts_total();
  if (model.base.size() != total || !Finite(model.base)) return Wrong("base: wrong sizes");
  if (model.coactivation.size() != model.experts.size()) return Wrong("co-activation: layers");
  for (size_t l = 0; l < model.coactivation.size(); ++l) {
    for (size_t lag = 1; lag <= kCoactivationLags; ++lag) {
      const size_t expected = lag > l ? 0
                                      : static_cast<size_t>(model.experts[l]) *
                                            static_cast<size_t>(model.experts[l - lag]);
      if (model.coactivation[l][lag - 1].size() != expected) return Wrong("co-activation: sizes");
    }
  }
  if (model.token_row.size() != model.tokens.size() ||
      model.token_count.size() != model.tokens.size() ||
      model.token_prior.size() != model.tokens.size() * total) {
    return Wrong("token prior: wrong sizes");
  }
  for (size_t i = 1; i < model.tokens.size(); ++i) {
    if (model.tokens[i - 1] >= model.tokens[i]) return Wrong("token prior: ids must ascend");
  }
  std::vector<bool> taken(model.tokens.size(), false);
  for (const uint32_t row : model.token_row) {
    if (row >= taken.size() || taken[row])
      return Wrong("token prior: a row of its own for each id");
    taken[row] = true;
  }
  return OkStatus();
}

}  // namespace

size_t HybridModel::TokenRowOf(int32_t token) const {
  const auto found = std::lower_bound(tokens.begin(), tokens.end(), token);
  if (found == tokens.end() || *found != token) return SIZE_MAX;
  return token_row[static_cast<size_t>(found - tokens.begin())];
}

size_t HybridModel::experts_total() const {
  return BaseOf(layers());
}

int32_t HybridModel::DistancesFrom(int32_t source) const {
  return std::min(kPredictDistances, layers() - 1 - source);
}

int32_t HybridModel::AnchorLayer(int32_t anchor) const {
  return anchor + 1 == kContextAnchors ? layers() - 1 : anchor * layers() / (kContextAnchors - 1);
}

size_t HybridModel::BaseOf(int32_t layer) const {
  size_t base = 0;
  for (int32_t l = 0; l < layer; ++l) base += static_cast<size_t>(experts[static_cast<size_t>(l)]);
  return base;
}

Status CheckHybridModel(const HybridModel& model) {
  RETURN_IF_ERROR(CheckShape(model));
  RETURN_IF_ERROR(CheckMaps(model));
  RETURN_IF_ERROR(CheckTables(model));
  for (const auto& [forests, features] :
       {std::pair(&model.forest, kForestOnlyFeatures),
        std::pair(&model.forest_probe, static_cast<int32_t>(kHybridFeatures))}) {
    for (const RandomForest& forest : *forests) {
      RETURN_IF_ERROR(CheckRandomForest(forest));
      if (forest.features != features) return Wrong("forest: features");
      if (forest.trees != model.forest[0].trees || forest.depth != model.forest[0].depth) {
        return Wrong("forests of different sizes");
      }
    }
  }
  return OkStatus();
}

}  // namespace expertflow

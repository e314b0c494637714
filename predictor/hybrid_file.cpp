#include "predictor/hybrid_file.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/mapped_file.h"
#include "predictor/packed_vectors.h"

namespace expertflow {
namespace {

constexpr uint64_t kPredictorMagic = 0x31444952425948;  // "HYBRID1"
constexpr uint32_t kPredictorVersion = 3;
constexpr size_t kPredictorBytesMax = size_t{1} << 30;
constexpr uint32_t kPredictorSequencesMax = 1u << 20;
constexpr uint32_t kTokensMax = 1u << 20;

struct PredictorHeader {
  uint64_t magic = kPredictorMagic;
  uint32_t version = kPredictorVersion;
  uint32_t layers = 0;
  std::array<uint8_t, 16> identity = {};
  int32_t top_k = 0;
  int32_t hidden = 0;
  int32_t width = 0;
  int32_t rank = 0;
  uint32_t sequences = 0;
  uint32_t tokens = 0;  // with a prior
  uint64_t trained_tokens = 0;
  int32_t trees = 0;
  int32_t depth = 0;
  // What the numbers mean; other sets of features are another version.
  uint8_t distances = kPredictDistances;
  uint8_t blocks = kContextBlocks;
  uint8_t lags = kCoactivationLags;
  uint8_t features = kHybridFeatures;
  uint32_t zero = 0;
  uint64_t hash = 0;  // XXH3-64 of what follows
};
static_assert(sizeof(PredictorHeader) == 88);

// Walks all parts in the order of the file: once to write, once to read.
class Writer {
 public:
  template <typename T>
  bool Vector(const std::vector<T>& values, uint64_t /*count*/) {
    AppendVector(values, &bytes);
    return true;
  }
  std::string bytes;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  template <typename T>
  bool Vector(std::vector<T>& values, uint64_t count) {
    return TakeVector(&bytes_, count, &values);
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
};

template <typename Archive, typename Matrix>
bool VisitMatrix(Archive& archive, Matrix& matrix, uint64_t inputs, uint64_t outputs) {
  return archive.Vector(matrix.weight, inputs * outputs) && archive.Vector(matrix.scale, outputs) &&
         archive.Vector(matrix.bias, outputs);
}

template <typename Archive, typename Forest>
bool VisitForest(Archive& archive, Forest& forest) {
  const auto trees = static_cast<uint64_t>(forest.trees);
  return archive.Vector(forest.feature, trees * forest.nodes()) &&
         archive.Vector(forest.threshold, trees * forest.nodes()) &&
         archive.Vector(forest.leaf, trees * forest.leaves());
}

// The matrices have their sizes already. REQUIRES: layers and sizes within bounds
template <typename Archive, typename Model>
bool VisitModel(Archive& archive, Model& model) {
  const auto visit = [&](auto& matrix) {
    return VisitMatrix(archive, matrix, static_cast<uint64_t>(matrix.inputs),
                       static_cast<uint64_t>(matrix.outputs));
  };
  for (auto& anchor : model.anchor) {
    if (!visit(anchor)) return false;
  }
  if (!visit(model.context)) return false;
  for (auto& router : model.pre_gate) {
    if (!visit(router)) return false;
  }
  for (auto& probes : model.probe) {
    for (auto& probe : probes) {
      if (!visit(probe)) return false;
    }
  }
  const uint64_t total = model.experts_total();
  for (size_t l = 0; l < model.coactivation.size(); ++l) {
    for (size_t lag = 1; lag <= std::min<size_t>(l, kCoactivationLags); ++lag) {
      const uint64_t lifts =
          static_cast<uint64_t>(model.experts[l]) * static_cast<uint64_t>(model.experts[l - lag]);
      if (!archive.Vector(model.coactivation[l][lag - 1], lifts)) return false;
    }
  }
  const uint64_t tokens = model.tokens.size();
  if (!archive.Vector(model.base, total) || !archive.Vector(model.token_row, tokens) ||
      !archive.Vector(model.token_count, tokens) ||
      !archive.Vector(model.token_prior, tokens * total)) {
    return false;
  }
  for (auto* forests : {&model.forest, &model.forest_probe}) {
    for (auto& forest : *forests) {
      if (!VisitForest(archive, forest)) return false;
    }
  }
  return true;
}

std::vector<float> Calibrations(const HybridModel& model) {
  std::vector<float> numbers;
  for (const auto* fits : {&model.pre_gate_fit, &model.probe_fit}) {
    for (const auto& kind : *fits) {
      for (const Logistic& fit : kind) {
        numbers.push_back(fit.slope);
        numbers.push_back(fit.offset);
      }
    }
  }
  return numbers;
}

void SetCalibrations(const std::vector<float>& numbers, HybridModel* model) {
  size_t at = 0;
  for (auto* fits : {&model->pre_gate_fit, &model->probe_fit}) {
    for (auto& kind : *fits) {
      for (Logistic& fit : kind) {
        fit = {numbers[at], numbers[at + 1]};
        at += 2;
      }
    }
  }
}

void SetSize(uint64_t inputs, uint64_t outputs, ByteMatrix* matrix) {
  matrix->inputs = static_cast<int32_t>(inputs);
  matrix->outputs = static_cast<int32_t>(outputs);
}

// What the header and the experts say of the sizes. False when they are out of bounds.
bool Shape(const PredictorHeader& header, HybridModel* model) {
  const auto within = [](int32_t value, int32_t max) { return value >= 1 && value <= max; };
  if (!within(header.top_k, 64) || !within(header.hidden, 65536) || !within(header.width, 4096) ||
      !within(header.rank, 4096) || !within(header.trees, kForestTreesMax) ||
      !within(header.depth, kForestDepthMax) || model->layers() < 2) {
    return false;
  }
  for (const int32_t experts : model->experts) {
    if (!within(experts, 4096)) return false;
  }
  model->top_k = header.top_k;
  model->hidden = header.hidden;
  model->width = header.width;
  model->rank = header.rank;
  const auto hidden = static_cast<uint64_t>(header.hidden);
  const auto width = static_cast<uint64_t>(header.width);
  const auto rank = static_cast<uint64_t>(header.rank);
  for (ByteMatrix& anchor : model->anchor) SetSize(hidden, width, &anchor);
  SetSize(kContextBlocks * width, rank, &model->context);
  const auto layers = static_cast<size_t>(model->layers());
  model->pre_gate.resize(layers);
  model->coactivation.resize(layers);
  for (size_t l = 0; l < layers; ++l) {
    SetSize(hidden, static_cast<uint64_t>(model->experts[l]), &model->pre_gate[l]);
  }
  for (std::vector<ByteMatrix>& probes : model->probe) {
    probes.resize(layers - 1);
    for (size_t l = 0; l < probes.size(); ++l) {
      uint64_t outputs = 0;
      const auto distances = static_cast<size_t>(model->DistancesFrom(static_cast<int32_t>(l)));
      for (size_t d = 1; d <= distances; ++d) {
        outputs += static_cast<uint64_t>(model->experts[l + d]);
      }
      SetSize(hidden + rank, outputs, &probes[l]);
    }
  }
  for (size_t kind = 0; kind < kStateKinds; ++kind) {
    for (RandomForest* forest : {&model->forest[kind], &model->forest_probe[kind]}) {
      forest->trees = header.trees;
      forest->depth = header.depth;
    }
    model->forest[kind].features = kForestOnlyFeatures;
    model->forest_probe[kind].features = kHybridFeatures;
  }
  return true;
}

}  // namespace

std::string EncodeHybrid(const HybridFile& file) {
  const HybridModel& model = file.model;
  Writer writer;
  writer.Vector(model.experts, 0);
  writer.Vector(file.trained_on, 0);
  writer.Vector(model.tokens, 0);
  writer.Vector(Calibrations(model), 0);
  VisitModel(writer, model);
  PredictorHeader header;
  header.layers = static_cast<uint32_t>(model.experts.size());
  header.identity = file.identity;
  header.top_k = model.top_k;
  header.hidden = model.hidden;
  header.width = model.width;
  header.rank = model.rank;
  header.sequences = static_cast<uint32_t>(file.trained_on.size());
  header.tokens = static_cast<uint32_t>(model.tokens.size());
  header.trained_tokens = file.trained_tokens;
  header.trees = model.forest[0].trees;
  header.depth = model.forest[0].depth;
  header.hash = XXH3_64bits(writer.bytes.data(), writer.bytes.size());
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + writer.bytes;
}

Result<HybridFile> DecodeHybrid(std::string_view bytes, const std::string& name) {
  PredictorHeader header;
  if (bytes.size() < sizeof(header)) return InvalidArgument(name + ": too short for a predictor");
  std::memcpy(&header, bytes.data(), sizeof(header));
  bytes.remove_prefix(sizeof(header));
  if (header.magic != kPredictorMagic) return InvalidArgument(name + ": not a predictor (.efp)");
  if (header.version != kPredictorVersion || header.distances != kPredictDistances ||
      header.blocks != kContextBlocks || header.lags != kCoactivationLags ||
      header.features != kHybridFeatures) {
    return InvalidArgument(fmt::format("{}: version {}; this program reads version {}. Train anew",
                                       name, header.version, kPredictorVersion));
  }
  if (header.hash != XXH3_64bits(bytes.data(), bytes.size())) {
    return InvalidArgument(name + ": damaged");
  }
  HybridFile file;
  file.identity = header.identity;
  file.trained_tokens = header.trained_tokens;
  HybridModel& model = file.model;
  Reader reader(bytes);
  std::vector<float> calibrations;
  const uint64_t numbers = 2 * 2 * kStateKinds * kPredictDistances;
  const auto wrong = [&] { return InvalidArgument(name + ": impossible sizes"); };
  if (header.layers > 1024 || header.sequences > kPredictorSequencesMax ||
      header.tokens > kTokensMax || !reader.Vector(model.experts, header.layers) ||
      !reader.Vector(file.trained_on, header.sequences) ||
      !reader.Vector(model.tokens, header.tokens) || !reader.Vector(calibrations, numbers) ||
      !Shape(header, &model) || !VisitModel(reader, model) || !reader.at_end()) {
    return wrong();
  }
  SetCalibrations(calibrations, &model);
  RETURN_IF_ERROR(CheckHybridModel(model).WithContext(name));
  return file;
}

Result<HybridFile> ReadHybrid(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadFileToString(path, kPredictorBytesMax));
  return DecodeHybrid(bytes, path);
}

}  // namespace expertflow

#include "expert_store/store_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "common/check.h"

namespace expertflow {
namespace {

bool IsPermutation(std::span<const size_t> order, size_t count) {
  std::vector<bool> seen(count, false);
  for (const size_t place : order) {
    if (place >= count || seen[place]) return false;
    seen[place] = true;
  }
  return order.size() == count;
}

// What the index can hold; the parser refuses the rest.
Status CheckPlan(const WeightPlan& plan) {
  if (plan.layers < 0 || plan.layers > kStoreLayersMax || plan.experts_per_layer < 0 ||
      plan.experts_per_layer > kStoreExpertsPerLayerMax) {
    return InvalidArgument(fmt::format("{} layers of {} experts; at most {} of {} are possible",
                                       plan.layers, plan.experts_per_layer, kStoreLayersMax,
                                       kStoreExpertsPerLayerMax));
  }
  for (const TensorSpec& spec : plan.dense) {
    if (spec.shape.size() > kStoreRankMax) {
      return InvalidArgument(fmt::format("tensor '{}' has {} dimensions; at most {} are possible",
                                         spec.name, spec.shape.size(), kStoreRankMax));
    }
  }
  const auto per_layer = static_cast<size_t>(plan.experts_per_layer);
  if (per_layer == 0 ? !plan.experts.empty() : plan.experts.size() % per_layer != 0) {
    return InvalidArgument(
        fmt::format("{} experts for layers of {}", plan.experts.size(), per_layer));
  }
  int32_t last_layer = -1;
  for (size_t i = 0; i < plan.experts.size(); ++i) {
    const ExpertSpec& spec = plan.experts[i];
    const int32_t layer = spec.key.layer.value;
    const size_t place = i % per_layer;
    if ((place == 0 ? layer <= last_layer : layer != last_layer) || layer >= plan.layers ||
        !spec.key.expert.valid() || spec.key.expert.index() != place) {
      return InvalidArgument(fmt::format("layer {} expert {} is not in its place in the plan",
                                         layer, spec.key.expert.value));
    }
    last_layer = layer;
    using Shape = std::vector<int64_t>;
    const bool matrices_fit = spec.gate.shape.size() == 2 && spec.up.shape == spec.gate.shape &&
                              spec.down.shape == Shape{spec.gate.shape[1], spec.gate.shape[0]};
    const bool biases_fit = !spec.has_biases || !matrices_fit ||
                            (spec.gate_bias.shape == Shape{spec.gate.shape[0]} &&
                             spec.up_bias.shape == spec.gate_bias.shape &&
                             spec.down_bias.shape == Shape{spec.gate.shape[1]});
    if (!matrices_fit || !biases_fit) {
      return InvalidArgument(fmt::format("layer {} expert {}: shapes gate {}, up {}, down {}",
                                         layer, spec.key.expert.value, FormatShape(spec.gate.shape),
                                         FormatShape(spec.up.shape), FormatShape(spec.down.shape)));
    }
  }
  return OkStatus();
}

StorePiece MakePiece(const TensorSpec& spec, const ModelTensors& tensors, uint64_t offset,
                     DType dtype) {
  StorePiece piece;
  piece.source = &tensors.Get(spec.source());
  piece.dtype = dtype;
  piece.offset = offset;
  uint64_t count = 1;
  for (const int64_t size : spec.shape) count *= static_cast<uint64_t>(size);
  piece.bytes = MatrixBytes(piece.dtype, count);
  piece.rows = 1;
  piece.cols = count;
  piece.col_stride = 1;
  if (!spec.slice && (piece.source->decoder || IsQuantised(dtype))) {
    piece.cols = static_cast<uint64_t>(spec.shape.back());
    piece.rows = count / piece.cols;
    piece.row_stride = piece.cols;
  }
  if (!spec.slice) return piece;
  const auto& strides = spec.slice->strides;
  piece.first = static_cast<uint64_t>(spec.slice->offset);
  piece.cols = static_cast<uint64_t>(spec.shape.back());
  piece.col_stride = static_cast<uint64_t>(strides.back());
  if (spec.shape.size() == 2) {
    piece.rows = static_cast<uint64_t>(spec.shape.front());
    piece.row_stride = static_cast<uint64_t>(strides.front());
  }
  return piece;
}

Status CheckGroups(const TensorSpec& spec, DType dtype) {
  if (spec.shape.back() % static_cast<int64_t>(GroupElements(dtype)) == 0) return OkStatus();
  return InvalidArgument(
      fmt::format("tensor '{}' of shape {}: {}: groups of {} do not divide its rows", spec.name,
                  FormatShape(spec.shape), DTypeName(dtype), GroupElements(dtype)));
}

// A slice that reaches beyond its tensor, or into rows that are decoded as a whole, is a mistake of
// the plan.
Status CheckSlice(const TensorSpec& spec, const ModelTensors& tensors) {
  if (!spec.slice) return OkStatus();
  const TensorSlice& slice = *spec.slice;
  int64_t elements = 1;
  for (const int64_t size : slice.shape) elements *= size;
  int64_t last = slice.offset;
  bool fits = slice.offset >= 0 && slice.strides.size() == spec.shape.size() &&
              (spec.shape.size() == 1 || spec.shape.size() == 2);
  for (size_t i = 0; fits && i < spec.shape.size(); ++i) {
    fits = slice.strides[i] > 0 && spec.shape[i] > 0;
    last += (spec.shape[i] - 1) * slice.strides[i];
  }
  if (fits && tensors.Get(slice.tensor).decoder) {
    const int64_t cols = slice.shape.back();
    fits = spec.shape.size() == 2 && spec.shape[1] == cols && slice.strides[1] == 1 &&
           slice.offset % cols == 0 && slice.strides[0] % cols == 0;
  }
  if (fits && last < elements) return OkStatus();
  return InvalidArgument(fmt::format("'{}' of shape {} does not lie in tensor '{}' of shape {}",
                                     spec.name, FormatShape(spec.shape), slice.tensor,
                                     FormatShape(slice.shape)));
}

}  // namespace

Result<StoreLayout> StoreLayout::Make(const WeightPlan& plan, const Checkpoint& checkpoint,
                                      const std::string& config_json,
                                      const StoreSettings& settings) {
  RETURN_IF_ERROR(CheckPlan(plan));
  CHECK(settings.each_expert.empty() || settings.each_expert.size() == plan.experts.size());
  CHECK(settings.expert_order.empty() || IsPermutation(settings.expert_order, plan.experts.size()));
  StoreLayout layout;
  ASSIGN_OR_RETURN(layout.tensors_, ModelTensors::Resolve(plan, checkpoint));
  const ModelTensors& tensors = layout.tensors_;
  std::string names;
  std::vector<DenseEntry> dense;
  std::vector<ExpertEntry> experts;
  std::vector<const TensorSpec*> by_name;
  for (const TensorSpec& spec : plan.dense) {
    by_name.push_back(&spec);
    names += spec.name;
  }
  StoreHeader& header = layout.header_;
  header.magic = kStoreMagic;
  header.version = kStoreVersion;
  header.layers = plan.layers;
  header.experts_per_layer = plan.experts_per_layer;
  header.layout_hash = StoreLayoutHash();
  header.config.bytes = config_json.size();
  header.names.bytes = names.size();
  header.dense_index.bytes = plan.dense.size() * sizeof(DenseEntry);
  header.expert_index.bytes = plan.experts.size() * sizeof(ExpertEntry);
  uint64_t end = PlaceSections(&header);

  // Dense tensors lie in the plan's order (a layer's together), the index is sorted by name.
  std::sort(by_name.begin(), by_name.end(),
            [](const auto* a, const auto* b) { return a->name < b->name; });
  dense.resize(plan.dense.size());
  uint64_t name_offset = 0;
  for (const TensorSpec& spec : plan.dense) {
    DType dtype = tensors.Get(spec.source()).dtype;
    if (spec.quantisable) {
      dtype = settings.dense.value_or(tensors.Get(spec.source()).kept_type());
      RETURN_IF_ERROR(CheckGroups(spec, dtype));
    }
    const StorePiece piece = MakePiece(spec, tensors, 0, dtype);
    const auto at = std::lower_bound(
        by_name.begin(), by_name.end(), spec.name,
        [](const TensorSpec* tensor, const std::string& name) { return tensor->name < name; });
    const auto entry_index = static_cast<size_t>(at - by_name.begin());
    DenseEntry& entry = dense[entry_index];
    entry.offset = AlignUp(end, kTensorAlignment);
    entry.bytes = piece.bytes;
    entry.name_offset = name_offset;
    entry.name_bytes = static_cast<uint32_t>(spec.name.size());
    entry.dtype = static_cast<uint32_t>(dtype);
    entry.rank = static_cast<uint32_t>(spec.shape.size());
    std::copy(spec.shape.begin(), spec.shape.end(), entry.shape);
    name_offset += spec.name.size();
    end = entry.offset + entry.bytes;
    layout.dense_bytes_ += entry.bytes;
    layout.units_.push_back({.expert = false,
                             .entry = entry_index,
                             .offset = entry.offset,
                             .bytes = entry.bytes,
                             .pieces = {piece}});
  }

  experts.resize(plan.experts.size());
  for (size_t i = 0; i < plan.experts.size(); ++i) {
    const size_t place = settings.expert_order.empty() ? i : settings.expert_order[i];
    const ExpertSpec& spec = plan.experts[place];
    for (const TensorSpec* part : spec.parts()) RETURN_IF_ERROR(CheckSlice(*part, tensors));
    ExpertEntry entry;
    entry.layer = spec.key.layer.value;
    entry.expert = spec.key.expert.value;
    entry.intermediate = spec.gate.shape[0];
    entry.hidden = spec.gate.shape[1];
    std::optional<DType> quantise = settings.experts;
    if (!settings.each_expert.empty()) quantise = settings.each_expert[place];
    const auto type_of = [&](const TensorSpec& part) {
      return quantise.value_or(tensors.Get(part.source()).kept_type());
    };
    const ExpertTypes types = {type_of(spec.gate), type_of(spec.up), type_of(spec.down)};
    AddTypes(types, &layout.expert_dtypes_);
    entry.gate_dtype = static_cast<uint8_t>(types.gate);
    entry.up_dtype = static_cast<uint8_t>(types.up);
    entry.down_dtype = static_cast<uint8_t>(types.down);
    std::optional<DType> bias;
    if (spec.has_biases) bias = tensors.Get(spec.gate_bias.source()).dtype;
    entry.bias = EncodeBias(bias);
    const auto placed = PlaceExpert(entry.hidden, entry.intermediate, types, bias);
    if (!placed.ok()) {
      return placed.status().WithContext(
          fmt::format("layer {} expert {}", entry.layer, entry.expert));
    }
    const ExpertGeometry& geometry = *placed;
    entry.offset = AlignUp(end, kStorePageBytes);
    entry.bytes = geometry.block_bytes;
    end = entry.offset + entry.bytes;
    layout.expert_bytes_ += entry.bytes;
    ++layout.expert_blocks_[entry.bytes];
    StoreUnit unit{.expert = true,
                   .entry = place,
                   .offset = entry.offset,
                   .bytes = entry.bytes,
                   .pieces = {MakePiece(spec.gate, tensors, geometry.gate_offset, types.gate),
                              MakePiece(spec.up, tensors, geometry.up_offset, types.up),
                              MakePiece(spec.down, tensors, geometry.down_offset, types.down)}};
    if (bias) {
      unit.pieces.push_back(MakePiece(spec.gate_bias, tensors, geometry.gate_bias_offset, *bias));
      unit.pieces.push_back(MakePiece(spec.up_bias, tensors, geometry.up_bias_offset, *bias));
      unit.pieces.push_back(MakePiece(spec.down_bias, tensors, geometry.down_bias_offset, *bias));
    }
    layout.units_.push_back(std::move(unit));
    experts[place] = entry;
  }

  header.total_bytes = AlignUp(end, kStorePageBytes);
  layout.WriteMetadata(config_json, names, dense, experts);
  std::sort(layout.units_.begin(), layout.units_.end(), [](const auto& a, const auto& b) {
    const auto place = [](const StoreUnit& unit) {
      const StorePiece& first = unit.pieces.front();
      return std::tie(first.source->info->file->path(), first.source->info->file_offset,
                      first.first);
    };
    return place(a) < place(b);
  });
  return layout;
}

void StoreLayout::WriteMetadata(const std::string& config_json, const std::string& names,
                                const std::vector<DenseEntry>& dense,
                                const std::vector<ExpertEntry>& experts) {
  metadata_.assign(header_.expert_index.offset + header_.expert_index.bytes, 0);
  const auto put = [this](const StoreExtent& section, const void* data) {
    if (section.bytes > 0) std::memcpy(metadata_.data() + section.offset, data, section.bytes);
  };
  put({0, sizeof(header_)}, &header_);
  put(header_.config, config_json.data());
  put(header_.names, names.data());
  put(header_.dense_index, dense.data());
  put(header_.expert_index, experts.data());
}

}  // namespace expertflow

#include "expert_store/store_view.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <boost/interprocess/mapped_region.hpp>
#include <boost/interprocess/shared_memory_object.hpp>
#include <utility>

#include "common/check.h"
#include "common/mapped_file.h"
#include "model/checkpoint/safetensors.h"

namespace expertflow {
namespace {

namespace bip = boost::interprocess;

Status DescribeBoost(const bip::interprocess_exception& error, const std::string& name) {
  const std::string what = "cannot map expert store " + name;
  if (error.get_error_code() == bip::not_found_error) return NotFound(what + ": it does not exist");
  if (error.get_native_error() != 0) return FromErrno(error.get_native_error(), what);
  return Internal(what + ": " + error.what());
}

Result<std::shared_ptr<bip::mapped_region>> MapSegment(const std::string& name) {
  try {
    const bip::shared_memory_object object(bip::open_only, name.c_str(), bip::read_only);
    bip::offset_t bytes = 0;
    if (!object.get_size(bytes) || bytes < static_cast<bip::offset_t>(kStoreHeaderBytes)) {
      return Unavailable(fmt::format("expert store {} is still being created", name));
    }
    return std::make_shared<bip::mapped_region>(object, bip::read_only);
  } catch (const bip::interprocess_exception& error) {
    return DescribeBoost(error, name);
  }
}

}  // namespace

Result<StoreView> StoreView::Attach(const StoreDescriptor& descriptor) {
  Result<StoreView> view = [&]() -> Result<StoreView> {
    if (descriptor.kind == StoreDescriptor::Kind::kFile) return OpenFile(descriptor.name);
    ASSIGN_OR_RETURN(const auto region, MapSegment(descriptor.name));
    const auto* data = static_cast<const uint8_t*>(region->get_address());
    return FromMapping(region, {data, region->get_size()}, descriptor);
  }();
  if (!view.ok()) return view;
  if (view->fingerprint() != descriptor.fingerprint ||
      view->total_bytes() != descriptor.total_bytes) {
    return FailedPrecondition(fmt::format(
        "expert store {} holds another model: fingerprint {}, {} bytes; expected {}, {} bytes",
        descriptor.name, view->fingerprint().ToString(), view->total_bytes(),
        descriptor.fingerprint.ToString(), descriptor.total_bytes));
  }
  return view;
}

Result<StoreView> StoreView::OpenFile(const std::string& path) {
  ASSIGN_OR_RETURN(MappedFile opened, MappedFile::Open(path));
  const auto file = std::make_shared<MappedFile>(std::move(opened));
  StoreDescriptor descriptor{.kind = StoreDescriptor::Kind::kFile, .name = path};
  return FromMapping(file, file->bytes(), std::move(descriptor));
}

Result<StoreView> StoreView::FromMapping(std::shared_ptr<const void> mapping,
                                         std::span<const uint8_t> store,
                                         StoreDescriptor described) {
  const bool segment = described.kind == StoreDescriptor::Kind::kSharedMemory;
  if (segment && LoadStoreState(store.data()) != static_cast<uint32_t>(StoreState::kReady)) {
    return Unavailable(fmt::format("expert store {} is still being loaded", described.name));
  }
  StoreView view;
  ASSIGN_OR_RETURN(view.index_, ParseStore(store, described.name));
  view.mapping_ = std::move(mapping);
  view.store_ = store;
  view.descriptor_ = std::move(described);
  view.descriptor_.total_bytes = view.total_bytes();
  view.descriptor_.fingerprint = view.fingerprint();
  for (const DenseTensor& tensor : view.index_.dense) view.dense_bytes_ += tensor.bytes;
  for (const ExpertEntry& entry : view.index_.experts) {
    view.expert_bytes_ += entry.bytes;
    ++view.expert_blocks_[entry.bytes];
    AddTypes(ExpertTypes::Of(entry), &view.expert_dtypes_);
  }
  return view;
}

int32_t StoreView::ExpertsIn(LayerId layer) const {
  if (!layer.valid() || layer.value >= layers()) return 0;
  return static_cast<int32_t>(index_.layer_begin[layer.index() + 1] -
                              index_.layer_begin[layer.index()]);
}

std::vector<uint64_t> StoreView::ExpertBlockBytes() const {
  std::vector<uint64_t> bytes;
  bytes.reserve(index_.experts.size());
  for (const ExpertEntry& entry : index_.experts) bytes.push_back(entry.bytes);
  return bytes;
}

const DenseTensor* StoreView::FindDense(std::string_view name) const {
  const auto at = std::lower_bound(
      index_.dense.begin(), index_.dense.end(), name,
      [](const DenseTensor& tensor, std::string_view key) { return tensor.name < key; });
  return at != index_.dense.end() && at->name == name ? &*at : nullptr;
}

bool StoreView::HasExpert(ExpertKey key) const {
  return key.expert.valid() && key.expert.value < ExpertsIn(key.layer);
}

ExpertBlock StoreView::Expert(ExpertKey key) const {
  CHECK(HasExpert(key));
  const ExpertEntry& entry =
      index_.experts[index_.layer_begin[key.layer.index()] + key.expert.index()];
  const ExpertTypes types = ExpertTypes::Of(entry);
  const auto bias = DecodeBias(entry.bias);
  const auto geometry = PlaceExpert(entry.hidden, entry.intermediate, types, bias);
  CHECK(geometry.ok());  // the parser has placed it already
  return {.data = store_.data() + entry.offset,
          .bytes = entry.bytes,
          .gate_offset = geometry->gate_offset,
          .up_offset = geometry->up_offset,
          .down_offset = geometry->down_offset,
          .bias_dtype = bias,
          .gate_bias_offset = geometry->gate_bias_offset,
          .up_bias_offset = geometry->up_bias_offset,
          .down_bias_offset = geometry->down_bias_offset,
          .hidden = entry.hidden,
          .intermediate = entry.intermediate,
          .types = types,
          .checksum = entry.checksum};
}

Status StoreView::Matches(const WeightPlan& plan) const {
  const auto differs = [&](std::string_view what) {
    return InvalidArgument(
        fmt::format("expert store {}: {}; pack the checkpoint again", descriptor_.name, what));
  };
  if (plan.layers != layers() || plan.experts.size() != expert_count() ||
      plan.dense.size() != index_.dense.size()) {
    return differs(fmt::format(
        "{} layers, {} experts, {} dense tensors, but the model has {}, {} and {}", layers(),
        expert_count(), index_.dense.size(), plan.layers, plan.experts.size(), plan.dense.size()));
  }
  for (const TensorSpec& spec : plan.dense) {
    const DenseTensor* tensor = FindDense(spec.name);
    if (tensor == nullptr) return differs(fmt::format("tensor '{}' is missing", spec.name));
    if (tensor->shape != spec.shape) {
      return differs(fmt::format("tensor '{}' has shape {}, expected {}", spec.name,
                                 FormatShape(tensor->shape), FormatShape(spec.shape)));
    }
  }
  for (const ExpertSpec& spec : plan.experts) {
    const std::string what =
        fmt::format("layer {} expert {}", spec.key.layer.value, spec.key.expert.value);
    if (!HasExpert(spec.key)) return differs(what + " is missing");
    const ExpertBlock block = Expert(spec.key);
    if (spec.gate.shape != std::vector<int64_t>{block.intermediate, block.hidden}) {
      return differs(fmt::format("{} has gate shape [{}, {}], expected {}", what,
                                 block.intermediate, block.hidden, FormatShape(spec.gate.shape)));
    }
    if (spec.has_biases != block.bias_dtype.has_value()) {
      return differs(what + (spec.has_biases ? " has no biases" : " has biases"));
    }
  }
  return OkStatus();
}

Status StoreView::VerifyExpert(ExpertKey key) const {
  if (!HasExpert(key)) {
    return NotFound(fmt::format("expert store {}: layer {} expert {} does not exist",
                                descriptor_.name, key.layer.value, key.expert.value));
  }
  const ExpertBlock block = Expert(key);
  if (XXH3_64bits(block.data, block.bytes) == block.checksum) return OkStatus();
  return InvalidArgument(
      fmt::format("expert store {}: layer {} expert {}: the block is damaged (checksum differs)",
                  descriptor_.name, key.layer.value, key.expert.value));
}

Status StoreView::VerifyDense(const DenseTensor& tensor) const {
  if (XXH3_64bits(tensor.data, tensor.bytes) == tensor.checksum) return OkStatus();
  return InvalidArgument(fmt::format("expert store {}: tensor '{}' is damaged (checksum differs)",
                                     descriptor_.name, tensor.name));
}

Status StoreView::VerifyAll() const {
  for (const DenseTensor& tensor : index_.dense) RETURN_IF_ERROR(VerifyDense(tensor));
  for (const ExpertEntry& entry : index_.experts) {
    RETURN_IF_ERROR(VerifyExpert({LayerId(entry.layer), ExpertId(entry.expert)}));
  }
  return OkStatus();
}

}  // namespace expertflow

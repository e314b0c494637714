#include "launch/pack_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "launch/trace/trace_source.h"
#include "sim/expert_use.h"

namespace expertflow {
namespace {

std::optional<DType> QuantisedType(std::string_view name) {
  if (name == "int8") return DType::kInt8;
  if (name == "int4") return DType::kInt4;
  if (name == "uint4") return DType::kUInt4;
  if (name == "mxfp4") return DType::kMxfp4;
  if (name == "fp8") return DType::kFp8;
  return std::nullopt;
}

struct Popular {
  double percent = 0;
  DType dtype = DType::kInt8;
};

// "20%:int8"
Result<Popular> ParsePopular(const Options& options) {
  const std::string text = options.Text("quant-popular");
  const size_t colon = text.find("%:");
  Popular popular;
  size_t parsed = 0;
  if (colon != std::string::npos && colon > 0 && text[0] >= '0' && text[0] <= '9') {
    popular.percent = std::stod(text, &parsed);
  }
  const auto dtype = QuantisedType(colon == std::string::npos ? "" : text.substr(colon + 2));
  if (parsed == 0 || parsed != colon || popular.percent > 100 || !dtype) {
    return InvalidArgument(fmt::format(
        "{}: expected PERCENT%:TYPE such as 20%:int8, with one of fp8, int8, int4, uint4, mxfp4; "
        "found \"{}\"",
        options.Origin("quant-popular"), text));
  }
  popular.dtype = *dtype;
  return popular;
}

// Of the experts, by place in the plan's list: layer by layer, all of a layer.
Result<std::vector<LayerUse>> ReadUse(const Options& options, const std::string& option,
                                      const ModelShape& shape) {
  const std::string path = options.Text(option);
  ASSIGN_OR_RETURN(const LoadedTrace trace, LoadTrace(path, 0));
  const std::vector<int32_t>& found = trace.routing.experts;
  const bool same = found.size() == shape.moe_layers.size() &&
                    std::all_of(found.begin(), found.end(),
                                [&](int32_t experts) { return experts == shape.experts; }) &&
                    trace.routing.top_k == shape.top_k;
  if (!same) {
    return InvalidArgument(fmt::format(
        "{}: a trace of another model: {} MoE layers of {} experts, {} of them for a token, but "
        "this model has {} of {} and {}",
        path, found.size(), found.empty() ? 0 : found.front(), trace.routing.top_k,
        shape.moe_layers.size(), shape.experts, shape.top_k));
  }
  std::vector<LayerUse> use;
  for (int32_t layer = 0; layer < trace.routing.layers(); ++layer) {
    use.push_back(CountUse(trace.routing, layer));
  }
  return use;
}

Status SetPopular(const Options& options, const ModelShape& shape, PackSettings* settings) {
  ASSIGN_OR_RETURN(const Popular popular, ParsePopular(options));
  if (!settings->store.experts) {
    return InvalidArgument(
        fmt::format("{}: --quant TYPE is missing, which the other experts become",
                    options.Origin("quant-popular")));
  }
  if (!options.Given("trace")) {
    return InvalidArgument(fmt::format(
        "{}: --trace FILE is missing, which says what is popular; run --record makes one",
        options.Origin("quant-popular")));
  }
  ASSIGN_OR_RETURN(const std::vector<LayerUse> use, ReadUse(options, "trace", shape));
  const auto experts = static_cast<double>(use.size() * static_cast<size_t>(shape.experts));
  settings->popular_experts = static_cast<size_t>(std::lround(experts * popular.percent / 100));
  settings->popular_type = popular.dtype;
  const auto most_used = MostUsed(use, settings->popular_experts);
  uint64_t uses = 0, popular_uses = 0;
  for (size_t layer = 0; layer < use.size(); ++layer) {
    for (size_t e = 0; e < use[layer].experts(); ++e) {
      const bool is_popular = most_used[layer][e];
      uses += use[layer].uses[e];
      if (is_popular) popular_uses += use[layer].uses[e];
      settings->store.each_expert.push_back(is_popular ? popular.dtype : *settings->store.experts);
    }
  }
  settings->popular_uses =
      static_cast<double>(popular_uses) / static_cast<double>(std::max<uint64_t>(1, uses));
  return OkStatus();
}

Status SetOrder(const Options& options, const ModelShape& shape, PackSettings* settings) {
  ASSIGN_OR_RETURN(const std::vector<LayerUse> use, ReadUse(options, "order", shape));
  size_t first = 0;
  for (const LayerUse& layer : use) {
    for (const int32_t expert : OrderByCoActivation(layer)) {
      settings->store.expert_order.push_back(first + static_cast<size_t>(expert));
    }
    first += layer.experts();
  }
  return OkStatus();
}

}  // namespace

Result<PackSettings> PackSettingsFrom(const Options& options, const Architecture& architecture) {
  PackSettings settings;
  const ModelShape& shape = architecture.shape();
  settings.store.experts = QuantisedType(options.Text("quant"));
  if (options.Text("quant-scope") == "all") {
    if (!settings.store.experts) {
      return InvalidArgument(
          fmt::format("{}: --quant TYPE is missing", options.Origin("quant-scope")));
    }
    settings.store.dense = settings.store.experts;
  }
  if (options.Given("quant-popular")) {
    RETURN_IF_ERROR(SetPopular(options, shape, &settings));
  } else if (options.Given("trace")) {
    return InvalidArgument(
        fmt::format("{}: only --quant-popular needs it; leave it out", options.Origin("trace")));
  }
  if (options.Given("order")) RETURN_IF_ERROR(SetOrder(options, shape, &settings));
  return settings;
}

}  // namespace expertflow

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "common/units.h"
#include "coordinator/model_tokenizer.h"
#include "expert_store/store_view.h"
#include "launch/commands.h"
#include "launch/model_source.h"
#include "launch/report.h"
#include "model/checkpoint/model_files.h"
#include "model/tokenizer/tokenizer.h"

namespace expertflow {
namespace {

uint64_t CountElements(const TensorSpec& tensor) {
  uint64_t count = 1;
  for (const int64_t dimension : tensor.shape) count *= static_cast<uint64_t>(dimension);
  return count;
}

struct Parameters {
  uint64_t all = 0;
  uint64_t active = 0;  // that a token touches
};

Parameters CountParameters(const Architecture& architecture) {
  Parameters parameters;
  const WeightPlan& plan = architecture.weights();
  for (const TensorSpec& tensor : plan.dense) parameters.all += CountElements(tensor);
  parameters.active = parameters.all;
  if (plan.experts.empty()) return parameters;
  uint64_t expert = 0;
  for (const TensorSpec* part : plan.experts.front().parts()) expert += CountElements(*part);
  parameters.all += expert * plan.experts.size();
  const ModelShape& shape = architecture.shape();
  parameters.active += expert * shape.moe_layers.size() * static_cast<uint64_t>(shape.top_k);
  return parameters;
}

// The plan for a device of this size: as many expert slots as are left room for.
Result<MemoryPlan> PlanForBudget(const Options& options, const ModelSource& model) {
  const uint64_t budget = options.Bytes("device-budget");
  const Options private_memory =
      options.With({{"device-memory", "private"}, {"expert-memory", "0"}});
  ASSIGN_OR_RETURN(const MemoryPlan empty, PlanFor(private_memory, model));
  if (empty.total_bytes() > budget) {
    return InvalidArgument(fmt::format(
        "{}: {} are not enough: dense weights, KV cache, streaming buffers and workspace take {}; "
        "lower --kv-memory or --prefill-tokens, or raise the budget",
        options.Origin("device-budget"), FormatBytes(budget), FormatBytes(empty.total_bytes())));
  }
  const uint64_t left = budget - empty.total_bytes();
  const bool any = left >= OneSlotOfEach(empty.slot_classes);
  return PlanFor(options.With({{"device-memory", "private"},
                               {"expert-memory", fmt::format("{}", any ? left : 0)}}),
                 model);
}

Result<MemoryPlan> MakePlan(const Options& options, const ModelSource& model) {
  if (!options.Given("device-budget")) return PlanFor(options, model);
  if (options.Given("expert-memory") || options.Text("device-memory") == "host") {
    return InvalidArgument(fmt::format(
        "{}: decides how many experts fit; leave --expert-memory and --device-memory out",
        options.Origin("device-budget")));
  }
  return PlanForBudget(options, model);
}

struct Inspection {
  ModelSource model;
  MemoryPlan plan;
  Parameters parameters;
  std::string tokenizer;  // what can be said about it
  int32_t tokenizer_vocab = 0;
  bool verified = false;
};

void InspectTokenizer(Inspection* found) {
  const Result<std::unique_ptr<Tokenizer>> tokenizer = LoadModelTokenizer(found->model.folder, "");
  if (!tokenizer.ok() && tokenizer.status().code() == StatusCode::kNotFound) {
    found->tokenizer = "none";
    return;
  }
  if (!tokenizer.ok()) {
    found->tokenizer = "cannot be used: " + tokenizer.status().message();
    return;
  }
  found->tokenizer_vocab = (*tokenizer)->vocab_size();
  found->tokenizer = fmt::format("BPE, {} ids", found->tokenizer_vocab);
}

Result<Inspection> Inspect(const Options& options) {
  Inspection found;
  ASSIGN_OR_RETURN(found.model, OpenModelOrConfig(options.Text("path")));
  ASSIGN_OR_RETURN(found.plan, MakePlan(options, found.model));
  found.parameters = CountParameters(*found.model.architecture);
  InspectTokenizer(&found);
  if (options.Flag("verify")) {
    if (found.model.store_file.empty()) {
      return InvalidArgument("--verify: only a store file has checksums; make one with pack");
    }
    ASSIGN_OR_RETURN(const StoreView view, StoreView::OpenFile(found.model.store_file));
    RETURN_IF_ERROR(view.VerifyAll());
    found.verified = true;
  }
  return found;
}

std::string_view SourceKind(const ModelSource& model) {
  if (!model.has_weights) return "config only, no weights";
  if (!model.store_file.empty()) return "store file";
  return IsGguf(model.folder) ? "GGUF" : "safetensors";
}

std::string_view Quantised(const ModelSource& model) {
  return QuantisationName(model.architecture->weights().quantisation.method);
}

std::string Describe(const Options& options, const Inspection& found) {
  const ModelShape& shape = found.model.architecture->shape();
  std::string text = fmt::format("{} ({})\n", options.Text("path"), SourceKind(found.model));
  text += DescribeModel(found.model);
  text += fmt::format("  parameters       {:.3f} billion, {:.3f} billion for a token\n",
                      static_cast<double>(found.parameters.all) / 1e9,
                      static_cast<double>(found.parameters.active) / 1e9);
  text += fmt::format(
      "  shapes           hidden {}, {} heads of {} ({} for KV), expert {}, vocabulary {}, context "
      "{}\n",
      shape.hidden, shape.heads, shape.head_dim, shape.kv_heads, shape.expert_intermediate,
      shape.vocab, shape.context);
  if (const auto method = Quantised(found.model); method != "none") {
    text += fmt::format("  quantisation     {} in the checkpoint, experts are kept as {}\n", method,
                        DTypeNames(found.model.expert_dtypes));
  }
  text += fmt::format("  KV cache         {} a token in {}\n",
                      FormatBytes(shape.kv_bytes_per_token(found.plan.kv_dtype)),
                      DTypeName(found.plan.kv_dtype));
  text += fmt::format("  tokenizer        {}\n", found.tokenizer);
  if (found.verified) text += "  checksums        all blocks are intact\n";
  text += DescribePlan(found.plan, options.Integer("workers"));
  return text;
}

std::string InspectJson(const Options& options, const Inspection& found) {
  const ModelShape& shape = found.model.architecture->shape();
  const nlohmann::json json = {
      {"format", "expertflow-inspect"},
      {"version", 1},
      {"path", options.Text("path")},
      {"source", SourceKind(found.model)},
      {"architecture", shape.architecture},
      {"parameters", found.parameters.all},
      {"parameters_active", found.parameters.active},
      {"layers", shape.layers},
      {"moe_layers", shape.moe_layers},
      {"experts_per_layer", shape.experts},
      {"top_k", shape.top_k},
      {"hidden", shape.hidden},
      {"heads", shape.heads},
      {"kv_heads", shape.kv_heads},
      {"head_dim", shape.head_dim},
      {"expert_intermediate", shape.expert_intermediate},
      {"vocab", shape.vocab},
      {"context", shape.context},
      {"kv_bytes_per_token", shape.kv_bytes_per_token(found.plan.kv_dtype)},
      {"quantisation", Quantised(found.model)},
      {"expert_dtype", DTypeNames(found.model.expert_dtypes)},
      {"expert_block_bytes", found.model.sizes.expert_block_bytes()},
      {"expert_bytes", found.model.sizes.expert_bytes},
      {"dense_bytes", found.model.sizes.dense_bytes},
      {"store_bytes", found.model.store_bytes},
      {"tokenizer", found.tokenizer},
      {"tokenizer_vocab", found.tokenizer_vocab},
      {"verified", found.verified},
      {"workers", options.Integer("workers")},
      {"memory_plan", nlohmann::json::parse(MemoryPlanJson(found.plan), nullptr, false)}};
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

int InspectCommand(const Options& options) {
  const Result<Inspection> found = Inspect(options);
  if (!found.ok()) return Fail(options, found.status());
  if (options.Text("json") != "-") fmt::print("{}", Describe(options, *found));
  if (const Status json = WriteJsonOption(options, InspectJson(options, *found)); !json.ok()) {
    return Fail(options, json, kExitFailure);
  }
  return kExitOk;
}

}  // namespace expertflow

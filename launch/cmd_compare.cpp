#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/mapped_file.h"
#include "launch/commands.h"
#include "launch/generation.h"
#include "launch/job.h"
#include "launch/job_setup.h"
#include "launch/model_source.h"
#include "launch/policy_tables.h"
#include "launch/progress.h"
#include "launch/worker_setup.h"
#include "model/checkpoint/safetensors.h"

namespace expertflow {
namespace {

constexpr size_t kReferenceJsonBytesMax = size_t{64} << 20;

// One prompt of a reference file.
struct ReferencePrompt {
  std::vector<int32_t> input_ids;   // [n]
  size_t logits_begin = 0;          // first position that has logits
  std::vector<float> logits;        // [n - logits_begin, vocab]
  std::vector<int32_t> router_ids;  // [moe_layers, n, top_k]
  std::vector<int32_t> greedy_ids;
};

struct PromptComparison {
  double max_abs_logit_diff = 0;
  int64_t positions_compared = 0;
  int64_t route_decisions = 0;
  int64_t route_mismatches = 0;         // experts that the reference did not choose
  int64_t route_order_differences = 0;  // chosen too, in another place of the order by weight
  int64_t greedy_mismatches = 0;
  std::vector<bool> seen;  // by position of the prompt
};

template <typename T>
Result<std::vector<T>> ReadTensor(const SafetensorsFile& file, const std::string& name,
                                  ElementType type, size_t rank) {
  const TensorInfo* tensor = file.Find(name);
  if (tensor == nullptr) {
    return InvalidArgument(fmt::format("{}: tensor '{}' is missing", file.path(), name));
  }
  if (tensor->type != type || tensor->shape.size() != rank) {
    return InvalidArgument(fmt::format("{}: expected {} with {} dimensions, found {} {}",
                                       tensor->Where(), ElementTypeName(type), rank,
                                       ElementTypeName(tensor->type), FormatShape(tensor->shape)));
  }
  std::vector<T> values(tensor->bytes / sizeof(T));
  std::memcpy(values.data(), tensor->data.data(), values.size() * sizeof(T));
  return values;
}

Result<ReferencePrompt> ReadPrompt(const SafetensorsFile& file, size_t index,
                                   const ModelShape& shape) {
  ReferencePrompt prompt;
  const std::string prefix = fmt::format("p{}.", index);
  ASSIGN_OR_RETURN(prompt.input_ids,
                   ReadTensor<int32_t>(file, prefix + "input_ids", ElementType::kI32, 1));
  const size_t positions = prompt.input_ids.size();
  const bool last8 = file.Find(prefix + "logits_last8") != nullptr;
  ASSIGN_OR_RETURN(
      prompt.logits,
      ReadTensor<float>(file, prefix + (last8 ? "logits_last8" : "logits"), ElementType::kF32, 2));
  const size_t rows = prompt.logits.size() / static_cast<size_t>(shape.vocab);
  ASSIGN_OR_RETURN(prompt.router_ids,
                   ReadTensor<int32_t>(file, prefix + "router_ids", ElementType::kI32, 3));
  const size_t routes = shape.moe_layers.size() * positions * static_cast<size_t>(shape.top_k);
  if (positions == 0 || rows == 0 || rows > positions ||
      prompt.logits.size() != rows * static_cast<size_t>(shape.vocab) ||
      prompt.router_ids.size() != routes) {
    return InvalidArgument(fmt::format(
        "{}: the tensors of prompt {} do not fit the model ({} tokens, {} logits, {} router ids)",
        file.path(), index, positions, prompt.logits.size(), prompt.router_ids.size()));
  }
  prompt.logits_begin = positions - rows;
  return prompt;
}

// The greedy continuations are in the JSON file beside.
Status ReadGreedyIds(const std::string& path, std::vector<ReferencePrompt>* prompts) {
  ASSIGN_OR_RETURN(const std::string text, ReadFileToString(path, kReferenceJsonBytesMax));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("prompts") || !json["prompts"].is_array() ||
      json["prompts"].size() != prompts->size()) {
    return InvalidArgument(
        fmt::format("{}: expected an object with {} prompts", path, prompts->size()));
  }
  for (size_t i = 0; i < prompts->size(); ++i) {
    const nlohmann::json& entry = json["prompts"][i];
    if (!entry.is_object() || !entry.contains("greedy_ids") || !entry["greedy_ids"].is_array()) {
      return InvalidArgument(fmt::format("{}: prompt {} has no greedy_ids", path, i));
    }
    for (const nlohmann::json& id : entry["greedy_ids"]) {
      if (!id.is_number_integer()) {
        return InvalidArgument(
            fmt::format("{}: prompt {}: greedy_ids: expected integers", path, i));
      }
      (*prompts)[i].greedy_ids.push_back(id.get<int32_t>());
    }
  }
  return OkStatus();
}

Result<std::vector<ReferencePrompt>> ReadReference(const std::string& path,
                                                   const ModelShape& shape) {
  ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  std::vector<ReferencePrompt> prompts;
  while (file.Find(fmt::format("p{}.input_ids", prompts.size())) != nullptr) {
    ASSIGN_OR_RETURN(ReferencePrompt prompt, ReadPrompt(file, prompts.size(), shape));
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) return InvalidArgument(fmt::format("{}: has no prompt p0", path));
  RETURN_IF_ERROR(
      ReadGreedyIds(std::filesystem::path(path).replace_extension(".json").string(), &prompts));
  return prompts;
}

void ComparePosition(const ReferencePrompt& reference, const ModelShape& shape,
                     const CapturedPosition& captured, PromptComparison* comparison) {
  const size_t positions = reference.input_ids.size();
  const size_t position = captured.position;
  if (position >= positions) return;  // of the continuation
  const auto top_k = static_cast<size_t>(shape.top_k);
  const size_t layers = shape.moe_layers.size();
  comparison->seen[position] = true;
  const bool complete = captured.router_ids.size() == layers * top_k;
  for (size_t layer = 0; layer < layers; ++layer) {
    const int32_t* expected = reference.router_ids.data() + (layer * positions + position) * top_k;
    for (size_t k = 0; k < top_k; ++k) {
      ++comparison->route_decisions;
      if (!complete) {
        ++comparison->route_mismatches;
        continue;
      }
      // Two experts of almost equal weight may come in the other order: that is counted apart.
      const int32_t found = captured.router_ids[layer * top_k + k];
      if (std::find(expected, expected + top_k, found) == expected + top_k) {
        ++comparison->route_mismatches;
      } else if (found != expected[k]) {
        ++comparison->route_order_differences;
      }
    }
  }
  if (position < reference.logits_begin) return;
  const auto vocab = static_cast<size_t>(shape.vocab);
  const std::span<const float> expected =
      std::span(reference.logits).subspan((position - reference.logits_begin) * vocab, vocab);
  if (captured.logits.size() != vocab) {
    comparison->max_abs_logit_diff = INFINITY;
    return;
  }
  ++comparison->positions_compared;
  for (size_t i = 0; i < vocab; ++i) {
    const double difference = std::fabs(static_cast<double>(captured.logits[i]) - expected[i]);
    // A NaN is no small difference.
    if (!(difference <= comparison->max_abs_logit_diff)) {
      comparison->max_abs_logit_diff = std::isnan(difference) ? INFINITY : difference;
    }
  }
}

int64_t CountGreedyMismatches(const std::vector<int32_t>& expected,
                              const std::vector<int32_t>& found) {
  int64_t mismatches = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (i >= found.size() || found[i] != expected[i]) ++mismatches;
  }
  return mismatches +
         static_cast<int64_t>(found.size() > expected.size() ? found.size() - expected.size() : 0);
}

std::vector<SubmitRequest> MakeRequests(const std::vector<ReferencePrompt>& prompts) {
  std::vector<SubmitRequest> requests;
  for (const ReferencePrompt& prompt : prompts) {
    SubmitRequest request;
    request.is_text = false;
    request.tokens = prompt.input_ids;
    request.max_new_tokens = static_cast<uint32_t>(prompt.greedy_ids.size());
    request.ignore_eos = true;
    request.capture_logits = true;
    request.capture_routes = true;
    requests.push_back(std::move(request));
  }
  return requests;
}

struct Comparison {
  std::vector<PromptComparison> prompts;
  PromptComparison total;
  int signal = 0;
};

void AddUp(Comparison* comparison) {
  PromptComparison& total = comparison->total;
  for (const PromptComparison& prompt : comparison->prompts) {
    total.max_abs_logit_diff = std::max(total.max_abs_logit_diff, prompt.max_abs_logit_diff);
    total.positions_compared += prompt.positions_compared;
    total.route_decisions += prompt.route_decisions;
    total.route_mismatches += prompt.route_mismatches;
    total.route_order_differences += prompt.route_order_differences;
    total.greedy_mismatches += prompt.greedy_mismatches;
  }
}

Status RunComparison(const Options& options, const ModelSource& model,
                     const std::vector<ReferencePrompt>& prompts, Comparison* comparison) {
  ASSIGN_OR_RETURN(SignalWatcher signals, SignalWatcher::Create());
  const std::string& path = model.store_file.empty() ? model.folder : model.store_file;
  ASSIGN_OR_RETURN(const std::unique_ptr<Job> job,
                   Job::Start(MakeJobSetup(options, path), &signals));
  const ModelShape& shape = model.architecture->shape();
  for (const ReferencePrompt& prompt : prompts) {
    comparison->prompts.push_back({.seen = std::vector<bool>(prompt.input_ids.size())});
  }
  ProgressLine progress(options.Flag("verbose"));
  progress.Show("starting");
  Status status = job->WaitUntilReady(Deadline::AfterNs(options.DurationNs("start-timeout")), {});
  Generation generation;
  if (status.ok()) {
    progress.Show(fmt::format("comparing {} prompts", prompts.size()));
    GenerationSinks sinks;
    sinks.captured = [&](size_t request, const CapturedPosition& captured) {
      ComparePosition(prompts[request], shape, captured, &comparison->prompts[request]);
    };
    generation =
        RunRequests(*job, MakeRequests(prompts), sinks, 2 * options.DurationNs("stall-timeout"));
    status = generation.status;
  }
  progress.Clear();
  comparison->signal = job->signal();
  job->Shutdown(Deadline::AfterMs(kShutdownMs));
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(generation.FirstFailure());
  for (size_t i = 0; i < prompts.size(); ++i) {
    PromptComparison& prompt = comparison->prompts[i];
    prompt.greedy_mismatches =
        CountGreedyMismatches(prompts[i].greedy_ids, generation.requests[i].tokens);
    const auto missing = std::find(prompt.seen.begin(), prompt.seen.end(), false);
    if (missing != prompt.seen.end()) {
      return Internal(fmt::format("prompt {}: nothing was captured at position {}", i,
                                  missing - prompt.seen.begin()));
    }
  }
  AddUp(comparison);
  return OkStatus();
}

nlohmann::json ToJson(const PromptComparison& comparison) {
  return {{"max_abs_logit_diff", comparison.max_abs_logit_diff},
          {"positions_compared", comparison.positions_compared},
          {"route_decisions", comparison.route_decisions},
          {"route_mismatches", comparison.route_mismatches},
          {"route_order_differences", comparison.route_order_differences},
          {"greedy_mismatches", comparison.greedy_mismatches}};
}

std::string Row(const std::string& name, const PromptComparison& comparison) {
  return fmt::format("{:<8} {:>18.3e} {:>10} {:>10} of {:<8} {:>8}\n", name,
                     comparison.max_abs_logit_diff, comparison.positions_compared,
                     comparison.route_mismatches, comparison.route_decisions,
                     comparison.greedy_mismatches);
}

bool WithinTolerance(const Options& options, const PromptComparison& total) {
  const double routes_allowed =
      options.Number("route-mismatch-max") * static_cast<double>(total.route_decisions);
  return total.max_abs_logit_diff <= options.Number("tolerance") &&
         static_cast<double>(total.route_mismatches) <= routes_allowed &&
         total.greedy_mismatches == 0;
}

std::string CompareJson(const Options& options, const Comparison& comparison, bool within) {
  nlohmann::json json = ToJson(comparison.total);
  json["format"] = "expertflow-compare";
  json["version"] = 1;
  json["tolerance"] = options.Number("tolerance");
  json["route_mismatch_max"] = options.Number("route-mismatch-max");
  json["within_tolerance"] = within;
  json["prompts"] = nlohmann::json::array();
  for (const PromptComparison& prompt : comparison.prompts)
    json["prompts"].push_back(ToJson(prompt));
  return json.dump(2);
}

}  // namespace

int CompareCommand(const Options& options) {
  if (const Result<WorkerOptions> worker = WorkerOptionsFrom(options); !worker.ok()) {
    return Fail(options, worker.status());
  }
  const Result<ModelSource> model = OpenModel(options.Text("model"));
  if (!model.ok()) return Fail(options, model.status());
  if (const Result<MemoryPlan> plan = PlanFor(options, *model); !plan.ok()) {
    return Fail(options, plan.status());
  }
  if (const auto tables = LoadPolicyTables(options, *model); !tables.ok()) {
    return Fail(options, tables.status());
  }
  std::string reference = options.Text("reference");
  if (reference.empty()) reference = model->folder + "/reference.safetensors";
  const Result<std::vector<ReferencePrompt>> prompts =
      ReadReference(reference, model->architecture->shape());
  if (!prompts.ok()) return Fail(options, prompts.status());

  Comparison comparison;
  const Status status = RunComparison(options, *model, *prompts, &comparison);
  if (comparison.signal != 0) return kExitSignal + comparison.signal;
  if (!status.ok()) return Fail(options, status, kExitFailure);
  const bool within = WithinTolerance(options, comparison.total);
  if (options.Text("json") != "-") {
    std::string table =
        fmt::format("{:<8} {:>18} {:>10} {:>22} {:>8}\n", "prompt", "max |logit diff|", "positions",
                    "routes that differ", "greedy");
    for (size_t i = 0; i < comparison.prompts.size(); ++i) {
      table += Row(fmt::format("p{}", i), comparison.prompts[i]);
    }
    fmt::print("{}{}{}\n", table, Row("all", comparison.total),
               within ? "within tolerance" : "NOT within tolerance");
  }
  if (const Status json = WriteJsonOption(options, CompareJson(options, comparison, within));
      !json.ok()) {
    return Fail(options, json, kExitFailure);
  }
  return within ? kExitOk : kExitFailure;
}

}  // namespace expertflow

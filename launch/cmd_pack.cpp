#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "common/clock.h"
#include "common/log.h"
#include "common/mapped_file.h"
#include "common/units.h"
#include "expert_store/store_layout.h"
#include "expert_store/store_writer.h"
#include "launch/bench/bench_model.h"
#include "launch/commands.h"
#include "launch/files.h"
#include "launch/model_source.h"
#include "launch/pack_settings.h"
#include "launch/progress.h"
#include "launch/text_quality.h"
#include "launch/text_windows.h"
#include "model/arch/architecture.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/json_config.h"
#include "model/checkpoint/model_files.h"

namespace expertflow {
namespace {

namespace fs = std::filesystem;

struct Packed {
  std::string file;
  uint64_t bytes = 0;
  int64_t wall_ns = 0;
  std::vector<DType> expert_dtypes;
  uint64_t expert_bytes = 0;
  uint64_t expert_bytes_kept = 0;  // what they would be without --quant
  uint64_t dense_bytes = 0;
  uint64_t dense_bytes_kept = 0;
  PackSettings settings;
  std::map<std::string, QuantisationError> tensors;  // of the checkpoint, that were quantised
  std::optional<WindowedText> text;                  // --text
  TextQuality quality;                               // on it
};

// Of a fused tensor: all its experts together.
void AddError(const std::string& name, const QuantisationError& error, Packed* packed) {
  QuantisationError& sum = packed->tensors[name];
  sum.error_squares += error.error_squares;
  sum.value_squares += error.value_squares;
  sum.error_max = std::max(sum.error_max, error.error_max);
}

// What a GGUF file says in place of a folder's text.
Status WriteTextOf(const std::string& model, const std::string& name, const std::string& folder) {
  const Result<std::string> text = ReadModelText(model, name, SIZE_MAX);
  if (!text.ok() && text.status().code() == StatusCode::kNotFound) return OkStatus();
  if (!text.ok() && name.starts_with("tokenizer")) {
    LogWarning("{} is not written: {}", name, text.status().message());
    return OkStatus();
  }
  RETURN_IF_ERROR(text.status());
  return WriteFileAtomically(folder + "/" + name, *text);
}

// Before and after on --text. `kept` is the store as it would be without --quant; it is written
// beside the packed file for the time of the measurement where it is another.
Status MeasureQuality(const Options& options, const StoreLayout& kept, bool changed,
                      ProgressLine* progress, Packed* packed) {
  const std::string folder = options.Text("output");
  const std::string file = changed ? folder + "/model.before.efstore" : packed->file;
  if (changed) {
    StoreFillOptions fill;
    fill.progress = [&](uint64_t done, uint64_t total) {
      progress->ShowBytes("writing the model before", done, total);
    };
    RETURN_IF_ERROR(PackStore(kept, file, fill));
  }
  auto before = BenchModel::Open(file, folder);
  std::error_code ignored;
  if (changed) fs::remove(file, ignored);  // the mapping stays
  RETURN_IF_ERROR(before.status());
  ASSIGN_OR_RETURN(const BenchModel after, BenchModel::Open(packed->file, folder));
  TextQualityOptions quality;
  quality.threads = static_cast<int32_t>(options.Integer("threads"));
  quality.progress = [&](size_t done, size_t windows) {
    progress->Show(fmt::format("window {} of {} of the text", done + 1, windows));
  };
  ASSIGN_OR_RETURN(packed->quality, CompareOnText(*before, after, *packed->text, quality));
  return OkStatus();
}

Result<Packed> Pack(const Options& options) {
  const std::string input = options.Text("checkpoint");
  const std::string folder = options.Text("output");
  Packed packed{.file = folder + "/" + kPackedFileName};
  std::error_code error;
  if (fs::exists(packed.file, error) && !options.Flag("force")) {
    return InvalidArgument(fmt::format("{} exists; --force overwrites it", packed.file));
  }
  ASSIGN_OR_RETURN(const JsonConfig config, LoadModelConfig(input));
  ModelSource model;
  model.folder = input;
  ASSIGN_OR_RETURN(model.architecture, MakeArchitecture(config));
  if (options.Given("text")) {
    const auto context = static_cast<uint64_t>(model.architecture->shape().context);
    ASSIGN_OR_RETURN(packed.text, WindowText(options, model, context));
  }
  const WeightPlan& plan = model.architecture->weights();
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(input));
  ASSIGN_OR_RETURN(packed.settings, PackSettingsFrom(options, *model.architecture));
  ASSIGN_OR_RETURN(const StoreLayout kept, StoreLayout::Make(plan, checkpoint, config.text()));
  ASSIGN_OR_RETURN(const StoreLayout layout,
                   StoreLayout::Make(plan, checkpoint, config.text(), packed.settings.store));
  packed.bytes = layout.total_bytes();
  packed.expert_dtypes = layout.expert_dtypes();
  packed.expert_bytes = layout.expert_bytes();
  packed.expert_bytes_kept = kept.expert_bytes();
  packed.dense_bytes = layout.dense_bytes();
  packed.dense_bytes_kept = kept.dense_bytes();

  const int64_t start_ns = NowNs();
  RETURN_IF_ERROR(MakeFolder(folder));
  ProgressLine progress(options.Flag("verbose"));
  StoreFillOptions fill;
  fill.progress = [&](uint64_t done, uint64_t total) {
    progress.ShowBytes("packing", done, total);
  };
  fill.quantised = [&](const TensorInfo& tensor, const QuantisationError& error) {
    AddError(tensor.name, error, &packed);
  };
  RETURN_IF_ERROR(PackStore(layout, packed.file, fill));
  progress.Clear();
  for (const char* name :
       {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    RETURN_IF_ERROR(IsGguf(input) ? WriteTextOf(input, name, folder)
                                  : CopyIfPresent(input + "/" + name, folder + "/" + name));
  }
  packed.wall_ns = NowNs() - start_ns;
  if (packed.text) {
    RETURN_IF_ERROR(MeasureQuality(options, kept, packed.settings.quantises(), &progress, &packed));
    progress.Clear();
  }
  return packed;
}

nlohmann::json QuantisationJson(const Packed& packed) {
  nlohmann::json json = {
      {"expert_dtype", DTypeNames(packed.expert_dtypes)}, {"expert_bytes", packed.expert_bytes},
      {"expert_bytes_kept", packed.expert_bytes_kept},    {"dense_bytes", packed.dense_bytes},
      {"dense_bytes_kept", packed.dense_bytes_kept},      {"tensors", nlohmann::json::array()}};
  if (packed.settings.popular_type) {
    json["popular"] = {{"dtype", DTypeName(*packed.settings.popular_type)},
                       {"experts", packed.settings.popular_experts},
                       {"share_of_uses", packed.settings.popular_uses}};
  }
  for (const auto& [name, error] : packed.tensors) {
    json["tensors"].push_back(
        {{"name", name}, {"relative_error", error.relative()}, {"error_max", error.error_max}});
  }
  return json;
}

nlohmann::json QualityJson(const Options& options, const Packed& packed) {
  const TextQuality& quality = packed.quality;
  return {{"text", options.Text("text")},
          {"tokens", packed.text->tokens.size()},
          {"tokens_scored", quality.scored},
          {"window", packed.text->length},
          {"window_step", packed.text->step},
          {"nll_before", quality.nll_before},
          {"nll_after", quality.nll_after},
          {"perplexity_before", std::exp(quality.nll_before)},
          {"perplexity_after", std::exp(quality.nll_after)},
          {"kl_divergence_mean", quality.divergence_mean},
          {"kl_divergence_max", quality.divergence_max}};
}

void PrintQuality(const Packed& packed) {
  if (!packed.text) return;
  const TextQuality& quality = packed.quality;
  fmt::print(
      "perplexity {:.6g} instead of {:.6g} over {} of {} tokens; KL divergence of the logits "
      "{:.3g} "
      "nats on average, at most {:.3g}\n",
      std::exp(quality.nll_after), std::exp(quality.nll_before), quality.scored,
      packed.text->tokens.size(), quality.divergence_mean, quality.divergence_max);
}

void PrintQuantisation(const Packed& packed) {
  if (packed.tensors.empty()) return;
  QuantisationError all;
  const auto worst = std::max_element(
      packed.tensors.begin(), packed.tensors.end(),
      [](const auto& a, const auto& b) { return a.second.relative() < b.second.relative(); });
  for (const auto& [name, error] : packed.tensors) {
    all.error_squares += error.error_squares;
    all.value_squares += error.value_squares;
  }
  fmt::print(
      "experts as {}: {} instead of {}; error {:.2f} % of the weights (root mean square), at "
      "most {:.2f} % ({})\n",
      DTypeNames(packed.expert_dtypes), FormatBytes(packed.expert_bytes),
      FormatBytes(packed.expert_bytes_kept), 100 * all.relative(), 100 * worst->second.relative(),
      worst->first);
  if (packed.settings.popular_type) {
    fmt::print("{} popular experts as {}: {:.1f} % of the trace's uses\n",
               packed.settings.popular_experts, DTypeName(*packed.settings.popular_type),
               100 * packed.settings.popular_uses);
  }
  if (packed.settings.store.dense) {
    fmt::print("everything else: {} instead of {}\n", FormatBytes(packed.dense_bytes),
               FormatBytes(packed.dense_bytes_kept));
  }
}

}  // namespace

int PackCommand(const Options& options) {
  const Result<Packed> packed = Pack(options);
  if (!packed.ok()) return Fail(options, packed.status());
  const double rate = static_cast<double>(packed->bytes) * 1e9 /
                      static_cast<double>(std::max<int64_t>(packed->wall_ns, 1));
  if (options.Text("json") != "-") {
    fmt::print("{}: {} in {} ({})\n", packed->file, FormatBytes(packed->bytes),
               FormatDurationNs(packed->wall_ns), FormatBytesPerSecond(rate));
    PrintQuantisation(*packed);
    PrintQuality(*packed);
  }
  nlohmann::json json = {{"format", "expertflow-pack"},
                         {"version", 1},
                         {"file", packed->file},
                         {"bytes", packed->bytes},
                         {"wall_ns", packed->wall_ns},
                         {"bytes_per_second", rate},
                         {"quantisation", QuantisationJson(*packed)}};
  if (packed->text) json["quality"] = QualityJson(options, *packed);
  if (const Status status = WriteJsonOption(options, json.dump(2)); !status.ok()) {
    return Fail(options, status, kExitFailure);
  }
  return kExitOk;
}

}  // namespace expertflow

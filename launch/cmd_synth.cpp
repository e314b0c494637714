#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "common/clock.h"
#include "common/mapped_file.h"
#include "common/units.h"
#include "expert_store/synth.h"
#include "launch/commands.h"
#include "launch/files.h"
#include "launch/progress.h"
#include "model/arch/architecture.h"
#include "model/checkpoint/json_config.h"

namespace expertflow {
namespace {

struct DTypeSpelling {
  const char* option;
  DType dtype;
  const char* config;
};
constexpr DTypeSpelling kDTypes[] = {{"bf16", DType::kBF16, "bfloat16"},
                                     {"f16", DType::kF16, "float16"},
                                     {"f32", DType::kF32, "float32"}};

// The config of the checkpoint to write: other depth, other type, the rest as it is.
Result<std::string> EditConfig(const std::string& path, int64_t layers,
                               const DTypeSpelling& dtype) {
  ASSIGN_OR_RETURN(const std::string text, ReadFileToString(path, JsonConfig::kBytesMax));
  // Refuses what nlohmann would put up with, such as deep nesting and duplicate keys.
  RETURN_IF_ERROR(JsonConfig::Parse(text, path).status());
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(text, nullptr, false);
  if (!config.is_object()) return InvalidArgument(fmt::format("{}: expected an object", path));
  if (layers > 0) {
    config["num_hidden_layers"] = layers;
    if (const auto types = config.find("layer_types");
        types != config.end() && types->is_array() && types->size() > static_cast<size_t>(layers)) {
      types->erase(types->begin() + layers, types->end());
    }
    if (const auto dense = config.find("mlp_only_layers");
        dense != config.end() && dense->is_array()) {
      nlohmann::ordered_json kept = nlohmann::ordered_json::array();
      for (const auto& layer : *dense) {
        if (layer.is_number_integer() && layer.get<int64_t>() < layers) kept.push_back(layer);
      }
      *dense = std::move(kept);
    }
  }
  config.erase("quantization_config");  // what is written is not quantised
  for (const char* key : {"torch_dtype", "dtype"}) {
    if (config.contains(key)) config[key] = dtype.config;
  }
  return config.dump(2) + "\n";
}

struct Written {
  uint64_t bytes = 0;
  int64_t wall_ns = 0;
};

Result<Written> Synthesize(const Options& options) {
  const std::string source = options.Text("config-json");
  const std::string folder = options.Text("output");
  const DTypeSpelling& dtype = *std::find_if(
      std::begin(kDTypes), std::end(kDTypes),
      [&](const DTypeSpelling& spelling) { return options.Text("dtype") == spelling.option; });
  ASSIGN_OR_RETURN(const std::string config_json,
                   EditConfig(source, options.Integer("layers"), dtype));
  ASSIGN_OR_RETURN(const JsonConfig config, JsonConfig::Parse(config_json, source));
  ASSIGN_OR_RETURN(const std::unique_ptr<Architecture> architecture, MakeArchitecture(config));

  Written written;
  const int64_t start_ns = NowNs();
  ProgressLine progress(options.Flag("verbose"));
  SyntheticOptions synthetic;
  synthetic.dtype = dtype.dtype;
  synthetic.seed = static_cast<uint64_t>(options.Integer("seed"));
  synthetic.progress = [&](uint64_t done, uint64_t total) {
    written.bytes = total;
    progress.ShowBytes("writing", done, total);
  };
  RETURN_IF_ERROR(
      WriteSyntheticCheckpoint(architecture->weights(), config_json, folder, synthetic));
  progress.Clear();
  if (const std::string tokenizer = options.Text("tokenizer"); !tokenizer.empty()) {
    RETURN_IF_ERROR(CopyFile(tokenizer, folder + "/tokenizer.json"));
  }
  written.wall_ns = NowNs() - start_ns;
  return written;
}

}  // namespace

int SynthCommand(const Options& options) {
  const Result<Written> written = Synthesize(options);
  if (!written.ok()) return Fail(options, written.status());
  if (options.Text("json") != "-") {
    fmt::print("{}: {} in {}\n", options.Text("output"), FormatBytes(written->bytes),
               FormatDurationNs(written->wall_ns));
  }
  const nlohmann::json json = {{"format", "expertflow-synth"},
                               {"version", 1},
                               {"folder", options.Text("output")},
                               {"bytes", written->bytes},
                               {"wall_ns", written->wall_ns}};
  if (const Status status = WriteJsonOption(options, json.dump(2)); !status.ok()) {
    return Fail(options, status, kExitFailure);
  }
  return kExitOk;
}

}  // namespace expertflow

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>

#include "common/clock.h"
#include "common/log.h"
#include "common/mapped_file.h"
#include "common/units.h"
#include "expert_store/store_layout.h"
#include "expert_store/store_writer.h"
#include "launch/commands.h"
#include "launch/files.h"
#include "launch/model_source.h"
#include "launch/progress.h"
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
};

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

Result<Packed> Pack(const Options& options) {
  const std::string input = options.Text("checkpoint");
  const std::string folder = options.Text("output");
  Packed packed{.file = folder + "/" + kPackedFileName};
  std::error_code error;
  if (fs::exists(packed.file, error) && !options.Flag("force")) {
    return InvalidArgument(fmt::format("{} exists; --force overwrites it", packed.file));
  }
  ASSIGN_OR_RETURN(const JsonConfig config, LoadModelConfig(input));
  ASSIGN_OR_RETURN(const std::unique_ptr<Architecture> architecture, MakeArchitecture(config));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(input));
  ASSIGN_OR_RETURN(const StoreLayout layout,
                   StoreLayout::Make(architecture->weights(), checkpoint, config.text()));
  packed.bytes = layout.total_bytes();

  const int64_t start_ns = NowNs();
  RETURN_IF_ERROR(MakeFolder(folder));
  ProgressLine progress(options.Flag("verbose"));
  StoreFillOptions fill;
  fill.progress = [&](uint64_t done, uint64_t total) {
    progress.ShowBytes("packing", done, total);
  };
  RETURN_IF_ERROR(PackStore(layout, packed.file, fill));
  progress.Clear();
  for (const char* name :
       {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    RETURN_IF_ERROR(IsGguf(input) ? WriteTextOf(input, name, folder)
                                  : CopyIfPresent(input + "/" + name, folder + "/" + name));
  }
  packed.wall_ns = NowNs() - start_ns;
  return packed;
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
  }
  const nlohmann::json json = {{"format", "expertflow-pack"}, {"version", 1},
                               {"file", packed->file},        {"bytes", packed->bytes},
                               {"wall_ns", packed->wall_ns},  {"bytes_per_second", rate}};
  if (const Status status = WriteJsonOption(options, json.dump(2)); !status.ok()) {
    return Fail(options, status, kExitFailure);
  }
  return kExitOk;
}

}  // namespace expertflow

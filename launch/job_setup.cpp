#include "launch/job_setup.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "common/process.h"
#include "common/units.h"
#include "expert_store/host_limits.h"
#include "launch/role.h"

namespace expertflow {
namespace {

std::string AbsolutePath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.string();
}

}  // namespace

JobSetup MakeJobSetup(const Options& options, const std::string& model) {
  Options role_options = options.With({{"model", model}}).Without("log-level");
  for (const char* file : {"tokenizer", "trace", "record"}) {
    if (!options.Text(file).empty()) {
      role_options = role_options.With({{file, AbsolutePath(options.Text(file))}});
    }
  }
  const auto arguments = [&](Command role) {
    std::vector<std::string> words = role_options.ArgumentsFor(role);
    words.emplace_back("--log-level");
    words.push_back(options.Text("role-log-level"));
    return words;
  };
  return {.workers = static_cast<int32_t>(options.Integer("workers")),
          .coordinator_arguments = arguments(Command::kCoordinator),
          .store_arguments = arguments(Command::kStore),
          .worker_arguments = arguments(Command::kWorker),
          .requested_json = options.ProvenanceJson(),
          .others_join = FindOption(options.command(), "join-listen") != nullptr &&
                         options.Given("join-listen") && !IsLoopback(options.Text("join-listen"))};
}

Status CheckHost(const Options& options, const ModelSource& model, const MemoryPlan& memory) {
  const bool packed = !model.store_file.empty();
  if (!packed) RETURN_IF_ERROR(CheckSharedMemory(model.store_bytes));
  const auto workers = static_cast<uint64_t>(options.Integer("workers"));
  const uint64_t need = workers * memory.total_bytes() + (packed ? 0 : model.store_bytes);
  ASSIGN_OR_RETURN(const uint64_t have, AvailableMemoryBytes());
  if (need > have) {
    return ResourceExhausted(fmt::format(
        "the job needs {} of memory ({} workers of {} and the store), {} are available; lower "
        "--expert-memory, --kv-memory or --workers",
        FormatBytes(need), workers, FormatBytes(memory.total_bytes()), FormatBytes(have)));
  }
  return OkStatus();
}

}  // namespace expertflow

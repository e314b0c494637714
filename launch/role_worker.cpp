#include <fmt/format.h>

#include <filesystem>

#include "launch/commands.h"
#include "launch/role.h"
#include "launch/trace/recording.h"
#include "launch/worker_setup.h"

namespace expertflow {
namespace {

// Each worker, and each replacement, has a trace of its own: "run.eft" -> "run.3.eft".
std::string TraceFileOf(const std::string& file, ProcessId self) {
  if (file.empty()) return file;
  const std::filesystem::path path(file);
  const std::string name =
      fmt::format("{}.{}{}", path.stem().string(), self.value, path.extension().string());
  return (path.parent_path() / name).string();
}

Status Work(const Options& options, const RoleContext& context) {
  ASSIGN_OR_RETURN(WorkerOptions worker, WorkerOptionsFrom(options));
  worker.job = options.Text("job");
  worker.self = context.self;
  // A joiner may not see the others yet.
  if (options.Given("join"))
    worker.workers_on_host = static_cast<int32_t>(options.Integer("workers"));
  worker.trace_file = TraceFileOf(worker.trace_file, context.self);
  if (!worker.record_file.empty()) {
    worker.record_file = RecordingPart(worker.record_file, worker.job, context.self);
  }
  return RunWorker(worker, context.transport, context.members, context.signals);
}

}  // namespace

int WorkerCommand(const Options& options) {
  RunRole(options, ProcessRole::kWorker,
          [&](const RoleContext& context) { return Work(options, context); });
}

}  // namespace expertflow

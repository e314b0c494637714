#include <algorithm>
#include <string>
#include <vector>

#include "common/mapped_file.h"
#include "coordinator/coordinator_process.h"
#include "launch/commands.h"
#include "launch/job_folder.h"
#include "launch/model_source.h"
#include "launch/policy_tables.h"
#include "launch/role.h"

namespace expertflow {
namespace {

constexpr size_t kRequestedBytesMax = size_t{1} << 20;

int32_t CountRole(const std::vector<Member>& members, ProcessRole role) {
  return static_cast<int32_t>(
      std::count_if(members.begin(), members.end(),
                    [role](const Member& member) { return member.info.role == role; }));
}

std::vector<std::string> ReplacementCommand(const Options& options, const std::string& executable,
                                            Command role) {
  std::vector<std::string> command = {executable, std::string(InfoOf(role).name)};
  for (const char* name : {"job", "job-dir", "job-pid"}) {
    if (!options.Given(name)) continue;
    command.push_back(std::string("--") + name);
    command.push_back(std::string(name) == "job-pid" ? std::to_string(options.Integer(name))
                                                     : options.Text(name));
  }
  const std::vector<std::string> rest = options.ArgumentsFor(role);
  command.insert(command.end(), rest.begin(), rest.end());
  return command;
}

// A worker that chooses by experts who goes next gets as many to choose from as it can run.
Result<int32_t> SequencesAtAWorker(const Options& options) {
  ASSIGN_OR_RETURN(const bool in_place, ComputesInPlace(options));
  const auto places = static_cast<int32_t>(options.Integer("sequences-max"));
  return options.Switch("group-by-experts") && !in_place ? 4 * places : places;
}

Result<CoordinatorOptions> CoordinatorOptionsFrom(const Options& options,
                                                  const RoleContext& context) {
  CoordinatorOptions coordinator;
  coordinator.job = options.Text("job");
  coordinator.control_socket = ControlSocketPath(JobFolderPath(options));
  ASSIGN_OR_RETURN(const ModelSource model, OpenModel(options.Text("model")));
  coordinator.model = model.folder;
  ASSIGN_OR_RETURN(coordinator.tables, LoadPolicyTables(options, model));
  coordinator.shares_stride = options.Text("stride-control") == "job";
  coordinator.shares_learning = options.Text("learning") == "job";
  coordinator.tokenizer = options.Text("tokenizer");
  coordinator.join_address = options.Text("join-listen");
  coordinator.join_secret = JoinSecret();
  const int32_t started_workers = CountRole(context.members, ProcessRole::kWorker);
  const int32_t started_stores = CountRole(context.members, ProcessRole::kStore);
  coordinator.workers_expected = options.Given("workers") || started_workers == 0
                                     ? static_cast<int32_t>(options.Integer("workers"))
                                     : started_workers;
  coordinator.stores_expected = options.Given("stores") || started_stores == 0
                                    ? static_cast<int32_t>(options.Integer("stores"))
                                    : started_stores;
  ASSIGN_OR_RETURN(coordinator.sequences_per_worker_max, SequencesAtAWorker(options));
  coordinator.queued_requests_max = static_cast<uint32_t>(options.Integer("queue-max"));
  coordinator.start_timeout_ns = options.DurationNs("start-timeout");
  coordinator.heartbeat_ns = options.DurationNs("heartbeat-interval");
  coordinator.heartbeat_timeout_ns = options.DurationNs("heartbeat-timeout");
  coordinator.stall_timeout_ns = options.DurationNs("stall-timeout");
  if (!options.Flag("no-restart")) {
    ASSIGN_OR_RETURN(const std::string executable, ExecutablePath());
    coordinator.store_command = ReplacementCommand(options, executable, Command::kStore);
    coordinator.worker_command = ReplacementCommand(options, executable, Command::kWorker);
  }
  coordinator.requested_config = options.ProvenanceJson();
  if (const std::string file = options.Text("requested"); !file.empty()) {
    ASSIGN_OR_RETURN(coordinator.requested_config, ReadFileToString(file, kRequestedBytesMax));
  }
  return coordinator;
}

Status Coordinate(const Options& options, const RoleContext& context) {
  ASSIGN_OR_RETURN(CoordinatorOptions coordinator, CoordinatorOptionsFrom(options, context));
  const std::string folder = JobFolderPath(options);
  bool owned = false;
  RETURN_IF_ERROR(ClaimJobFolder(folder, coordinator.job, &owned));
  if (owned) coordinator.on_signal = [&folder] { RemoveJobFolder(folder); };
  Status status = RunCoordinator(coordinator, context.transport, context.members, context.signals);
  if (owned) RemoveJobFolder(folder);
  return status;
}

}  // namespace

int CoordinatorCommand(const Options& options) {
  RunRole(options, ProcessRole::kCoordinator,
          [&](const RoleContext& context) { return Coordinate(options, context); });
}

}  // namespace expertflow

#include "expert_store/store_process.h"
#include "launch/commands.h"
#include "launch/model_source.h"
#include "launch/role.h"

namespace expertflow {
namespace {

// Whose life is the job's: what --job-pid says, or the coordinator when it is on this host.
int64_t JobPid(const Options& options, const RoleContext& context) {
  if (options.Given("job-pid")) return options.Integer("job-pid");
  for (const Member& member : context.members) {
    if (member.info.role == ProcessRole::kCoordinator && member.info.boot_id == ReadBootId()) {
      return member.info.pid;
    }
  }
  return 0;
}

Status Store(const Options& options, const RoleContext& context) {
  ASSIGN_OR_RETURN(const ModelSource model, OpenModel(options.Text("model")));
  StoreOptions store;
  store.job = options.Text("job");
  store.job_pid = JobPid(options, context);
  store.model = model.folder;
  store.store_file = model.store_file;
  store.plan = model.architecture->weights();
  store.config_json = model.config_json;
  store.load_threads = static_cast<int32_t>(options.Integer("load-threads"));
  store.heartbeat_ns = options.DurationNs("heartbeat-interval");
  store.heartbeat_timeout_ns = options.DurationNs("heartbeat-timeout");
  return RunStore(store, context.transport, context.members, context.signals);
}

}  // namespace

int StoreCommand(const Options& options) {
  RunRole(options, ProcessRole::kStore,
          [&](const RoleContext& context) { return Store(options, context); });
}

}  // namespace expertflow

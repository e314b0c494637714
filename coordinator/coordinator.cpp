#include "coordinator/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/log.h"
#include "common/token_blocks.h"
#include "transport/wire.h"

namespace expertflow {

Coordinator::Coordinator(const CoordinatorOptions& options, const ServedModel& model,
                         CoordinatorPort& port, int64_t now_ns)
    : options_(options),
      model_(model),
      port_(port),
      started_ns_(now_ns),
      last_tick_ns_(now_ns),
      placement_({options.sequences_per_worker_max, options.queued_requests_max}),
      learnt_({}) {}

std::string Coordinator::NameOf(const Process& process) const {
  return fmt::format("{} {} (pid {} on {})", RoleName(process.member.info.role),
                     process.member.id.value, process.member.info.pid, process.member.info.host);
}

int32_t Coordinator::CountReady(ProcessRole role) const {
  return static_cast<int32_t>(
      std::count_if(processes_.begin(), processes_.end(), [role](const auto& entry) {
        return entry.second.member.info.role == role && entry.second.ready;
      }));
}

bool Coordinator::HasProcess(ProcessRole role) const {
  return std::any_of(processes_.begin(), processes_.end(),
                     [role](const auto& entry) { return entry.second.member.info.role == role; });
}

bool Coordinator::IsHere(const Process& process) const {
  return SameHost(process.member.info, self_.info);
}

// --- what stores and workers say ---------------------------------------------------------------

void Coordinator::OnMember(const Member& member, int64_t now_ns) {
  Process process;
  process.member = member;
  process.joined_ns = now_ns;
  process.last_heard_ns = now_ns;
  process.progress_ns = now_ns;
  const Process& added = processes_.emplace(member.id, std::move(process)).first->second;
  AttachWorkers();
  SayWhatIsMissing(added);
}

void Coordinator::OnJoiner(const Member& member, int64_t now_ns) {
  OnMember(member, now_ns);
  Process& process = processes_.at(member.id);
  process.guest = !IsHere(process) || !replacements_.Joined(member.info.pid);
  LogInfo("{} has joined", NameOf(process));
}

void Coordinator::OnMessage(ProcessId id, const Message& message, int64_t now_ns) {
  const auto found = processes_.find(id);
  if (found == processes_.end() || result_) return;  // from a process that was given up
  Process* process = &found->second;
  process->last_heard_ns = now_ns;
  if (const auto* heartbeat = std::get_if<Heartbeat>(&message)) {
    OnHeartbeat(process, *heartbeat, now_ns);
  } else if (const auto* error = std::get_if<FatalError>(&message)) {
    OnFatal(id, *error, now_ns);
  } else if (process->member.info.role == ProcessRole::kStore) {
    OnStoreMessage(process, message, now_ns);
  } else {
    OnWorkerMessage(process, message, now_ns);
  }
}

void Coordinator::OnStoreMessage(Process* process, const Message& message, int64_t now_ns) {
  if (const auto* progress = std::get_if<LoadProgress>(&message)) {
    OnLoadProgress(process, *progress);
  } else if (const auto* ready = std::get_if<StoreReady>(&message)) {
    OnStoreReady(process, *ready, now_ns);
  } else {
    OnProcessGone(process->member.id, "it sent a message that is not a store's", now_ns);
  }
}

void Coordinator::OnWorkerMessage(Process* process, const Message& message, int64_t now_ns) {
  if (const auto* ready = std::get_if<WorkerReady>(&message)) {
    OnWorkerReady(process, *ready, now_ns);
  } else if (const auto* stats = std::get_if<WorkerStats>(&message)) {
    process->stats = *stats;
  } else if (const auto* experts = std::get_if<ExpertReport>(&message)) {
    OnExpertReport(process, *experts, now_ns);
  } else if (const auto* report = std::get_if<StepReport>(&message)) {
    OnStepReport(process, *report, now_ns);
  } else if (const auto* captured = std::get_if<CapturedPosition>(&message)) {
    OnCaptured(process, *captured, now_ns);
  } else if (const auto* failed = std::get_if<SequenceFailed>(&message)) {
    OnSequenceFailed(process, *failed, now_ns);
  } else if (const auto* learnt = std::get_if<PredictorLearnt>(&message)) {
    OnPredictorLearnt(process, *learnt, now_ns);
  } else if (const auto* stride = std::get_if<StrideReport>(&message)) {
    OnStrideReport(process, *stride, now_ns);
  } else {
    OnProcessGone(process->member.id, "it sent a message that is not a worker's", now_ns);
  }
}

void Coordinator::OnLoadProgress(Process* process, const LoadProgress& progress) {
  process->load = progress;
  if (!starting()) return;  // a restarted store; requests are served meanwhile
  phase_ = JobPhase::kLoading;
  TellClients();
}

void Coordinator::OnStoreReady(Process* process, const StoreReady& ready, int64_t now_ns) {
  const bool has_own_store =
      std::any_of(processes_.begin(), processes_.end(), [](const auto& entry) {
        return entry.second.member.info.role == ProcessRole::kStore && !entry.second.guest;
      });
  if (fingerprint_.empty() && process->guest && has_own_store) {
    process->store = ready;  // judged when the job's own store has told what the model is
    return;
  }
  if (!AcceptStore(process, ready, now_ns)) return;
  for (auto entry = processes_.begin(); entry != processes_.end();) {
    Process* guest = &(entry++)->second;  // it may be turned away
    if (guest->guest && !guest->ready && !guest->store.fingerprint.empty()) {
      AcceptStore(guest, StoreReady(guest->store), now_ns);
    }
  }
  AttachWorkers();
}

bool Coordinator::AcceptStore(Process* process, const StoreReady& ready, int64_t now_ns) {
  if (!fingerprint_.empty() && ready.fingerprint != fingerprint_) {
    TurnAway(process->member.id,
             InvalidArgument(fmt::format("{} holds another model (fingerprint {}) than the job "
                                         "({}); give it the job's --model",
                                         NameOf(*process), ready.fingerprint, fingerprint_)),
             now_ns);
    return false;
  }
  fingerprint_ = ready.fingerprint;
  process->store = ready;
  process->ready = true;
  if (ready.adopted) LogInfo("{} took over {}", NameOf(*process), ready.name);
  return true;
}

void Coordinator::AttachWorkers() {
  for (auto& [id, worker] : processes_) {
    if (worker.member.info.role != ProcessRole::kWorker || worker.attached) continue;
    for (const auto& [store_id, store] : processes_) {
      if (store.member.info.role == ProcessRole::kStore && store.ready &&
          SameHost(store.member.info, worker.member.info)) {
        worker.attached = true;
        for (const PublishTables& tables : model_.tables) port_.Send(id, tables);
        const auto board = IsHere(worker) ? port_.Board() : std::nullopt;
        worker.reads_board = board.has_value();
        if (board) port_.Send(id, *board);
        port_.Send(id, AttachStore{store.store});
        break;
      }
    }
  }
}

void Coordinator::SayWhatIsMissing(const Process& worker) const {
  if (worker.member.info.role != ProcessRole::kWorker || worker.attached) return;
  const bool has_store = std::any_of(processes_.begin(), processes_.end(), [&](const auto& entry) {
    const ProcessInfo& info = entry.second.member.info;
    return info.role == ProcessRole::kStore && SameHost(info, worker.member.info);
  });
  if (!has_store) {
    LogWarning("{} waits: its host has no store; start one there with --join", NameOf(worker));
  }
}

void Coordinator::OnWorkerReady(Process* process, const WorkerReady& ready, int64_t now_ns) {
  // A sequence that goes on at another worker must go on with the same bits.
  if (!arithmetic_.empty() && ready.arithmetic != arithmetic_) {
    TurnAway(process->member.id,
             FailedPrecondition(fmt::format(
                 "{} has kernels '{}' with other sums ({}) than the job's ({}): start all "
                 "workers with the same --kernels, --activations and --kv-dtype",
                 NameOf(*process), ready.kernels, ready.arithmetic, arithmetic_)),
             now_ns);
    return;
  }
  arithmetic_ = ready.arithmetic;
  process->worker = ready;
  process->ready = true;
  const uint64_t blocks = ready.prefix_cache ? ready.kv_tokens / kKvBlockTokens : 0;
  placement_.WorkerReady(WorkerId(process->member.id.value), blocks);
  SendLearnt(process);
  SendStride(*process);
  UpdatePhase();
  Assign();
}

void Coordinator::OnExpertReport(Process* process, const ExpertReport& report, int64_t now_ns) {
  const uint64_t experts =
      std::accumulate(report.experts.begin(), report.experts.end(), uint64_t{0});
  if (report.layers.size() != report.experts.size() || report.rows.size() != experts ||
      report.places.size() != experts) {
    OnProcessGone(process->member.id, "it sent a report of experts that does not add up", now_ns);
    return;
  }
  process->experts = report;
}

void Coordinator::OnHeartbeat(Process* process, const Heartbeat& heartbeat, int64_t now_ns) {
  if (!heartbeat.busy || !process->busy || heartbeat.progress != process->progress) {
    process->progress_ns = now_ns;
  }
  process->progress = heartbeat.progress;
  process->busy = heartbeat.busy;
}

void Coordinator::OnFatal(ProcessId id, const FatalError& error, int64_t now_ns) {
  // Before the job is ready an error would only come again.
  const auto found = processes_.find(id);
  if (starting() && found != processes_.end() && !found->second.guest) {
    Fail(Status(ErrorCodeFrom(error.code), error.message), now_ns);
    return;
  }
  OnProcessGone(id, error.message, now_ns);
}

void Coordinator::TurnAway(ProcessId id, const Status& why, int64_t now_ns) {
  const FatalError error{static_cast<uint8_t>(why.code()), why.message()};
  port_.Send(id, error);
  OnFatal(id, error, now_ns);
}

// --- phases ------------------------------------------------------------------------------------

JobState Coordinator::State() const {
  JobState state;
  state.phase = phase_;
  for (const auto& [id, process] : processes_) {
    state.bytes_done += process.load.bytes_done;
    state.bytes_total += process.load.bytes_total;
  }
  state.code = static_cast<uint8_t>(failure_.code());
  state.message = failure_.message();
  return state;
}

void Coordinator::TellClients() {
  const std::vector<ClientId> clients = clients_;  // a slow one is dropped on the way
  for (const ClientId client : clients) ToClient(client, State());
}

void Coordinator::UpdatePhase() {
  if (!starting() || CountReady(ProcessRole::kWorker) < options_.workers_expected) return;
  phase_ = JobPhase::kReady;
  LogInfo("the job takes requests");
  TellClients();
}

void Coordinator::Fail(const Status& status, int64_t now_ns) {
  if (result_) return;
  LogError("{}", status.ToString());
  failure_ = status;
  End(JobPhase::kFailed, status, status.message(), now_ns);
}

void Coordinator::Stop(const std::string& reason, int64_t now_ns) {
  if (result_) return;
  LogInfo("the job ends: {}", reason);
  End(JobPhase::kStopping, OkStatus(), reason, now_ns);
}

void Coordinator::End(JobPhase phase, const Status& status, const std::string& reason,
                      int64_t now_ns) {
  result_ = status;
  phase_ = phase;
  std::vector<SequenceId> sequences;
  for (const auto& [sequence, request] : requests_) sequences.push_back(sequence);
  for (const SequenceId sequence : sequences) {
    if (status.ok()) {
      Finish(sequence, FinishReason::kCancelled, Cancelled("the job ends: " + reason), now_ns);
    } else {
      Finish(sequence, FinishReason::kError, status, now_ns);
    }
  }
  TellClients();
  for (const auto& [id, process] : processes_) port_.Send(id, Shutdown{reason});
}

JobSnapshot Coordinator::Snapshot(int64_t now_ns) const {
  JobSnapshot snapshot;
  snapshot.job = options_.job;
  snapshot.phase = phase_;
  snapshot.uptime_ns = now_ns - started_ns_;
  snapshot.join_address = options_.join_address;
  snapshot.requested_config = options_.requested_config;
  snapshot.queued = placement_.queued();
  snapshot.running = placement_.running();
  snapshot.placement_digest = placement_.digest();
  snapshot.counters = counters_;
  snapshot.learning = SnapshotLearning(now_ns);
  snapshot.stride = SnapshotStride(now_ns);
  snapshot.processes.push_back({.member = self_, .ready = true});
  for (const auto& [id, process] : processes_) {
    snapshot.processes.push_back({process.member, process.ready, process.busy,
                                  now_ns - process.last_heard_ns, process.worker, process.stats,
                                  process.store});
  }
  return snapshot;
}

}  // namespace expertflow

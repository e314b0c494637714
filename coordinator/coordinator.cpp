#include "coordinator/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/log.h"

namespace expertflow {
namespace {

constexpr int32_t kRestartsMax = 3;  // per role

const char* RoleName(ProcessRole role) {
  return role == ProcessRole::kStore ? "store" : "worker";
}

bool SameHost(const ProcessInfo& a, const ProcessInfo& b) {
  return a.host == b.host && a.boot_id == b.boot_id;
}

size_t Index(ProcessRole role) {
  return static_cast<size_t>(role);
}

WorkerId AsWorker(ProcessId process) {
  return WorkerId(process.value);
}
ProcessId AsProcess(WorkerId worker) {
  return ProcessId(worker.value);
}

}  // namespace

Coordinator::Coordinator(const CoordinatorOptions& options, const ServedModel& model,
                         CoordinatorPort& port, int64_t now_ns)
    : options_(options),
      model_(model),
      port_(port),
      started_ns_(now_ns),
      placement_({options.sequences_per_worker_max, options.queued_requests_max}) {}

// --- processes ---------------------------------------------------------------------------------

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
  return spawning_[Index(role)] > 0 ||
         std::any_of(processes_.begin(), processes_.end(),
                     [role](const auto& entry) { return entry.second.member.info.role == role; });
}

void Coordinator::OnMember(const Member& member, int64_t now_ns) {
  Process process;
  process.member = member;
  process.last_heard_ns = now_ns;
  process.progress_ns = now_ns;
  const size_t role = Index(member.info.role);
  spawning_[role] = std::max(0, spawning_[role] - 1);
  processes_.emplace(member.id, std::move(process));
  AttachWorkers();
}

void Coordinator::OnMessage(ProcessId id, const Message& message, int64_t now_ns) {
  const auto found = processes_.find(id);
  if (found == processes_.end()) return;  // from a process that was given up
  Process* process = &found->second;
  process->last_heard_ns = now_ns;
  if (const auto* progress = std::get_if<LoadProgress>(&message)) {
    load_done_ = progress->bytes_done;
    load_total_ = progress->bytes_total;
    SetPhase(phase_ == JobPhase::kStarting ? JobPhase::kLoading : phase_);
  } else if (const auto* store = std::get_if<StoreReady>(&message)) {
    OnStoreReady(process, *store);
  } else if (const auto* worker = std::get_if<WorkerReady>(&message)) {
    OnWorkerReady(process, *worker);
  } else if (const auto* heartbeat = std::get_if<Heartbeat>(&message)) {
    OnHeartbeat(process, *heartbeat, now_ns);
  } else if (const auto* stats = std::get_if<WorkerStats>(&message)) {
    process->stats = *stats;
  } else if (const auto* report = std::get_if<StepReport>(&message)) {
    OnStepReport(process, *report, now_ns);
  } else if (const auto* captured = std::get_if<CapturedPosition>(&message)) {
    OnCaptured(*captured);
  } else if (const auto* failed = std::get_if<SequenceFailed>(&message)) {
    OnSequenceFailed(*failed, now_ns);
  } else if (const auto* error = std::get_if<FatalError>(&message)) {
    OnFatal(id, *error, now_ns);
  } else {
    OnProcessGone(id, "it sent a message that is not a worker's or store's", now_ns);
  }
}

void Coordinator::OnStoreReady(Process* process, const StoreReady& ready) {
  process->store = ready;
  process->ready = true;
  if (ready.adopted) LogInfo("{} took over {}", NameOf(*process), ready.name);
  AttachWorkers();
}

// A worker maps the store of its own host.
void Coordinator::AttachWorkers() {
  for (auto& [id, worker] : processes_) {
    if (worker.member.info.role != ProcessRole::kWorker || worker.attached) continue;
    for (const auto& [store_id, store] : processes_) {
      if (store.member.info.role == ProcessRole::kStore && store.ready &&
          SameHost(store.member.info, worker.member.info)) {
        worker.attached = true;
        port_.Send(id, AttachStore{store.store});
        break;
      }
    }
  }
}

void Coordinator::OnWorkerReady(Process* process, const WorkerReady& ready) {
  process->worker = ready;
  process->ready = true;
  placement_.WorkerReady(AsWorker(process->member.id));
  UpdatePhase();
  Assign();
}

void Coordinator::OnHeartbeat(Process* process, const Heartbeat& heartbeat, int64_t now_ns) {
  if (!heartbeat.busy || heartbeat.progress != process->progress) process->progress_ns = now_ns;
  process->progress = heartbeat.progress;
  process->busy = heartbeat.busy;
}

void Coordinator::OnFatal(ProcessId id, const FatalError& error, int64_t now_ns) {
  const auto code = static_cast<StatusCode>(
      std::min<uint8_t>(error.code, static_cast<uint8_t>(StatusCode::kInternal)));
  // Before the job is ready an error would only come again.
  if (phase_ == JobPhase::kStarting || phase_ == JobPhase::kLoading) {
    Fail(Status(code == StatusCode::kOk ? StatusCode::kInternal : code, error.message));
    return;
  }
  OnProcessGone(id, error.message, now_ns);
}

void Coordinator::OnProcessGone(ProcessId id, const std::string& why, int64_t now_ns) {
  const auto found = processes_.find(id);
  if (found == processes_.end() || result_) return;
  const ProcessRole role = found->second.member.info.role;
  const std::string name = NameOf(found->second);
  port_.Disconnect(id);
  processes_.erase(found);
  const std::string what = fmt::format("{} is gone: {}", name, why);
  if (role == ProcessRole::kStore) {
    ++counters_.stores_lost;
  } else {
    ++counters_.workers_lost;
    const auto orphans = placement_.WorkerGone(AsWorker(id));
    counters_.requeues += orphans.size();
    for (const SequenceId sequence : orphans) requests_.at(sequence).session.OnRequeued();
    LogWarning("{}; {} of its sequences are queued again", what, orphans.size());
  }
  if (phase_ == JobPhase::kStopping) return;
  if (phase_ == JobPhase::kStarting || phase_ == JobPhase::kLoading) {
    Fail(Unavailable(what + ", before the job was ready"));
    return;
  }
  if (role == ProcessRole::kStore) LogWarning("{}; workers keep their mapping", what);
  Replace(role, what);
  Assign();
  (void)now_ns;
}

void Coordinator::Replace(ProcessRole role, const std::string& why) {
  int32_t& restarts = restarts_[Index(role)];
  if (restarts < kRestartsMax && port_.Spawn(role)) {
    ++restarts;
    ++counters_.restarts;
    ++spawning_[Index(role)];
    LogWarning("a new {} is started ({} of at most {})", RoleName(role), restarts, kRestartsMax);
    return;
  }
  if (role == ProcessRole::kWorker && !HasProcess(ProcessRole::kWorker)) {
    Fail(Unavailable(why + "; no worker is left"));
  }
}

void Coordinator::OnSpawnFailed(ProcessRole role, const std::string& why, int64_t /*now_ns*/) {
  if (result_ || phase_ == JobPhase::kStopping || spawning_[Index(role)] == 0) return;
  --spawning_[Index(role)];
  Replace(role, fmt::format("the replacement of a {} ended: {}", RoleName(role), why));
}

void Coordinator::OnTick(int64_t now_ns) {
  if (result_) return;
  const bool starting = phase_ == JobPhase::kStarting || phase_ == JobPhase::kLoading;
  if (starting && now_ns - started_ns_ > options_.start_timeout_ns) {
    Fail(DeadlineExceeded(fmt::format("after {} s {} of {} workers and {} of {} stores are ready",
                                      options_.start_timeout_ns / 1'000'000'000,
                                      CountReady(ProcessRole::kWorker), options_.workers_expected,
                                      CountReady(ProcessRole::kStore), options_.stores_expected)));
    return;
  }
  std::vector<std::pair<ProcessId, std::string>> given_up;
  for (const auto& [id, process] : processes_) {
    if (now_ns - process.last_heard_ns > options_.heartbeat_timeout_ns) {
      given_up.emplace_back(
          id, fmt::format("no heartbeat for {} s", options_.heartbeat_timeout_ns / 1'000'000'000));
    } else if (process.busy && now_ns - process.progress_ns > options_.stall_timeout_ns) {
      ++counters_.stalls;
      given_up.emplace_back(id, fmt::format("busy without progress for {} s",
                                            options_.stall_timeout_ns / 1'000'000'000));
    }
  }
  for (const auto& [id, why] : given_up) OnProcessGone(id, why, now_ns);
}

// --- requests ----------------------------------------------------------------------------------

void Coordinator::Submit(ClientId client, const SubmitRequest& submit, int64_t now_ns) {
  const SequenceId sequence{++last_sequence_};
  const bool known = std::any_of(requests_.begin(), requests_.end(), [&](const auto& entry) {
    return entry.second.client == client && entry.second.session.request() == submit.request;
  });
  if (known) {
    Refuse(client, submit.request,
           InvalidArgument(fmt::format("request {} is in use already", submit.request)));
    return;
  }
  auto session = Session::Create(sequence, submit, *model_.tokenizer, model_.vocab, model_.context,
                                 model_.eos, now_ns);
  if (!session.ok()) {
    Refuse(client, submit.request, session.status());
    return;
  }
  if (!placement_.Add(sequence)) {
    Refuse(client, submit.request,
           ResourceExhausted(fmt::format("{} requests are waiting already; try again later",
                                         placement_.queued())));
    return;
  }
  requests_.emplace(sequence, Request{client, std::move(session).value()});
  Assign();
}

void Coordinator::Refuse(ClientId client, uint64_t request, const Status& status) {
  ++counters_.requests_refused;
  RequestDone done;
  done.request = request;
  done.finish = FinishReason::kError;
  done.code = static_cast<uint8_t>(status.code());
  done.message = status.message();
  ToClient(client, done);
}

void Coordinator::Assign() {
  if (phase_ != JobPhase::kReady) return;
  for (const Assignment& assignment : placement_.Assign()) {
    port_.Send(AsProcess(assignment.worker), requests_.at(assignment.sequence).session.Start());
  }
}

void Coordinator::OnStepReport(Process* process, const StepReport& report, int64_t now_ns) {
  for (const TokenEvent& event : report.tokens) OnToken(process, event, now_ns);
}

void Coordinator::OnToken(Process* process, const TokenEvent& event, int64_t now_ns) {
  const auto found = requests_.find(event.sequence);
  // Ended meanwhile, or moved to another worker.
  if (found == requests_.end() ||
      placement_.WorkerOf(event.sequence) != AsWorker(process->member.id)) {
    return;
  }
  Request& request = found->second;
  const int64_t last_ns = request.session.last_token_ns();
  auto progress = request.session.OnToken(event, now_ns);
  if (!progress.ok()) {
    CancelOnWorker(event.sequence);
    Finish(event.sequence, FinishReason::kError, progress.status().WithContext(NameOf(*process)),
           now_ns);
    return;
  }
  if (last_ns == 0 && request.session.first_token_ns() > 0) {
    counters_.ttft.Add(request.session.first_token_ns() - request.session.submitted_ns());
  }
  if (!progress->delta.tokens.empty()) ToClient(request.client, progress->delta);
  if (progress->finish == FinishReason::kNone) return;
  if (event.finish == FinishReason::kNone) CancelOnWorker(event.sequence);  // a stop string
  Finish(event.sequence, progress->finish, OkStatus(), now_ns);
}

void Coordinator::OnCaptured(const CapturedPosition& captured) {
  const auto found = requests_.find(captured.sequence);
  if (found == requests_.end() || !found->second.session.OnCaptured(captured.position)) return;
  ToClient(found->second.client, RequestCapture{found->second.session.request(), captured});
}

void Coordinator::OnSequenceFailed(const SequenceFailed& failed, int64_t now_ns) {
  const auto code = static_cast<StatusCode>(
      std::min<uint8_t>(failed.code, static_cast<uint8_t>(StatusCode::kInternal)));
  Finish(failed.sequence, FinishReason::kError, Status(code, failed.message), now_ns);
}

void Coordinator::Finish(SequenceId sequence, FinishReason finish, const Status& status,
                         int64_t now_ns) {
  const auto found = requests_.find(sequence);
  if (found == requests_.end()) return;
  const ClientId client = found->second.client;
  const RequestDone done = found->second.session.Done(finish, status, now_ns);
  requests_.erase(found);
  placement_.Remove(sequence);
  if (finish == FinishReason::kError) {
    ++counters_.requests_failed;
  } else if (finish == FinishReason::kCancelled) {
    ++counters_.requests_cancelled;
  } else {
    ++counters_.requests_done;
  }
  counters_.prompt_tokens += done.prompt_tokens;
  counters_.generated_tokens += done.generated_tokens;
  if (done.generated_tokens > 1) {
    counters_.tpot.Add((done.total_ns - done.ttft_ns) / (done.generated_tokens - 1));
  }
  ToClient(client, done);
  Assign();
}

void Coordinator::CancelOnWorker(SequenceId sequence) {
  if (const auto worker = placement_.WorkerOf(sequence)) {
    port_.Send(AsProcess(*worker), CancelSequence{sequence});
  }
}

void Coordinator::CancelRequestOf(ClientId client, uint64_t request, int64_t now_ns) {
  for (const auto& [sequence, entry] : requests_) {
    if (entry.client != client || entry.session.request() != request) continue;
    const SequenceId ended = sequence;
    CancelOnWorker(ended);
    Finish(ended, FinishReason::kCancelled, OkStatus(), now_ns);
    return;
  }
}

// --- clients -----------------------------------------------------------------------------------

void Coordinator::OnClient(ClientId client) {
  clients_.push_back(client);
  ToClient(client, State());
}

void Coordinator::OnClientMessage(ClientId client, const Message& message, int64_t now_ns) {
  if (const auto* submit = std::get_if<SubmitRequest>(&message)) {
    Submit(client, *submit, now_ns);
  } else if (const auto* cancel = std::get_if<CancelRequest>(&message)) {
    CancelRequestOf(client, cancel->request, now_ns);
  } else if (std::holds_alternative<StatusRequest>(message)) {
    ToClient(client, StatusReply{StatusJson(Snapshot(now_ns))});
  } else if (std::holds_alternative<MetricsRequest>(message)) {
    ToClient(client, MetricsReply{MetricsText(Snapshot(now_ns))});
  } else if (std::holds_alternative<ShutdownRequest>(message)) {
    Stop("a client asked for it");
  } else {
    LogWarning("a client sent a message that is not a client's; it is ignored");
  }
}

void Coordinator::OnClientGone(ClientId client) {
  std::erase(clients_, client);
  std::vector<SequenceId> orphans;
  for (const auto& [sequence, entry] : requests_) {
    if (entry.client == client) orphans.push_back(sequence);
  }
  for (const SequenceId sequence : orphans) {
    CancelOnWorker(sequence);
    requests_.erase(sequence);
    placement_.Remove(sequence);
    ++counters_.requests_cancelled;
  }
  if (!orphans.empty()) Assign();
}

void Coordinator::ToClient(ClientId client, const Message& message) {
  if (std::find(clients_.begin(), clients_.end(), client) == clients_.end()) return;
  // The port reports the loss as OnClientGone() later; nothing more goes to it.
  if (!port_.SendToClient(client, message)) std::erase(clients_, client);
}

// --- phases ------------------------------------------------------------------------------------

JobState Coordinator::State() const {
  JobState state;
  state.phase = phase_;
  state.bytes_done = load_done_;
  state.bytes_total = load_total_;
  state.code = static_cast<uint8_t>(failure_.code());
  state.message = failure_.message();
  return state;
}

void Coordinator::SetPhase(JobPhase phase) {
  phase_ = phase;
  const std::vector<ClientId> clients = clients_;
  for (const ClientId client : clients) ToClient(client, State());
}

void Coordinator::UpdatePhase() {
  if (phase_ != JobPhase::kStarting && phase_ != JobPhase::kLoading) return;
  if (CountReady(ProcessRole::kWorker) >= options_.workers_expected) SetPhase(JobPhase::kReady);
}

void Coordinator::Fail(const Status& status) {
  if (result_) return;
  LogError("{}", status.ToString());
  failure_ = status;
  std::vector<SequenceId> sequences;
  for (const auto& [sequence, entry] : requests_) sequences.push_back(sequence);
  SetPhase(JobPhase::kFailed);
  for (const SequenceId sequence : sequences) {
    Finish(sequence, FinishReason::kError, status, started_ns_);
  }
  for (const auto& [id, process] : processes_) port_.Send(id, Shutdown{status.message()});
  result_ = status;
}

void Coordinator::Stop(const std::string& reason) {
  if (result_) return;
  SetPhase(JobPhase::kStopping);
  for (const auto& [id, process] : processes_) port_.Send(id, Shutdown{reason});
  result_ = OkStatus();
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
  for (const auto& [id, process] : processes_) {
    snapshot.processes.push_back({process.member, process.ready, process.busy,
                                  now_ns - process.last_heard_ns, process.worker, process.stats,
                                  process.store});
  }
  return snapshot;
}

}  // namespace expertflow

// Coordinator: who is alive, and what takes the place of the dead.
#include <fmt/format.h>

#include <utility>

#include "common/log.h"
#include "coordinator/coordinator.h"

namespace expertflow {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
// A request that ran on more workers that died may be what kills them.
constexpr uint32_t kRequeuesMax = 8;

}  // namespace

void Coordinator::OnProcessGone(ProcessId id, const std::string& why, int64_t now_ns) {
  if (result_) return;
  auto found = processes_.extract(id);
  if (!found) return;
  const Process& process = found.mapped();
  const ProcessRole role = process.member.info.role;
  const std::string what = fmt::format("{} is gone: {}", NameOf(process), why);
  port_.Disconnect(id);
  if (starting() && process.guest) {
    LogWarning("{}", what);
    return;
  }
  if (starting()) {
    Fail(Unavailable(what + ", before the job was ready"), now_ns);
    return;
  }
  if (role == ProcessRole::kStore) {
    ++counters_.stores_lost;
    LogWarning("{}; the workers keep their mapping", what);
  } else {
    ++counters_.workers_lost;
    learnt_.Forget(WorkerId(id.value));
    stride_.Forget(WorkerId(id.value));
    const auto orphans = placement_.WorkerGone(WorkerId(id.value));
    counters_.requeues += orphans.size();
    LogWarning("{}; {} of its sequences are queued again", what, orphans.size());
    for (const SequenceId sequence : orphans) Requeue(sequence, now_ns);
  }
  if (IsReplaced(process)) Replace(role, what, now_ns);
  Assign();
}

void Coordinator::Requeue(SequenceId sequence, int64_t now_ns) {
  Session& session = requests_.at(sequence).session;
  session.OnRequeued();
  if (session.requeues() <= kRequeuesMax) return;
  const Status status = Internal(fmt::format(
      "{} workers died while they ran this request; it may be what they die of", kRequeuesMax + 1));
  LogError("request {}: {}", session.request(), status.message());
  Finish(sequence, FinishReason::kError, status, now_ns);
}

bool Coordinator::IsReplaced(const Process& gone) const {
  const ProcessRole role = gone.member.info.role;
  if (!gone.guest && IsHere(gone)) return true;
  return role == ProcessRole::kWorker && !HasProcess(role) && !replacements_.Expects(role);
}

void Coordinator::Replace(ProcessRole role, const std::string& why, int64_t now_ns) {
  const bool possible = role == ProcessRole::kStore ? !options_.store_command.empty()
                                                    : !options_.worker_command.empty();
  if (possible && replacements_.Plan(role, now_ns)) {
    StartReplacements(now_ns);
    return;
  }
  if (possible) {
    LogWarning("no other {} is started: {} replacements were in {} s", RoleName(role),
               Replacements::kPerRoleMax, Replacements::kSpanNs / kSecondNs);
  }
  if (role == ProcessRole::kWorker && !HasProcess(role) && !replacements_.Expects(role)) {
    Fail(Unavailable(why + "; no worker is left"), now_ns);
  }
}

void Coordinator::StartReplacements(int64_t now_ns) {
  for (const ProcessRole role : replacements_.TakeDue(now_ns)) {
    const auto pid = port_.Spawn(role);
    if (!pid.ok()) {
      const std::string why =
          fmt::format("cannot start another {}: {}", RoleName(role), pid.status().message());
      LogError("{}", why);
      Replace(role, why, now_ns);
      if (result_) return;
      continue;
    }
    replacements_.Started(role, *pid, now_ns);
    ++counters_.restarts;
    LogWarning("another {} is started, pid {} ({} of at most {} in {} s)", RoleName(role), *pid,
               replacements_.Count(role), Replacements::kPerRoleMax,
               Replacements::kSpanNs / kSecondNs);
  }
}

void Coordinator::OnChildEnded(int64_t pid, const std::string& why, int64_t now_ns) {
  if (result_) return;
  const auto role = replacements_.Ended(pid);
  if (!role) return;  // it had joined: its death is seen as a process's
  Replace(*role,
          fmt::format("the new {} (pid {}) ended before it joined: {}", RoleName(*role), pid, why),
          now_ns);
}

bool Coordinator::Stalled(const Process& process, int64_t now_ns) const {
  return process.ready && process.busy && now_ns - process.progress_ns > options_.stall_timeout_ns;
}

std::string Coordinator::Verdict(const Process& process, int64_t now_ns) const {
  const bool attaching =
      process.member.info.role == ProcessRole::kWorker && process.attached && !process.ready;
  // A worker that builds its engine may be silent for long; the time to get ready bounds it.
  if (!attaching && now_ns - process.last_heard_ns > options_.heartbeat_timeout_ns) {
    return fmt::format("no heartbeat for {} s (--heartbeat-timeout)",
                       options_.heartbeat_timeout_ns / kSecondNs);
  }
  if (Stalled(process, now_ns)) {
    return fmt::format("busy without progress for {} s (--stall-timeout)",
                       options_.stall_timeout_ns / kSecondNs);
  }
  if (!process.ready && !starting() && now_ns - process.joined_ns > options_.start_timeout_ns) {
    return fmt::format("not ready {} s after it joined (--start-timeout)",
                       options_.start_timeout_ns / kSecondNs);
  }
  return "";
}

void Coordinator::ExcuseOwnPause(int64_t now_ns) {
  const int64_t pause_ns = now_ns - std::exchange(last_tick_ns_, now_ns);
  if (pause_ns < options_.heartbeat_timeout_ns / 2) return;
  for (auto& [id, process] : processes_) {
    process.last_heard_ns += pause_ns;
    process.progress_ns += pause_ns;
  }
}

void Coordinator::BeatOtherHosts(int64_t now_ns) {
  if (now_ns - last_beat_ns_ < options_.heartbeat_ns) return;
  last_beat_ns_ = now_ns;
  for (const auto& [id, process] : processes_) {
    if (!IsHere(process)) port_.Send(id, Heartbeat{});
  }
}

void Coordinator::OnTick(int64_t now_ns) {
  if (result_) return;
  ExcuseOwnPause(now_ns);
  BeatOtherHosts(now_ns);
  PublishLearnt(now_ns);
  if (starting() && now_ns - started_ns_ > options_.start_timeout_ns) {
    Fail(DeadlineExceeded(fmt::format(
             "after {} s {} of {} workers and {} of {} stores are ready (--start-timeout)",
             options_.start_timeout_ns / kSecondNs, CountReady(ProcessRole::kWorker),
             options_.workers_expected, CountReady(ProcessRole::kStore), options_.stores_expected)),
         now_ns);
    return;
  }
  std::vector<std::pair<ProcessId, std::string>> given_up;
  for (const auto& [id, process] : processes_) {
    const std::string why = Verdict(process, now_ns);
    if (why.empty()) continue;
    if (Stalled(process, now_ns)) ++counters_.stalls;
    given_up.emplace_back(id, why);
  }
  for (const auto& [id, why] : given_up) {
    port_.Kill(id);
    OnProcessGone(id, why, now_ns);
  }
  if (result_) return;
  for (const int64_t pid : replacements_.Overdue(now_ns, options_.start_timeout_ns)) {
    LogWarning("the new process {} has not joined in time and is ended", pid);
    port_.KillChild(pid);
  }
  StartReplacements(now_ns);
}

}  // namespace expertflow

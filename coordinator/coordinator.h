// The coordinator's state machine: what happens on each event, with the time passed in. It does no
// I/O; what it wants done goes through a CoordinatorPort (coordinator_process.cpp: sockets and
// processes; tests: a recorder). One thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/status.h"
#include "coordinator/coordinator_process.h"
#include "coordinator/job_snapshot.h"
#include "coordinator/policy/placement.h"
#include "coordinator/session.h"
#include "model/tokenizer/tokenizer.h"
#include "transport/messages.h"
#include "transport/wireup.h"

namespace expertflow {

using ClientId = StrongId<struct ClientTag>;

class CoordinatorPort {
 public:
  virtual ~CoordinatorPort() = default;
  virtual void Send(ProcessId process, const Message& message) = 0;
  virtual void Disconnect(ProcessId process) = 0;
  // False when the client is gone or reads too slowly; it is forgotten then.
  virtual bool SendToClient(ClientId client, const Message& message) = 0;
  // Starts a replacement, which will join. False when that cannot be done.
  virtual bool Spawn(ProcessRole role) = 0;
};

// What the coordinator knows of the model.
struct ServedModel {
  std::unique_ptr<Tokenizer> tokenizer;
  int64_t vocab = 0;
  int64_t context = 0;
  std::vector<int32_t> eos;
};

class Coordinator {
 public:
  // REQUIRES: options, model and port outlive it
  Coordinator(const CoordinatorOptions& options, const ServedModel& model, CoordinatorPort& port,
              int64_t now_ns);

  // A store or worker that the port is connected to; `same_host`: as the coordinator.
  void OnMember(const Member& member, int64_t now_ns);
  void OnMessage(ProcessId process, const Message& message, int64_t now_ns);
  // Its death was seen (pidfd, transport) or a spawned one ended before it joined (OnSpawnFailed).
  void OnProcessGone(ProcessId process, const std::string& why, int64_t now_ns);
  void OnSpawnFailed(ProcessRole role, const std::string& why, int64_t now_ns);

  void OnClient(ClientId client);
  void OnClientMessage(ClientId client, const Message& message, int64_t now_ns);
  void OnClientGone(ClientId client);

  // Deadlines: start, heartbeats, stalls. Call it at least every second.
  void OnTick(int64_t now_ns);
  void Stop(const std::string& reason);

  // Set once the job should end; ok when a client asked for it.
  const std::optional<Status>& result() const { return result_; }
  JobSnapshot Snapshot(int64_t now_ns) const;
  const Placement& placement() const { return placement_; }

 private:
  struct Process {
    Member member;
    bool ready = false;
    bool attached = false;  // a worker: AttachStore was sent
    int64_t last_heard_ns = 0;
    uint64_t progress = 0;
    int64_t progress_ns = 0;  // when it last changed, or the process was idle
    bool busy = false;
    WorkerReady worker;
    WorkerStats stats;
    StoreReady store;
  };
  struct Request {
    ClientId client;
    Session session;
  };

  void OnStoreReady(Process* process, const StoreReady& ready);
  void OnWorkerReady(Process* process, const WorkerReady& ready);
  void OnHeartbeat(Process* process, const Heartbeat& heartbeat, int64_t now_ns);
  void OnStepReport(Process* process, const StepReport& report, int64_t now_ns);
  void OnToken(Process* process, const TokenEvent& event, int64_t now_ns);
  void OnCaptured(const CapturedPosition& captured);
  void OnSequenceFailed(const SequenceFailed& failed, int64_t now_ns);
  void OnFatal(ProcessId process, const FatalError& error, int64_t now_ns);

  void Submit(ClientId client, const SubmitRequest& submit, int64_t now_ns);
  void Refuse(ClientId client, uint64_t request, const Status& status);
  void Finish(SequenceId sequence, FinishReason finish, const Status& status, int64_t now_ns);
  void CancelOnWorker(SequenceId sequence);
  void CancelRequestOf(ClientId client, uint64_t request, int64_t now_ns);
  void Assign();
  void AttachWorkers();
  void UpdatePhase();
  void SetPhase(JobPhase phase);
  void Fail(const Status& status);
  void ToClient(ClientId client, const Message& message);
  JobState State() const;
  std::string NameOf(const Process& process) const;
  int32_t CountReady(ProcessRole role) const;
  bool HasProcess(ProcessRole role) const;
  // A store or worker is missing: start another or say that none comes.
  void Replace(ProcessRole role, const std::string& why);

  const CoordinatorOptions& options_;
  const ServedModel& model_;
  CoordinatorPort& port_;
  const int64_t started_ns_;

  Placement placement_;
  std::map<ProcessId, Process> processes_;
  std::map<SequenceId, Request> requests_;
  std::vector<ClientId> clients_;
  uint64_t last_sequence_ = 0;

  JobPhase phase_ = JobPhase::kStarting;
  uint64_t load_done_ = 0;
  uint64_t load_total_ = 0;
  Status failure_;
  std::optional<Status> result_;

  int32_t spawning_[3] = {};  // by ProcessRole: started and not joined yet
  int32_t restarts_[3] = {};
  JobCounters counters_;
};

}  // namespace expertflow

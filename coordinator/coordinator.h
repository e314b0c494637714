// The coordinator's state machine: what happens on each event, with the time passed in. It does no
// I/O; what it wants done goes through a CoordinatorPort (coordinator_process.cpp: sockets and
// processes; tests: a recorder). One thread.
//
// The folder: policy/ (which worker runs what), session (one request), coordinator (processes and
// phases), requests, liveness and learning (the same class: clients and their requests; death and
// replacement; what workers learn), replacements, job_snapshot (status and metrics),
// coordinator_process (the loop).
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
#include "coordinator/replacements.h"
#include "coordinator/session.h"
#include "model/tokenizer/tokenizer.h"
#include "predictor/core/global_stride.h"
#include "predictor/core/learnt_merge.h"
#include "transport/messages.h"
#include "transport/wireup.h"

namespace expertflow {

using ClientId = StrongId<struct ClientTag>;

// Nothing here calls back into the Coordinator: a failure is reported as a later event.
class CoordinatorPort {
 public:
  virtual ~CoordinatorPort() = default;
  virtual void Send(ProcessId process, const Message& message) = 0;
  virtual void Disconnect(ProcessId process) = 0;
  // Ends a process that hangs, when it is on this host. Disconnect() follows.
  virtual void Kill(ProcessId process) = 0;
  // False when the client is gone or reads too slowly; OnClientGone() follows.
  virtual bool SendToClient(ClientId client, const Message& message) = 0;
  // Starts a replacement, which will join; its pid.
  virtual Result<int64_t> Spawn(ProcessRole role) = 0;
  // Ends a replacement that does not join; OnChildEnded() follows.
  virtual void KillChild(int64_t pid) = 0;
  // Where workers of this host read what is published; none: they get messages as all others do.
  virtual std::optional<PublishBoard> Board() = 0;
  virtual void PostOnBoard(const Message& message) = 0;
  virtual void SetBoardWord(uint64_t word) = 0;
};

// What the coordinator knows of the model.
struct ServedModel {
  std::unique_ptr<Tokenizer> tokenizer;
  int64_t vocab = 0;
  int64_t context = 0;
  std::vector<int32_t> eos;
  std::vector<PublishTables> tables;  // for every worker
};

class Coordinator {
 public:
  // REQUIRES: options, model and port outlive it
  Coordinator(const CoordinatorOptions& options, const ServedModel& model, CoordinatorPort& port,
              int64_t now_ns);

  // This process, for the job's status.
  void SetSelf(const Member& self) { self_ = self; }
  // A store or worker that the port is connected to, and that the job started with.
  void OnMember(const Member& member, int64_t now_ns);
  // One that came through the rendezvous: a replacement, or somebody's own. The latter is a guest:
  // what goes wrong with it never ends the job, and it is not replaced.
  void OnJoiner(const Member& member, int64_t now_ns);
  void OnMessage(ProcessId process, const Message& message, int64_t now_ns);
  // Its death was seen, or it broke the protocol.
  void OnProcessGone(ProcessId process, const std::string& why, int64_t now_ns);
  // A child that Spawn() started has ended, whether it had joined or not.
  void OnChildEnded(int64_t pid, const std::string& why, int64_t now_ns);

  void OnClient(ClientId client);
  void OnClientMessage(ClientId client, const Message& message, int64_t now_ns);
  void OnClientGone(ClientId client);

  // Deadlines: start, heartbeats, stalls, replacements. Call it at least every second.
  void OnTick(int64_t now_ns);
  void Stop(const std::string& reason, int64_t now_ns);

  // Set once the job should end; ok when a client asked for it.
  const std::optional<Status>& result() const { return result_; }
  JobSnapshot Snapshot(int64_t now_ns) const;
  const Placement& placement() const { return placement_; }

 private:
  struct Process {
    Member member;
    bool guest = false;  // see OnJoiner()
    bool ready = false;
    bool attached = false;    // a worker: AttachStore was sent
    bool has_tokens = false;  // a worker: TokenBytes was sent
    int64_t joined_ns = 0;
    int64_t last_heard_ns = 0;
    uint64_t progress = 0;
    int64_t progress_ns = 0;  // when it last changed, or the process was idle
    bool busy = false;
    LoadProgress load;
    WorkerReady worker;
    WorkerStats stats;
    ExpertReport experts;
    StoreReady store;
    bool reads_board = false;     // a worker: what is published does not come in messages
    uint64_t learnt_version = 0;  // a worker: that it was sent
  };
  struct Request {
    ClientId client;
    Session session;
  };

  // Processes and phases: coordinator.cpp.
  void OnStoreMessage(Process* process, const Message& message, int64_t now_ns);
  void OnWorkerMessage(Process* process, const Message& message, int64_t now_ns);
  void OnLoadProgress(Process* process, const LoadProgress& progress);
  void OnStoreReady(Process* process, const StoreReady& ready, int64_t now_ns);
  // Takes the store in, or turns it away; false then.
  bool AcceptStore(Process* process, const StoreReady& ready, int64_t now_ns);
  void OnWorkerReady(Process* process, const WorkerReady& ready, int64_t now_ns);
  void OnExpertReport(Process* process, const ExpertReport& report, int64_t now_ns);
  void OnHeartbeat(Process* process, const Heartbeat& heartbeat, int64_t now_ns);
  void OnFatal(ProcessId process, const FatalError& error, int64_t now_ns);
  // Tells the process why it cannot stay, and lets it go.
  void TurnAway(ProcessId process, const Status& why, int64_t now_ns);
  // A worker maps the store of its own host.
  void AttachWorkers();
  void SayWhatIsMissing(const Process& worker) const;
  bool starting() const { return phase_ == JobPhase::kStarting || phase_ == JobPhase::kLoading; }
  void UpdatePhase();
  void TellClients();
  void Fail(const Status& status, int64_t now_ns);
  void End(JobPhase phase, const Status& status, const std::string& reason, int64_t now_ns);
  JobState State() const;
  std::string NameOf(const Process& process) const;
  int32_t CountReady(ProcessRole role) const;
  bool HasProcess(ProcessRole role) const;
  // On the coordinator's own host.
  bool IsHere(const Process& process) const;

  // Death and replacement: liveness.cpp.
  bool Stalled(const Process& process, int64_t now_ns) const;
  // Why the process must be given up; empty while it lives.
  std::string Verdict(const Process& process, int64_t now_ns) const;
  // A replacement runs on this host, so it takes the place of those that ran here. A worker also
  // replaces the last one, wherever that was.
  bool IsReplaced(const Process& gone) const;
  // Queues the request again, or ends it when it was so too often.
  void Requeue(SequenceId sequence, int64_t now_ns);
  // Starts another, now or later, or fails the job when no worker is left.
  void Replace(ProcessRole role, const std::string& why, int64_t now_ns);
  void StartReplacements(int64_t now_ns);
  // Signs of life for those that cannot see our death: a cut link is silent at both ends.
  void BeatOtherHosts(int64_t now_ns);
  // Forgives the silence of a time in which this process itself did not run.
  void ExcuseOwnPause(int64_t now_ns);

  // What workers learn and measure, gathered and published: learning.cpp.
  void OnStrideReport(Process* process, const StrideReport& report, int64_t now_ns);
  void SendStride(const Process& process);
  void OnPredictorLearnt(Process* process, const PredictorLearnt& learnt, int64_t now_ns);
  void PublishLearnt(int64_t now_ns);
  void SendLearnt(Process* process);
  LearningSnapshot SnapshotLearning(int64_t now_ns) const;
  StrideSnapshot SnapshotStride(int64_t now_ns) const;

  // Clients and their requests: requests.cpp.
  void OnStepReport(Process* process, const StepReport& report, int64_t now_ns);
  void OnToken(Process* process, const TokenEvent& event, int64_t now_ns);
  void OnCaptured(Process* process, const CapturedPosition& captured, int64_t now_ns);
  void OnSequenceFailed(Process* process, const SequenceFailed& failed, int64_t now_ns);
  // Null when the sequence has ended or runs elsewhere.
  Request* RequestOn(const Process& process, SequenceId sequence);
  void Submit(ClientId client, const SubmitRequest& submit, int64_t now_ns);
  void Refuse(ClientId client, uint64_t request, const Status& status);
  void Finish(SequenceId sequence, FinishReason finish, const Status& status, int64_t now_ns);
  void CancelOnWorker(SequenceId sequence);
  void CancelRequestOf(ClientId client, uint64_t request, int64_t now_ns);
  void Assign();
  // What grammars may use of the vocabulary: no special tokens.
  TokenBytes BytesOfTokens() const;
  void ToClient(ClientId client, const Message& message);
  std::string ReportExperts() const;  // JSON

  const CoordinatorOptions& options_;
  const ServedModel& model_;
  CoordinatorPort& port_;
  const int64_t started_ns_;
  Member self_;
  int64_t last_tick_ns_;
  int64_t last_beat_ns_ = 0;

  Placement placement_;
  Replacements replacements_;
  std::map<ProcessId, Process> processes_;
  std::map<SequenceId, Request> requests_;
  std::vector<ClientId> clients_;
  uint64_t last_sequence_ = 0;
  std::string fingerprint_;  // of the model, once a store is ready
  std::string arithmetic_;   // of the workers, once one is ready

  JobPhase phase_ = JobPhase::kStarting;
  Status failure_;
  std::optional<Status> result_;
  JobCounters counters_;

  LearntMerge learnt_;
  int64_t learnt_published_ns_ = 0;
  GlobalStride stride_;
  int64_t stride_published_ns_ = 0;
};

}  // namespace expertflow

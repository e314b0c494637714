// A job of this process: a coordinator, a store and some workers, started by mpirun on this host.
// What `run`, `compare` and `bench` have in common. Also a job of somebody else's, as its client.
//
// A Job belongs to one thread, the one that started it: mpirun gets SIGTERM when that thread dies.
// When a Job that was started goes, so do its processes, its shared-memory segment and its folder,
// whatever state it was in.
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/process.h"
#include "common/status.h"
#include "launch/job_client.h"
#include "launch/job_folder.h"
#include "transport/messages.h"

namespace expertflow {

struct JobSetup {
  int32_t workers = 1;
  // Arguments of the roles; those that name the job and its folder are added.
  std::vector<std::string> coordinator_arguments;
  std::vector<std::string> store_arguments;
  std::vector<std::string> worker_arguments;
  std::string requested_json;  // for the job's status; may be empty
  bool others_join = false;    // processes of other hosts may: not on the loopback alone
};

// What a command gives its job to end before it kills what is left.
inline constexpr int64_t kShutdownMs = 5000;

class Job {
 public:
  // Sweeps what dead jobs left, then starts the processes. `signals` is optional and borrowed.
  static Result<std::unique_ptr<Job>> Start(const JobSetup& setup, SignalWatcher* signals);
  // A client of a job that runs already, found as by JobClient::Find(); its end leaves the job
  // alone.
  static Result<std::unique_ptr<Job>> Attach(const std::string& job, const std::string& folder,
                                             SignalWatcher* signals);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const std::string& name() const { return folder_.job; }

  // Until requests may be submitted. `progress` (optional) gets every state that the coordinator
  // tells. Errors as of Next(), and the job's own when it cannot start.
  Status WaitUntilReady(Deadline deadline, const std::function<void(const JobState&)>& progress);
  // REQUIRES: WaitUntilReady() succeeded
  JobClient& client() { return *client_; }

  // The next message of the coordinator. kCancelled when a signal came (see signal()),
  // kUnavailable when the coordinator or mpirun is gone: the message ends with the job's last log
  // lines. kDeadlineExceeded.
  Result<Message> Next(Deadline deadline);
  // For a caller with a loop of its own, instead of the two above: waits for a message, for one of
  // `also` (poll(2) fills them in), or until the deadline, and appends what the coordinator said.
  // Connects by itself. kUnavailable as for Next(), after the last message was taken.
  Status PollOnce(Deadline deadline, std::span<pollfd> also, std::vector<Message>* messages);
  // Null until PollOnce() has connected.
  JobClient* connected_client() { return client_ ? &*client_ : nullptr; }
  // SIGINT or SIGTERM once one has come, else 0.
  int signal() const { return signal_; }

  // Ends the job in an orderly way, and by force when the deadline passes. REQUIRES: Start()ed
  void Shutdown(Deadline deadline);

 private:
  Job() = default;
  Status Connect(Deadline deadline);
  // Waits for something to happen: a message, a signal, the end of mpirun, `wake_ms`.
  Status WaitForEvent(Deadline deadline, int wake_ms);
  Status Died(const std::string& what);
  void EndProcesses(Deadline deadline);

  bool MpirunEnded(Deadline deadline);

  // Of a job that we started; empty and null otherwise.
  JobFolder folder_;
  std::optional<ChildProcess> mpirun_;
  SignalWatcher* signals_ = nullptr;
  std::optional<JobClient> client_;
  int signal_ = 0;
};

// Removes the segments and job folders of dead jobs.
void SweepJobRemains();

// What a job's log tells a person: its last lines without MPI's noise.
std::string ExplainLog(const std::string& log, size_t lines_max);

}  // namespace expertflow

#include "expert_store/store_process.h"

#include <atomic>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/log.h"
#include "expert_store/segment.h"
#include "expert_store/store_view.h"
#include "model/checkpoint/checkpoint.h"
#include "transport/wire.h"

namespace expertflow {
namespace {

constexpr int64_t kProgressNs = 100'000'000;
constexpr int64_t kFlushNs = 1'000'000'000;

// Brings the model into memory on a thread of its own, so that signals, deaths and Shutdown are
// served meanwhile.
class Loader {
 public:
  Loader(const StoreOptions& options, Transport& transport)
      : options_(options), transport_(transport), thread_([this] { Run(); }) {}
  ~Loader() {
    cancelled_ = true;
    thread_.join();
  }

  bool done() const { return done_; }
  LoadProgress progress() const { return {bytes_done_, bytes_total_}; }
  // REQUIRES: done()
  const Status& status() const { return status_; }
  const StoreReady& ready() const { return ready_; }

 private:
  void Run() {
    const int64_t begin_ns = NowNs();
    status_ = options_.store_file.empty() ? LoadSegment() : MapFile();
    ready_.load_ns = NowNs() - begin_ns;
    done_ = true;
    transport_.Wake();
  }

  Status MapFile() {
    ASSIGN_OR_RETURN(const StoreView view, StoreView::OpenFile(options_.store_file));
    RETURN_IF_ERROR(view.Matches(options_.plan).WithContext(options_.store_file));
    Describe(view.descriptor());
    std::error_code error;
    ready_.name = std::filesystem::absolute(options_.store_file, error).string();
    return OkStatus();
  }

  // A segment that a killed store of this job left is taken over: the workers have it mapped.
  Result<bool> TakeOver(const SegmentOptions& segment_options) {
    auto adopted = StoreSegment::Adopt(segment_options, std::nullopt);
    if (!adopted.ok()) return false;  // Create() replaces it, or says who has it
    ASSIGN_OR_RETURN(const StoreView view, StoreView::Attach(adopted->descriptor()));
    const Status same = view.Matches(options_.plan);
    if (!same.ok() || view.config_json() != options_.config_json) {
      LogWarning("{} holds another model and is loaded anew", adopted->name());
      return false;
    }
    segment_.emplace(std::move(adopted).value());
    Describe(segment_->descriptor());
    ready_.adopted = true;
    return true;
  }

  Status LoadSegment() {
    SegmentOptions segment_options;
    segment_options.job_id = options_.job;
    segment_options.job_pid = static_cast<pid_t>(options_.job_pid);
    ASSIGN_OR_RETURN(const bool taken_over, TakeOver(segment_options));
    if (taken_over) return OkStatus();
    ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(options_.model));
    ASSIGN_OR_RETURN(const StoreLayout layout,
                     StoreLayout::Make(options_.plan, checkpoint, options_.config_json));
    bytes_total_ = layout.total_bytes();
    ASSIGN_OR_RETURN(segment_, StoreSegment::Create(segment_options, layout.total_bytes()));
    StoreFillOptions fill;
    fill.threads = options_.load_threads;
    fill.cancelled = &cancelled_;
    fill.progress = [this](uint64_t done, uint64_t total) {
      bytes_done_ = done;
      bytes_total_ = total;
    };
    RETURN_IF_ERROR(segment_->Fill(layout, fill));
    RETURN_IF_ERROR(segment_->Publish());
    Describe(segment_->descriptor());
    return OkStatus();
  }

  void Describe(const StoreDescriptor& descriptor) {
    ready_.kind = descriptor.kind == StoreDescriptor::Kind::kSharedMemory ? 0 : 1;
    ready_.name = descriptor.name;
    ready_.total_bytes = descriptor.total_bytes;
    ready_.fingerprint = descriptor.fingerprint.ToString();
  }

  const StoreOptions& options_;
  Transport& transport_;
  std::atomic<bool> cancelled_{false};
  std::atomic<uint64_t> bytes_done_{0};
  std::atomic<uint64_t> bytes_total_{0};
  // Written by the thread before done_ is set, read after.
  Status status_;
  StoreReady ready_;
  std::optional<StoreSegment> segment_;  // owned as long as this object: its end removes the name
  std::atomic<bool> done_{false};
  std::thread thread_;  // last: uses the rest
};

class StoreProcess {
 public:
  StoreProcess(const StoreOptions& options, Transport& transport)
      : options_(options), transport_(transport) {}

  Status Run(const std::vector<Member>& members, SignalWatcher& signals);

 private:
  Status Connect(const std::vector<Member>& members);
  // Tells the coordinator what the loader has done since the last call. An error is the load's.
  Status Report(const Loader& loader);
  void Send(const Message& message);
  void Flush();

  const StoreOptions& options_;
  Transport& transport_;
  ProcessId coordinator_;
  UniqueFd coordinator_death_;
  uint64_t beats_ = 0;
  bool reported_ = false;
};

Status StoreProcess::Connect(const std::vector<Member>& members) {
  for (const Member& member : members) {
    if (member.info.role != ProcessRole::kCoordinator) continue;
    coordinator_ = member.id;
    RETURN_IF_ERROR(transport_.Connect(member.id, member.info.address));
    if (member.info.host == HostName() && member.info.boot_id == ReadBootId()) {
      auto death = OpenPidFd(static_cast<pid_t>(member.info.pid), member.info.pid_start_ticks);
      if (!death.ok()) return Unavailable("the coordinator is gone");
      coordinator_death_ = std::move(death).value();
    }
    return OkStatus();
  }
  return FailedPrecondition("the job has no coordinator");
}

void StoreProcess::Send(const Message& message) {
  const Status status = transport_.Send(coordinator_, EncodeMessage(message));
  if (!status.ok()) LogDebug("{}", status.ToString());  // a gone coordinator shows in Poll()
}

void StoreProcess::Flush() {
  const Deadline deadline = Deadline::AfterNs(kFlushNs);
  std::vector<TransportEvent> events;
  while (!transport_.Flushed() && !deadline.Passed()) {
    if (!transport_.Poll(Deadline::AfterMs(10), {}, &events).ok()) return;
  }
}

Status StoreProcess::Report(const Loader& loader) {
  if (reported_) return OkStatus();
  if (!loader.done()) {
    const LoadProgress progress = loader.progress();
    if (progress.bytes_total > 0) Send(progress);
    return OkStatus();
  }
  reported_ = true;
  if (!loader.status().ok()) {
    Send(FatalError{static_cast<uint8_t>(loader.status().code()), loader.status().message()});
    Flush();
    return loader.status();
  }
  Send(loader.ready());
  return OkStatus();
}

Status StoreProcess::Run(const std::vector<Member>& members, SignalWatcher& signals) {
  RETURN_IF_ERROR(Connect(members));
  Loader loader(options_, transport_);
  int64_t next_beat_ns = NowNs();
  std::vector<TransportEvent> events;
  for (;;) {
    RETURN_IF_ERROR(Report(loader));
    if (NowNs() >= next_beat_ns) {
      Send(Heartbeat{++beats_, !reported_});
      next_beat_ns = NowNs() + options_.heartbeat_ns;
    }
    const int64_t wake_ns =
        reported_ ? next_beat_ns : std::min(next_beat_ns, NowNs() + kProgressNs);
    pollfd others[] = {{signals.fd(), POLLIN, 0}, {coordinator_death_.get(), POLLIN, 0}};
    events.clear();
    RETURN_IF_ERROR(transport_.Poll(Deadline::AtNs(wake_ns), others, &events));
    for (const TransportEvent& event : events) {
      if (event.kind == TransportEvent::Kind::kPeerDown) {
        return Unavailable("the coordinator is gone: " + event.reason.message());
      }
      ASSIGN_OR_RETURN(const Message message, DecodeMessage(event.message));
      if (std::holds_alternative<Shutdown>(message)) return OkStatus();
      LogWarning("a store does not expect {}", MessageName(message));
    }
    if (others[0].revents != 0 && signals.Take()) return Cancelled("ended by a signal");
    if (others[1].revents != 0) return Unavailable("the coordinator has died");
  }
}

}  // namespace

Status RunStore(const StoreOptions& options, Transport& transport,
                const std::vector<Member>& members, SignalWatcher& signals) {
  StoreProcess process(options, transport);
  return process.Run(members, signals);
}

}  // namespace expertflow

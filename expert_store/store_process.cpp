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
#include "transport/coordinator_link.h"
#include "transport/wire.h"

namespace expertflow {
namespace {

constexpr int64_t kProgressNs = 100'000'000;

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

// Tells the coordinator about the load, beats, and waits for the end.
class StoreProcess {
 public:
  StoreProcess(const StoreOptions& options, CoordinatorLink link)
      : options_(options), link_(std::move(link)) {}

  Status Run(Transport& transport);

 private:
  // What the loader has done since the last call. An error is the load's.
  Status Report(const Loader& loader);
  // What a full queue refuses is lost: only a coordinator that has hung for long fills it.
  void Send(const Message& message) { static_cast<void>(link_.Send(message)); }

  const StoreOptions& options_;
  CoordinatorLink link_;
  uint64_t beats_ = 0;
  bool reported_ = false;
};

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
    link_.Flush();
    return loader.status();
  }
  Send(loader.ready());
  return OkStatus();
}

Status StoreProcess::Run(Transport& transport) {
  Loader loader(options_, transport);
  int64_t next_beat_ns = NowNs();
  std::vector<Message> messages;
  for (;;) {
    RETURN_IF_ERROR(Report(loader));
    if (NowNs() >= next_beat_ns) {
      Send(Heartbeat{++beats_, !reported_});
      next_beat_ns = NowNs() + options_.heartbeat_ns;
    }
    const int64_t wake_ns =
        reported_ ? next_beat_ns : std::min(next_beat_ns, NowNs() + kProgressNs);
    RETURN_IF_ERROR(link_.Receive(Deadline::AtNs(wake_ns), &messages));
    for (const Message& message : messages) {
      if (std::holds_alternative<Shutdown>(message)) return OkStatus();
      LogWarning("a store does not expect {}", MessageName(message));
    }
  }
}

}  // namespace

Status RunStore(const StoreOptions& options, Transport& transport,
                const std::vector<Member>& members, SignalWatcher& signals) {
  ASSIGN_OR_RETURN(CoordinatorLink link, CoordinatorLink::Connect(transport, signals, members,
                                                                  options.heartbeat_timeout_ns));
  StoreProcess process(options, std::move(link));
  return process.Run(transport);
}

}  // namespace expertflow

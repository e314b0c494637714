#include "worker/transfer_engine.h"

#include <fmt/core.h>

#include <chrono>

#include "common/units.h"
#include "device/small_copy.h"

namespace expertflow {
namespace {

// A quiet NaN as float, and two of them as bfloat16.
constexpr uint32_t kPoisonPattern = 0x7fc07fc0;
// How long a waiting thread watches before it sleeps: about what a wake-up costs.
constexpr int64_t kSpinNs = 30'000;
// What waking the engine's thread costs the caller, and how fast a link without a limit is taken to
// be (memory).
constexpr uint64_t kWakeNs = 10'000;
constexpr uint64_t kMemoryBytesPerSecond = 8'000'000'000;

std::string Name(const CopyRequest& request) {
  return fmt::format("copy of layer {} expert {} ({})", request.key.layer.value,
                     request.key.expert.value, FormatBytes(request.bytes));
}

}  // namespace

TransferEngine::TransferEngine(Device& device, const TransferEngineOptions& options,
                               Listener& listener, ExecutorObserver* observer)
    : device_(device),
      options_(options),
      listener_(listener),
      observer_(observer),
      queue_(options.queue),
      jobs_(static_cast<size_t>(options.queue.max_jobs)),
      failures_(static_cast<size_t>(options.queue.max_jobs)),
      in_flight_(static_cast<size_t>(options.queue.max_outstanding_chunks)) {}

Result<std::unique_ptr<TransferEngine>> TransferEngine::Create(Device& device,
                                                               const TransferEngineOptions& options,
                                                               Listener& listener,
                                                               ExecutorObserver* observer) {
  std::unique_ptr<TransferEngine> engine(new TransferEngine(device, options, listener, observer));
  for (InFlight& work : engine->in_flight_) {
    ASSIGN_OR_RETURN(work.event, device.CreateEvent());
  }
  if (options.poison) {
    ASSIGN_OR_RETURN(engine->poison_event_, device.CreateEvent());
  }
  engine->thread_ = std::thread(&TransferEngine::ThreadMain, engine.get());
  return engine;
}

TransferEngine::~TransferEngine() {
  {
    const Lock lock(mutex_);
    stop_ = true;
    work_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  for (const InFlight& work : in_flight_) {
    if (work.event.valid()) device_.DestroyEvent(work.event);
  }
  if (poison_event_.valid()) device_.DestroyEvent(poison_event_);
}

CopyId TransferEngine::Enqueue(const TransferJob& job) {
  const CopyId copy = queue_.Enqueue(job.request);
  if (copy.valid()) {
    jobs_[static_cast<size_t>(copy.index)] = job;
    failures_[static_cast<size_t>(copy.index)] = OkStatus();
  }
  return copy;
}

void TransferEngine::Cancel(CopyId copy) {
  const CopyEnd end = queue_.Cancel(copy);
  if (end.state == CopyState::kActive) return;
  const TransferJob job = jobs_[static_cast<size_t>(copy.index)];
  End(job, end, OkStatus());
}

void TransferEngine::Wake() {
  if (!thread_idle_ || !CanPump()) return;
  thread_idle_ = false;
  work_.notify_one();
}

void TransferEngine::Start(Lock& lock, bool waits) {
  const LinkProperties& link = device_.properties().link;
  if (link.asynchronous) {
    while (!pumping_) {
      const uint64_t bytes = queue_.NextChunkBytes();
      if (bytes == 0 || bytes > kSmallCopyBytes) break;
      StartChunk(lock);
    }
  }
  if (!thread_idle_) return;
  const uint64_t demanded = queue_.BytesQueued(CopyKind::kDemand);
  const uint64_t queued = demanded + queue_.BytesQueued(CopyKind::kPrefetch);
  if (queued == 0) return;
  const uint64_t rate = link.bytes_per_second > 0 ? link.bytes_per_second : kMemoryBytesPerSecond;
  const uint64_t copy_ns =
      demanded * 1'000 / (rate / 1'000'000 + 1) + static_cast<uint64_t>(link.latency_ns);
  if (!waits || copy_ns > kWakeNs || in_flight_count_ > 0) Wake();
}

void TransferEngine::Poll(Lock& lock) {
  while (!pumping_ && in_flight_count_ > 0 && device_.IsDone(in_flight_[in_flight_first_].event)) {
    FinishChunk(lock);
  }
}

Status TransferEngine::WaitForCopy(Lock& lock, Deadline deadline) {
  const uint64_t seen = ended_.load(std::memory_order_relaxed);
  const auto waiting = [&] { return ended_.load(std::memory_order_acquire) == seen; };
  while (waiting()) {
    if (CanPump()) {
      Pump(lock);
      continue;
    }
    if (!pumping_) return Internal("waiting for a copy, but none is under way");
    lock.unlock();
    const int64_t start_ns = NowNs();
    while (waiting() && NowNs() - start_ns < kSpinNs) {
    }
    lock.lock();
    if (!waiting()) break;
    if (deadline.Passed()) return DeadlineExceeded("no copy ended in time");
    if (!pumping_) continue;
    ++sleepers_;
    ended_changed_.wait_for(lock, std::chrono::nanoseconds(deadline.RemainingNs()),
                            [&] { return !waiting() || !pumping_; });
    --sleepers_;
  }
  return OkStatus();
}

void TransferEngine::Pump(Lock& lock) {
  const InFlight& oldest = in_flight_[in_flight_first_];
  if (in_flight_count_ > 0 && (!queue_.HasWork() || device_.IsDone(oldest.event))) {
    FinishChunk(lock);
  } else {
    StartChunk(lock);
  }
}

void TransferEngine::FinishChunk(Lock& lock) {
  pumping_ = true;
  InFlight& oldest = in_flight_[in_flight_first_];
  lock.unlock();
  Status status = device_.Synchronize(oldest.event, Deadline::AfterNs(options_.copy_deadline_ns));
  if (observer_ != nullptr) {
    observer_->OnCopyEnd(oldest.job.request.key, oldest.job.request.kind, oldest.chunk.bytes,
                         NowNs());
  }
  lock.lock();
  if (!status.ok()) status = status.WithContext(Name(oldest.job.request));
  in_flight_first_ = (in_flight_first_ + 1) % in_flight_.size();
  --in_flight_count_;
  Report(oldest, status);
  pumping_ = false;
  if (sleepers_ > 0) ended_changed_.notify_all();
}

void TransferEngine::StartChunk(Lock& lock) {
  pumping_ = true;
  if (const std::optional<Chunk> chunk = queue_.NextChunk()) {
    InFlight& work = in_flight_[(in_flight_first_ + in_flight_count_) % in_flight_.size()];
    work.chunk = *chunk;
    work.job = jobs_[static_cast<size_t>(chunk->copy.index)];
    lock.unlock();
    const Status status = Issue(work);
    if (observer_ != nullptr && !status.ok()) {
      observer_->OnCopyEnd(work.job.request.key, work.job.request.kind, 0, NowNs());
    }
    lock.lock();
    if (status.ok()) {
      ++in_flight_count_;
    } else {
      Report(work, status.WithContext(Name(work.job.request)));
    }
  }
  pumping_ = false;
  if (sleepers_ > 0) ended_changed_.notify_all();
}

Status TransferEngine::Issue(const InFlight& work) {
  const TransferJob& job = work.job;
  if (observer_ != nullptr) {
    observer_->OnCopyBegin(job.request.key, job.request.kind, work.chunk.bytes, NowNs());
  }
  if (work.chunk.first) {
    if (job.after.valid()) {
      RETURN_IF_ERROR(device_.StreamWait(StreamKind::kTransfer, job.after));
    }
    if (options_.poison) {
      if (job.after.valid()) {
        RETURN_IF_ERROR(device_.StreamWait(StreamKind::kManagement, job.after));
      }
      RETURN_IF_ERROR(device_.Fill(StreamKind::kManagement, job.destination, kPoisonPattern,
                                   job.destination_bytes / 4 * 4));
      RETURN_IF_ERROR(device_.Record(poison_event_, StreamKind::kManagement));
      RETURN_IF_ERROR(device_.StreamWait(StreamKind::kTransfer, poison_event_));
    }
  }
  RETURN_IF_ERROR(device_.CopyToDevice(StreamKind::kTransfer, job.destination + work.chunk.offset,
                                       job.source + work.chunk.offset, work.chunk.bytes));
  return device_.Record(work.event, StreamKind::kTransfer);
}

void TransferEngine::Report(const InFlight& work, const Status& status) {
  Status& failure = failures_[static_cast<size_t>(work.chunk.copy.index)];
  if (failure.ok()) failure = status;
  const CopyEnd end = queue_.OnChunkDone(work.chunk, status.ok());
  if (end.state != CopyState::kActive) {
    const Status reason = failure;  // the listener may reuse the entry
    End(work.job, end, reason);
  }
}

void TransferEngine::End(const TransferJob& job, const CopyEnd& end, const Status& status) {
  listener_.OnCopyEnd(job, end, status);
  ended_.fetch_add(1, std::memory_order_release);
  if (sleepers_ > 0) ended_changed_.notify_all();
}

void TransferEngine::ThreadMain() {
  Lock lock(mutex_);
  while (!stop_) {
    if (CanPump()) {
      Pump(lock);
      continue;
    }
    thread_idle_ = true;
    work_.wait(lock, [&] { return stop_ || CanPump(); });
    thread_idle_ = false;
  }
  // Somebody else's copy still uses device and events.
  while (in_flight_count_ > 0 && !pumping_) {
    const InFlight& work = in_flight_[in_flight_first_];
    lock.unlock();
    (void)device_.Synchronize(work.event, Deadline::AfterNs(options_.copy_deadline_ns));
    lock.lock();
    in_flight_first_ = (in_flight_first_ + 1) % in_flight_.size();
    --in_flight_count_;
  }
}

}  // namespace expertflow

// The engine's thread: takes commands from the thread that owns the transport, steps the engine,
// and hands messages back. Two bounded queues and nothing else are shared. Sleeps while there is no
// work.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <variant>
#include <vector>

#include "transport/messages.h"
#include "worker/engine.h"

namespace expertflow {

// Captured logits are large; a slow coordinator stops the engine rather than filling memory.
inline constexpr uint64_t kOutgoingBytesMax = uint64_t{64} << 20;

class EngineThread {
 public:
  // `wake` is called from the engine's thread when there are messages to take. While captured
  // positions of `outgoing_bytes_max` and more wait to be taken, the engine stands still.
  EngineThread(std::unique_ptr<Engine> engine, std::function<void()> wake,
               uint64_t outgoing_bytes_max = kOutgoingBytesMax);
  // Ends after the step in progress.
  ~EngineThread();

  void SetTokens(TokenBytes tokens);
  void Start(StartSequence start);
  void Cancel(SequenceId sequence);
  // What predictions have learnt comes as a message, where there is something.
  void AskForLearnt(size_t bytes_most);
  void AdoptLearnt(std::shared_ptr<const LearntVersion> version, uint64_t included);
  // Appends what is there; never blocks.
  void TakeMessages(std::vector<Message>* messages);

  // Grows with every step: the progress that heartbeats report.
  uint64_t steps() const;
  bool busy() const;
  WorkerStats stats() const { return engine_->stats(); }
  ExpertReport experts() const { return engine_->experts(); }

 private:
  struct TakeLearnt {
    size_t bytes_most = 0;
  };
  struct Adopt {
    std::shared_ptr<const LearntVersion> version;
    uint64_t included = 0;
  };
  using Command = std::variant<StartSequence, CancelSequence, TokenBytes, TakeLearnt, Adopt>;

  void Enqueue(Command command);
  void Run();
  void Apply(Command command, std::vector<Message>* out);
  void Publish(std::vector<Message>* out);
  // What the lead of all workers is decided by, now and then.
  void ReportStride(std::vector<Message>* out);

  const std::unique_ptr<Engine> engine_;
  const std::function<void()> wake_;
  const uint64_t outgoing_bytes_max_;
  // Of the engine's thread: when the next report of what was measured is due, and how long after
  // that another one. The first ones, of an empty cache, come quickly.
  int64_t next_report_ns_ = 0;
  int64_t report_interval_ns_ = 2'000'000;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::deque<Command> commands_;
  std::vector<Message> outgoing_;
  uint64_t outgoing_bytes_ = 0;
  uint64_t steps_ = 0;
  bool busy_ = false;
  bool stop_ = false;
  std::condition_variable work_;
  std::condition_variable taken_;

  std::thread thread_;  // last: uses the rest
};

}  // namespace expertflow

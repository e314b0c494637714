#include "worker/engine_thread.h"

#include <algorithm>
#include <utility>

#include "common/clock.h"
#include "common/log.h"
#include "predictor/learnt_messages.h"

namespace expertflow {
namespace {

constexpr int64_t kReportIntervalMostNs = 50'000'000;

size_t CapturedBytes(const StepOutput& output) {
  size_t bytes = 0;
  for (const CapturedPosition& captured : output.captured) {
    bytes += captured.logits.size() * sizeof(float) + captured.router_ids.size() * 8 +
             captured.logprobs.size() * sizeof(TokenLogprob);
  }
  return bytes;
}

}  // namespace

EngineThread::EngineThread(std::unique_ptr<Engine> engine, std::function<void()> wake,
                           uint64_t outgoing_bytes_max)
    : engine_(std::move(engine)),
      wake_(std::move(wake)),
      outgoing_bytes_max_(outgoing_bytes_max),
      thread_([this] { Run(); }) {}

EngineThread::~EngineThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_one();
  taken_.notify_one();
  thread_.join();
}

void EngineThread::Enqueue(Command command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }
  work_.notify_one();
}

void EngineThread::SetTokens(TokenBytes tokens) {
  Enqueue(std::move(tokens));
}

void EngineThread::AskForLearnt(size_t bytes_most) {
  Enqueue(TakeLearnt{bytes_most});
}

void EngineThread::AdoptLearnt(std::shared_ptr<const LearntVersion> version, uint64_t included) {
  Enqueue(Adopt{std::move(version), included});
}

void EngineThread::Start(StartSequence start) {
  {
    const std::lock_guard lock(mutex_);
    commands_.emplace_back(std::move(start));
    busy_ = true;
  }
  work_.notify_one();
}

void EngineThread::Cancel(SequenceId sequence) {
  Enqueue(CancelSequence{sequence});
}

void EngineThread::TakeMessages(std::vector<Message>* messages) {
  {
    const std::lock_guard lock(mutex_);
    for (Message& message : outgoing_) messages->push_back(std::move(message));
    outgoing_.clear();
    outgoing_bytes_ = 0;
  }
  taken_.notify_one();
}

uint64_t EngineThread::steps() const {
  const std::lock_guard lock(mutex_);
  return steps_;
}

bool EngineThread::busy() const {
  const std::lock_guard lock(mutex_);
  return busy_;
}

void EngineThread::Apply(Command command, std::vector<Message>* out) {
  if (auto* start = std::get_if<StartSequence>(&command)) {
    const SequenceId sequence = start->sequence;
    const Status status = engine_->Start(std::move(*start));
    if (!status.ok()) {
      out->emplace_back(
          SequenceFailed{sequence, static_cast<uint8_t>(status.code()), status.message()});
    }
  } else if (const auto* tokens = std::get_if<TokenBytes>(&command)) {
    const Status status = engine_->SetTokens(*tokens);
    if (!status.ok()) {
      out->emplace_back(FatalError{static_cast<uint8_t>(status.code()), status.message()});
    }
  } else if (const auto* take = std::get_if<TakeLearnt>(&command)) {
    const auto batch = engine_->TakeLearnt(take->bytes_most);
    if (batch != nullptr) out->emplace_back(ToMessage(*batch));
  } else if (const auto* adopt = std::get_if<Adopt>(&command)) {
    engine_->AdoptLearnt(*adopt->version, adopt->included);
  } else {
    engine_->Cancel(std::get<CancelSequence>(command).sequence);
  }
}

void EngineThread::Publish(std::vector<Message>* out) {
  if (out->empty()) return;
  {
    const std::lock_guard lock(mutex_);
    for (Message& message : *out) outgoing_.push_back(std::move(message));
  }
  out->clear();
  wake_();
}

void EngineThread::ReportStride(std::vector<Message>* out) {
  const int64_t now_ns = NowNs();
  if (now_ns < next_report_ns_) return;
  const auto measured = engine_->TakeStride();
  if (!measured) return;
  next_report_ns_ = now_ns + report_interval_ns_;
  report_interval_ns_ = std::min(2 * report_interval_ns_, kReportIntervalMostNs);
  out->emplace_back(ToMessage(measured->window, measured->expert_bytes, measured->stride_max));
}

void EngineThread::Run() {
  std::vector<Message> out;
  StepOutput output;
  uint64_t steps = 0;
  for (;;) {
    std::deque<Command> commands;
    {
      std::unique_lock lock(mutex_);
      steps_ = steps;
      busy_ = !commands_.empty() || !engine_->idle();
      work_.wait(lock, [this] { return stop_ || !commands_.empty() || !engine_->idle(); });
      taken_.wait(lock, [this] { return stop_ || outgoing_bytes_ < outgoing_bytes_max_; });
      if (stop_) return;
      commands.swap(commands_);
      busy_ = true;
    }
    for (Command& command : commands) Apply(std::move(command), &out);
    if (!engine_->idle()) {
      const Status status = engine_->Step(&output);
      ++steps;
      if (!status.ok()) {
        LogError("{}", status.ToString());
        out.emplace_back(FatalError{static_cast<uint8_t>(status.code()), status.message()});
      }
      const size_t bytes = CapturedBytes(output);
      for (CapturedPosition& captured : output.captured) out.emplace_back(std::move(captured));
      if (!output.tokens.empty()) {
        out.emplace_back(StepReport{steps, std::move(output.tokens), std::move(output.prompts)});
      }
      for (SequenceFailed& failed : output.failed) out.emplace_back(std::move(failed));
      ReportStride(&out);
      const std::lock_guard lock(mutex_);
      outgoing_bytes_ += bytes;
    }
    Publish(&out);
  }
}

}  // namespace expertflow

// The worker role over a fake network, with a real store file; the test is the coordinator.
#include "worker/worker_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <numeric>
#include <optional>
#include <thread>

#include "tests/unit/worker/small_engine.h"
#include "transport/fake_transport.h"
#include "transport/wire.h"

namespace expertflow {
namespace {

using ::testing::HasSubstr;
using testing::Request;
using testing::SmallModel;

constexpr ProcessId kCoordinator{0};
constexpr ProcessId kWorker{1};

// Refuses large messages while its gate is shut, as a transport whose queue is full does.
class GatedTransport final : public Transport {
 public:
  explicit GatedTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}

  void SetSelf(ProcessId self) override { inner_->SetSelf(self); }
  std::string LocalAddress() const override { return inner_->LocalAddress(); }
  Status Connect(ProcessId peer, const std::string& address) override {
    return inner_->Connect(peer, address);
  }
  void Disconnect(ProcessId peer) override { inner_->Disconnect(peer); }
  Status Send(ProcessId peer, std::span<const uint8_t> message) override {
    if (shut && message.size() > 50'000) {
      ++refused;
      return ResourceExhausted("queue full");
    }
    return inner_->Send(peer, message);
  }
  Status Poll(Deadline deadline, std::span<pollfd> others,
              std::vector<TransportEvent>* events) override {
    return inner_->Poll(deadline, others, events);
  }
  void Wake() override {
    ++wakes;
    inner_->Wake();
  }
  bool Flushed() const override { return inner_->Flushed(); }

  std::atomic<bool> shut{false};
  std::atomic<int> refused{0};
  std::atomic<int> wakes{0};  // the engine's thread has messages

 private:
  std::unique_ptr<Transport> inner_;
};

class WorkerProcessTest : public ::testing::Test {
 protected:
  WorkerProcessTest()
      : coordinator_(network_.Create(kCoordinator)), worker_(network_.Create(kWorker)) {
    EXPECT_TRUE(coordinator_->Connect(kWorker, worker_.LocalAddress()).ok());
    members_ = {{kCoordinator, {.role = ProcessRole::kCoordinator, .host = "elsewhere"}},
                {kWorker, {.role = ProcessRole::kWorker, .host = HostName()}}};
    members_[0].info.address = coordinator_->LocalAddress();
    options_.threads = 1;
    options_.expert_memory = {.is_percent = true, .percent = 50};
    options_.heartbeat_ns = 5'000'000;
    options_.sequences_max = 4;
    options_.prefill_tokens_max = 16;
    auto signals = SignalWatcher::Create();
    EXPECT_TRUE(signals.ok()) << signals.status().ToString();
    signals_.emplace(std::move(signals).value());
  }
  ~WorkerProcessTest() override {
    if (!thread_.joinable()) return;
    coordinator_.reset();  // ends it, whatever it does
    thread_.join();
  }

  void StartWorker() {
    thread_ = std::thread([this] {
      result_ = RunWorker(options_, worker_, members_, *signals_);
      ended_ = true;
    });
  }
  // What RunWorker() returned.
  Status Result() {
    const Deadline deadline = Deadline::AfterMs(20'000);
    while (!ended_ && !deadline.Passed()) Poll();
    EXPECT_TRUE(ended_) << "the worker did not end";
    if (!ended_) return OkStatus();
    thread_.join();
    Poll();
    return result_;
  }
  void Send(const Message& message) {
    const Status status = coordinator_->Send(kWorker, EncodeMessage(message));
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  void Poll() {
    if (coordinator_ == nullptr) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    std::vector<TransportEvent> events;
    EXPECT_TRUE(coordinator_->Poll(Deadline::AfterMs(2), {}, &events).ok());
    for (const TransportEvent& event : events) {
      if (event.kind != TransportEvent::Kind::kMessage) continue;
      auto message = DecodeMessage(event.message);
      ASSERT_TRUE(message.ok()) << message.status().ToString();
      messages_.push_back(std::move(message).value());
    }
  }
  bool WaitUntil(const std::function<bool()>& done) {
    const Deadline deadline = Deadline::AfterMs(20'000);
    while (!done()) {
      if (deadline.Passed()) return false;
      Poll();
    }
    return true;
  }
  template <typename T>
  std::vector<T> All() const {
    std::vector<T> all;
    for (const Message& message : messages_) {
      if (const auto* found = std::get_if<T>(&message)) all.push_back(*found);
    }
    return all;
  }
  std::vector<int32_t> Tokens(uint64_t id, FinishReason* finish = nullptr) const {
    std::vector<int32_t> tokens;
    for (const StepReport& report : All<StepReport>()) {
      for (const TokenEvent& event : report.tokens) {
        if (event.sequence.value != id) continue;
        tokens.push_back(event.token);
        if (finish != nullptr) *finish = event.finish;
      }
    }
    return tokens;
  }
  bool Finished(uint64_t id) const {
    FinishReason finish = FinishReason::kNone;
    Tokens(id, &finish);
    return finish != FinishReason::kNone;
  }
  static AttachStore Attach(const SmallModel& model) {
    AttachStore attach;
    attach.store.kind = 1;
    attach.store.name = model.path();
    attach.store.total_bytes = model.store().total_bytes();
    attach.store.fingerprint = model.store().fingerprint().ToString();
    return attach;
  }
  void StartAttached(const SmallModel& model) {
    StartWorker();
    Send(Attach(model));
    ASSERT_TRUE(WaitUntil([&] { return !All<WorkerReady>().empty(); }));
  }
  // Ended with `code` after telling the coordinator so.
  void ExpectFatal(StatusCode code, const std::string& text) {
    const Status status = Result();
    EXPECT_EQ(status.code(), code) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr(text));
    ASSERT_EQ(All<FatalError>().size(), 1u);
    EXPECT_EQ(All<FatalError>()[0].code, static_cast<uint8_t>(code));
    EXPECT_EQ(All<FatalError>()[0].message, status.message());
  }

  FakeNetwork network_;
  std::unique_ptr<Transport> coordinator_;
  GatedTransport worker_;
  std::vector<Member> members_;
  WorkerOptions options_;
  std::optional<SignalWatcher> signals_;
  std::vector<Message> messages_;
  Status result_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

TEST_F(WorkerProcessTest, AttachesAStoreAndRunsASequence) {
  const SmallModel model;
  StartAttached(model);
  const WorkerReady ready = All<WorkerReady>()[0];
  EXPECT_EQ(ready.device, "cpu");
  EXPECT_EQ(ready.threads, 1u);
  EXPECT_EQ(ready.expert_slots, 6u);
  EXPECT_FALSE(ready.in_place);
  EXPECT_EQ(ready.kv_tokens, 4u * 256);
  EXPECT_THAT(ready.memory_plan, HasSubstr(R"("expert_slots":6)"));
  EXPECT_THAT(ready.effective_config, HasSubstr(R"("device_memory":"private")"));
  EXPECT_EQ(ready.arithmetic, "16 lanes");

  Send(Request(1, {5, 6}, 8));
  Send(Request(2, {}, 8));
  ASSERT_TRUE(WaitUntil([&] { return Finished(1) && !All<SequenceFailed>().empty(); }));
  EXPECT_EQ(All<SequenceFailed>()[0].sequence.value, 2u);

  const auto device = testing::MakeFaultDevice();
  const auto engine = testing::MakeEngine(model, *device, {});
  ASSERT_TRUE(engine->Start(Request(1, {5, 6}, 8)).ok());
  std::vector<int32_t> expected;
  while (!engine->idle()) {
    StepOutput output;
    ASSERT_TRUE(engine->Step(&output).ok());
    for (const TokenEvent& event : output.tokens) expected.push_back(event.token);
  }
  EXPECT_EQ(Tokens(1), expected);

  Send(Shutdown{"done"});
  EXPECT_TRUE(Result().ok());
  const WorkerStats last = All<WorkerStats>().back();
  EXPECT_EQ(last.prefill_tokens, 2u);
  EXPECT_EQ(last.decode_tokens, 7u);
  EXPECT_EQ(last.sequences, 0u);
  EXPECT_GT(last.resident_bytes, 0u);
  // Nine tokens went through each layer.
  const ExpertReport experts = All<ExpertReport>().back();
  const auto rows = std::accumulate(experts.rows.begin(), experts.rows.end(), uint64_t{0});
  EXPECT_GT(rows, 0u);
  EXPECT_EQ(rows % (9 * experts.layers.size()), 0u);
}

// The coordinator must not move a sequence between workers whose caches round differently.
TEST_F(WorkerProcessTest, TheTypesOfKvCacheAndActivationsArePartOfTheArithmetic) {
  const SmallModel model;
  options_.kv_dtype = DType::kBF16;
  options_.int8_activations = true;
  StartAttached(model);
  const WorkerReady ready = All<WorkerReady>()[0];
  EXPECT_EQ(ready.arithmetic, "16 lanes, INT8 activations, KV cache BF16");
  EXPECT_THAT(ready.memory_plan, HasSubstr(R"("kv_dtype":"BF16")"));
  EXPECT_THAT(ready.effective_config, HasSubstr(R"("kv_dtype":"BF16")"));
  Send(Shutdown{"done"});
  EXPECT_TRUE(Result().ok());
}

TEST_F(WorkerProcessTest, HeartbeatsTellProgressFromLife) {
  const SmallModel model({.context = 100'000});
  options_.device_memory_host = true;
  StartWorker();
  ASSERT_TRUE(WaitUntil([&] { return All<Heartbeat>().size() >= 3; }));
  EXPECT_FALSE(All<Heartbeat>().back().busy);
  Send(Attach(model));
  ASSERT_TRUE(WaitUntil([&] { return !All<WorkerReady>().empty(); }));
  EXPECT_TRUE(All<WorkerReady>()[0].in_place);
  Send(Request(1, {5}, 50'000));
  ASSERT_TRUE(WaitUntil([&] {
    const auto beats = All<Heartbeat>();
    return beats.back().busy && beats.back().progress > 3;
  }));
  Send(CancelSequence{{1}});
  ASSERT_TRUE(WaitUntil([&] { return !All<Heartbeat>().back().busy; }));
  const size_t beats = All<Heartbeat>().size();
  ASSERT_TRUE(WaitUntil([&] { return All<Heartbeat>().size() >= beats + 2; }));
  EXPECT_EQ(All<Heartbeat>()[beats].progress, All<Heartbeat>()[beats + 1].progress);
  EXPECT_FALSE(Finished(1));
  Send(Shutdown{});
  EXPECT_TRUE(Result().ok());
}

TEST_F(WorkerProcessTest, AStoreThatIsNotTheOneDescribedIsRefused) {
  const SmallModel model;
  const SmallModel other({.seed = 2});
  AttachStore attach = Attach(model);
  attach.store.fingerprint = other.store().fingerprint().ToString();
  StartWorker();
  Send(attach);
  const Status status = Result();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr(model.path()));
  ASSERT_EQ(All<FatalError>().size(), 1u);
}

TEST_F(WorkerProcessTest, NonsenseInPlaceOfAFingerprintIsRefused) {
  const SmallModel model;
  AttachStore attach = Attach(model);
  attach.store.fingerprint = "none";
  StartWorker();
  Send(attach);
  ExpectFatal(StatusCode::kInvalidArgument, "none");
}

TEST_F(WorkerProcessTest, ARestartedStoreIsAcceptedAndAnotherModelIsNot) {
  const SmallModel model;
  const SmallModel other({.seed = 2});
  StartAttached(model);
  Send(Attach(model));
  Send(Request(1, {5}, 3));
  ASSERT_TRUE(WaitUntil([&] { return Finished(1); }));
  EXPECT_EQ(All<WorkerReady>().size(), 1u);
  Send(Attach(other));
  ExpectFatal(StatusCode::kFailedPrecondition, "holds another model");
}

TEST_F(WorkerProcessTest, WorkBeforeAStoreIsRefused) {
  StartWorker();
  Send(Request(1, {5}, 3));
  ExpectFatal(StatusCode::kFailedPrecondition, "StartSequence came before a store was attached");
}

TEST_F(WorkerProcessTest, AMessageForSomebodyElseIsRefused) {
  const SmallModel model;
  StartAttached(model);
  Send(SubmitRequest{});
  ExpectFatal(StatusCode::kInvalidArgument, "SubmitRequest");
}

TEST_F(WorkerProcessTest, TooLittleMemoryIsNamed) {
  const SmallModel model;
  options_.expert_memory = {.bytes = 1};
  StartWorker();
  Send(Attach(model));
  ExpectFatal(StatusCode::kInvalidArgument, "--expert-memory");
}

TEST_F(WorkerProcessTest, WithoutABoardOrAPredictorItGoesOn) {
  const SmallModel model;
  StartWorker();
  Send(PublishBoard{1, 1 << 20, 5});
  Send(Attach(model));
  ASSERT_TRUE(WaitUntil([&] { return !All<WorkerReady>().empty(); }));
  PredictorVersion version;
  version.version = 3;
  version.sums.leaves = {1};
  version.sums.leaf_count = {1};
  version.sums.leaf_rest = {5};
  version.leaf_version = {3};
  Send(version);
  Send(Request(1, {5}, 3));
  ASSERT_TRUE(WaitUntil([&] { return Finished(1); }));
  EXPECT_EQ(All<WorkerStats>().back().predictor_version, 0u);
  version.leaf_version = {};
  Send(version);
  ExpectFatal(StatusCode::kInvalidArgument, "versions of other rows");
}

TEST_F(WorkerProcessTest, AnUnknownDeviceIsNamed) {
  const SmallModel model;
  options_.device = "abacus";
  StartWorker();
  Send(Attach(model));
  ExpectFatal(StatusCode::kInvalidArgument, "--device abacus");
}

TEST_F(WorkerProcessTest, EndsWhenTheCoordinatorIsGone) {
  const SmallModel model({.context = 100'000});
  StartAttached(model);
  Send(Request(1, {5}, 200));
  ASSERT_TRUE(WaitUntil([&] { return !Tokens(1).empty(); }));
  coordinator_.reset();
  EXPECT_EQ(Result().code(), StatusCode::kUnavailable);
}

// On the same host the death is seen by the process itself; the network tells nothing here.
TEST_F(WorkerProcessTest, EndsWhenTheCoordinatorsProcessDies) {
  auto process = SpawnProcess({.argv = {"sleep", "1000"}});
  ASSERT_TRUE(process.ok()) << process.status().ToString();
  ProcessInfo& info = members_[0].info;
  info.host = HostName();
  info.boot_id = ReadBootId();
  info.pid = process->pid();
  info.pid_start_ticks = ProcessStartTicks(process->pid()).value();
  StartWorker();
  ASSERT_TRUE(WaitUntil([&] { return !All<Heartbeat>().empty(); }));
  process->Kill(SIGKILL);
  EXPECT_EQ(Result().code(), StatusCode::kUnavailable);
}

TEST_F(WorkerProcessTest, EndsAtOnceWithoutACoordinator) {
  auto process = SpawnProcess({.argv = {"true"}});
  ASSERT_TRUE(process.ok()) << process.status().ToString();
  ASSERT_TRUE(process->Wait(Deadline::AfterMs(20'000)).ok());
  ProcessInfo& info = members_[0].info;
  info.host = HostName();
  info.boot_id = ReadBootId();
  info.pid = process->pid();
  info.pid_start_ticks = 1;
  EXPECT_EQ(RunWorker(options_, worker_, members_, *signals_).code(), StatusCode::kUnavailable);
  members_.erase(members_.begin());
  EXPECT_EQ(RunWorker(options_, worker_, members_, *signals_).code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(WorkerProcessTest, EndsAtASignal) {
  const SmallModel model;
  StartAttached(model);
  ASSERT_EQ(::kill(::getpid(), SIGTERM), 0);  // blocked; the watcher takes it
  EXPECT_EQ(Result().code(), StatusCode::kCancelled);
}

// What a slow coordinator does not take must not pile up in the worker either.
TEST_F(WorkerProcessTest, AFullQueueStopsTheEngine) {
  const SmallModel model({.layers = 1, .vocab = 1 << 14, .hidden = 4});
  options_.outgoing_bytes_max = 2 << 20;
  options_.prefill_tokens_max = 1;
  StartAttached(model);
  worker_.shut = true;
  StartSequence start = Request(1, std::vector<int32_t>(100, 5), 2);
  start.capture_logits = true;
  Send(start);
  // One batch of messages is held by the process, 32 positions of 64 KiB by the engine's thread.
  constexpr int kStepsMax = 2 * 32 + 2;
  ASSERT_TRUE(WaitUntil([&] { return worker_.refused > 0 && worker_.wakes > 32; }));
  for (int before = -1; before != worker_.wakes;) {
    before = worker_.wakes;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_LE(worker_.wakes, kStepsMax);
  worker_.shut = false;
  ASSERT_TRUE(WaitUntil([&] { return Finished(1); }));
  EXPECT_EQ(All<CapturedPosition>().size(), 101u);
}

}  // namespace
}  // namespace expertflow

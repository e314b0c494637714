// The loop around the state machine: sockets, joiners, deaths and signals, over a fake network. The
// test is the store, the workers and the client.
#include "coordinator/coordinator_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "tests/unit/model_tokenizer/small_tokenizer.h"
#include "transport/fake_transport.h"
#include "transport/local_socket.h"
#include "transport/rendezvous.h"
#include "transport/wire.h"

namespace expertflow {
namespace {

using ::testing::HasSubstr;

constexpr ProcessId kCoordinator{0};
constexpr ProcessId kStore{1};
constexpr ProcessId kWorker{2};
constexpr ProcessId kJoiner{3};
constexpr int64_t kTestMs = 30'000;

class CoordinatorProcessTest : public ::testing::Test {
 protected:
  CoordinatorProcessTest() {
    std::string pattern = "/tmp/expertflow-test-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    Write("tokenizer.json", SmallTokenizerJson().dump());
    Write("config.json",
          R"({"vocab_size": 301, "max_position_embeddings": 64, "eos_token_id": 300})");
    options_.job = "test";
    options_.control_socket = folder_ + "/control";
    options_.model = folder_;
    options_.join_secret = "correct horse";
    self_ = network_.Create(kCoordinator);
    members_.push_back({kCoordinator, {.role = ProcessRole::kCoordinator, .host = "elsewhere"}});
    members_[0].info.address = self_->LocalAddress();
    store_ = AddMember(kStore, ProcessRole::kStore);
    worker_ = AddMember(kWorker, ProcessRole::kWorker);
    auto signals = SignalWatcher::Create();
    EXPECT_TRUE(signals.ok()) << signals.status().ToString();
    signals_.emplace(std::move(signals).value());
  }
  ~CoordinatorProcessTest() override {
    if (thread_.joinable()) {
      ::kill(::getpid(), SIGTERM);
      thread_.join();
    }
    while (signals_->Take()) continue;
    std::filesystem::remove_all(folder_);
  }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name) << text;
  }
  std::unique_ptr<Transport> AddMember(ProcessId id, ProcessRole role) {
    auto transport = network_.Create(id);
    EXPECT_TRUE(transport->Connect(kCoordinator, FakeNetwork::AddressOf(kCoordinator)).ok());
    Member member{id, {.role = role, .host = "elsewhere"}};
    member.info.address = transport->LocalAddress();
    members_.push_back(member);
    return transport;
  }
  void Run() {
    thread_ = std::thread([this] {
      result_ = RunCoordinator(options_, *self_, members_, *signals_);
      ended_ = true;
    });
  }
  // What RunCoordinator() returned.
  Status Result() {
    const Deadline deadline = Deadline::AfterMs(kTestMs);
    while (!ended_ && !deadline.Passed()) ::usleep(1000);
    EXPECT_TRUE(ended_) << "the coordinator did not end";
    if (ended_) thread_.join();
    return result_;
  }
  static void Say(Transport& from, const Message& message) {
    const Status status = from.Send(kCoordinator, EncodeMessage(message));
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  // The next message of this type that the process gets; others are dropped.
  template <typename T>
  static std::optional<T> Next(Transport& process) {
    const Deadline deadline = Deadline::AfterMs(kTestMs);
    while (!deadline.Passed()) {
      std::vector<TransportEvent> events;
      EXPECT_TRUE(process.Poll(Deadline::AfterMs(20), {}, &events).ok());
      for (const TransportEvent& event : events) {
        if (event.kind != TransportEvent::Kind::kMessage) continue;
        const auto message = DecodeMessage(event.message);
        EXPECT_TRUE(message.ok());
        if (const T* one = std::get_if<T>(&*message)) return *one;
      }
    }
    ADD_FAILURE() << "the message did not come";
    return std::nullopt;
  }
  void ConnectClient() {
    const Deadline deadline = Deadline::AfterMs(kTestMs);
    while (!client_ && !deadline.Passed()) {
      auto connection = LocalConnection::Connect(options_.control_socket, deadline);
      if (connection.ok()) {
        client_.emplace(std::move(connection).value());
      } else {
        ::usleep(1000);
      }
    }
    ASSERT_TRUE(client_);
  }
  void FromClient(const Message& message) {
    ASSERT_TRUE(client_->Send(message).ok());
    ASSERT_TRUE(client_->FlushAll(Deadline::AfterMs(kTestMs)).ok());
  }
  template <typename T>
  std::optional<T> ToClient() {
    for (;;) {
      const auto message = client_->ReceiveOne(Deadline::AfterMs(kTestMs));
      EXPECT_TRUE(message.ok()) << message.status().ToString();
      if (!message.ok()) return std::nullopt;
      if (const T* one = std::get_if<T>(&*message)) return *one;
    }
  }
  // Store and worker get ready, and a client sees it.
  void Ready() {
    Run();
    StoreReady store;
    store.fingerprint = "f";
    Say(*store_, store);
    ASSERT_TRUE(Next<AttachStore>(*worker_));
    Say(*worker_, WorkerReady{});
    ConnectClient();
    while (true) {
      const auto state = ToClient<JobState>();
      ASSERT_TRUE(state);
      if (state->phase == JobPhase::kReady) break;
    }
  }
  void Submit(const std::string& text) {
    SubmitRequest submit;
    submit.request = 1;
    submit.text = text;
    submit.max_new_tokens = 2;
    FromClient(submit);
  }
  static void Generate(Transport& worker, const StartSequence& start) {
    const auto first = static_cast<uint32_t>(start.tokens.size());
    Say(worker, StepReport{1, {{start.sequence, first, 'o'}}});
    Say(worker, StepReport{2, {{start.sequence, first + 1, 'k', FinishReason::kLength}}});
  }
  void ExpectOk() {
    EXPECT_EQ(ToClient<TextDelta>()->text, "o");
    EXPECT_EQ(ToClient<TextDelta>()->text, "k");
    EXPECT_EQ(ToClient<RequestDone>()->finish, FinishReason::kLength);
  }

  std::string folder_;
  FakeNetwork network_;
  std::unique_ptr<Transport> self_;
  std::unique_ptr<Transport> store_;
  std::unique_ptr<Transport> worker_;
  std::vector<Member> members_;
  CoordinatorOptions options_;
  std::optional<SignalWatcher> signals_;
  std::optional<LocalConnection> client_;
  std::thread thread_;
  Status result_;
  std::atomic<bool> ended_{false};
};

TEST_F(CoordinatorProcessTest, ServesARequestAndEndsWhenAskedTo) {
  Ready();
  Submit("hi");
  const auto start = Next<StartSequence>(*worker_);
  ASSERT_TRUE(start);
  EXPECT_EQ(start->tokens, (std::vector<int32_t>{'h', 'i'}));
  EXPECT_EQ(start->stop_tokens, std::vector<int32_t>{300});
  Generate(*worker_, *start);
  ExpectOk();
  FromClient(MetricsRequest{});
  EXPECT_THAT(ToClient<MetricsReply>()->text,
              HasSubstr("expertflow_requests_total{outcome=\"done\"} 1"));
  FromClient(ShutdownRequest{});
  EXPECT_EQ(ToClient<JobState>()->phase, JobPhase::kStopping);
  EXPECT_TRUE(Next<Shutdown>(*store_));
  EXPECT_TRUE(Next<Shutdown>(*worker_));
  EXPECT_TRUE(Result().ok());
  EXPECT_FALSE(std::filesystem::exists(options_.control_socket));
}

TEST_F(CoordinatorProcessTest, ASignalEndsItCleanly) {
  Ready();
  ::kill(::getpid(), SIGTERM);
  EXPECT_TRUE(Next<Shutdown>(*worker_));
  EXPECT_EQ(Result().code(), StatusCode::kCancelled);
}

TEST_F(CoordinatorProcessTest, AJoinerGetsTheStoreAndWork) {
  Ready();
  FromClient(StatusRequest{});
  const auto status = nlohmann::json::parse(ToClient<StatusReply>()->json);
  RendezvousWireUp wireup(status["join_address"], options_.join_secret);
  ProcessInfo info{.role = ProcessRole::kWorker, .host = "elsewhere"};
  info.address = FakeNetwork::AddressOf(kJoiner);
  auto joiner = network_.Create(kJoiner);
  const auto members = wireup.Exchange(info, Deadline::AfterMs(kTestMs));
  ASSERT_TRUE(members.ok()) << members.status().ToString();
  ASSERT_EQ(wireup.self(), kJoiner);
  EXPECT_EQ(members->size(), 4U);
  ASSERT_TRUE(joiner->Connect(kCoordinator, FakeNetwork::AddressOf(kCoordinator)).ok());
  ASSERT_TRUE(Next<AttachStore>(*joiner));
  Say(*joiner, WorkerReady{});
  worker_.reset();  // dies
  Submit("hi");
  const auto start = Next<StartSequence>(*joiner);
  ASSERT_TRUE(start);
  Generate(*joiner, *start);
  ExpectOk();
}

TEST_F(CoordinatorProcessTest, FIELD_53_ADeathOnThisHostIsSeenWithoutTheNetwork) {
  SpawnOptions sleeper;
  sleeper.argv = {"sleep", "1000"};
  auto child = SpawnProcess(sleeper);
  ASSERT_TRUE(child.ok());
  ProcessInfo& info = members_.back().info;
  info.pid = child->pid();
  info.pid_start_ticks = ProcessStartTicks(child->pid()).value();
  for (Member& member : members_) {
    member.info.host = HostName();
    member.info.boot_id = "another boot";  // only the last one is really here
  }
  info.boot_id = ReadBootId();
  members_[1].info.boot_id = ReadBootId();  // the store: beside the worker
  members_[1].info.pid = ::getpid();
  Ready();
  Submit("hi");
  ASSERT_TRUE(Next<StartSequence>(*worker_));
  child->Kill(SIGKILL);
  const auto done = ToClient<RequestDone>();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->finish, FinishReason::kError);
  EXPECT_THAT(done->message, HasSubstr("worker 2"));
  EXPECT_THAT(done->message, HasSubstr("its process ended"));
  EXPECT_EQ(Result().code(), StatusCode::kUnavailable);
}

TEST_F(CoordinatorProcessTest, AReplacementThatEndsAtOnceIsNotWaitedFor) {
  options_.worker_command = {"false"};
  Ready();
  Submit("hi");
  worker_.reset();
  const auto done = ToClient<RequestDone>();
  ASSERT_TRUE(done);
  EXPECT_THAT(done->message, HasSubstr("exit code 1"));
  EXPECT_EQ(Result().code(), StatusCode::kUnavailable);
}

TEST_F(CoordinatorProcessTest, APeerThatSendsNonsenseIsGivenUp) {
  Ready();
  Submit("hi");
  const uint8_t nonsense[] = {1, 2, 3};
  ASSERT_TRUE(worker_->Send(kCoordinator, nonsense).ok());
  const auto done = ToClient<RequestDone>();
  ASSERT_TRUE(done);
  EXPECT_THAT(done->message, HasSubstr("worker 2"));
  EXPECT_FALSE(Result().ok());
}

TEST_F(CoordinatorProcessTest, ATokenizerWithIdsPastTheVocabularyIsRefused) {
  Write("config.json", R"({"vocab_size": 300, "max_position_embeddings": 64})");
  Run();
  const Status status = Result();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("tokenizer.json"));
  EXPECT_THAT(status.message(), HasSubstr("300"));
}

}  // namespace
}  // namespace expertflow

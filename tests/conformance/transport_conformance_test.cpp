// What every Transport promises (transport.h), run against each implementation; and, for UCX, what
// only real processes can show.
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <future>
#include <map>
#include <numeric>
#include <thread>

#include "common/process.h"
#include "transport/fake_transport.h"
#include "transport/start_lock.h"
#include "transport/ucx_transport.h"

namespace expertflow {
namespace {

constexpr int64_t kTestNs = 20'000'000'000;  // a test that needs longer fails
constexpr ProcessId kA{0};
constexpr ProcessId kB{1};
constexpr ProcessId kC{2};

// A network of one implementation.
class Rig {
 public:
  virtual ~Rig() = default;
  virtual std::unique_ptr<Transport> Create(ProcessId id) = 0;
  // An address at which nobody is.
  virtual std::string DeadAddress(ProcessId id) = 0;
  // Lets time go on, where it is not real.
  virtual void Advance() {}
};

class FakeRig final : public Rig {
 public:
  std::unique_ptr<Transport> Create(ProcessId id) override { return network_.Create(id); }
  std::string DeadAddress(ProcessId id) override { return FakeNetwork::AddressOf(id); }
  void Advance() override { network_.AdvanceNs(1'000'000); }

 private:
  FakeNetwork network_{{.seed = 7, .delay_ns_min = 1'000, .delay_ns_max = 5'000'000}};
};

class UcxRig final : public Rig {
 public:
  std::unique_ptr<Transport> Create(ProcessId id) override {
    auto transport = CreateUcxTransport({.self = id, .net_devices = "lo"});
    EXPECT_TRUE(transport.ok()) << transport.status().ToString();
    return transport.ok() ? *std::move(transport) : nullptr;
  }
  std::string DeadAddress(ProcessId id) override { return Create(id)->LocalAddress(); }
};

std::vector<uint8_t> Pattern(size_t bytes, uint32_t seed) {
  std::vector<uint8_t> data(bytes);
  uint32_t state = seed * 2654435761u + 1;
  for (uint8_t& byte : data) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<uint8_t>(state >> 24);
  }
  return data;
}

class TransportConformance : public ::testing::TestWithParam<const char*> {
 protected:
  TransportConformance() {
    if (std::string_view(GetParam()) == "fake") {
      rig_ = std::make_unique<FakeRig>();
    } else {
      rig_ = std::make_unique<UcxRig>();
    }
  }

  void Add(ProcessId id) { transports_[id] = rig_->Create(id); }
  Transport& at(ProcessId id) { return *transports_.at(id); }
  void ConnectAll() {
    for (auto& [a, from] : transports_) {
      for (auto& [b, to] : transports_) {
        if (a == b) continue;
        const Status status = from->Connect(b, to->LocalAddress());
        ASSERT_TRUE(status.ok()) << status.ToString();
      }
    }
  }
  // Polls every transport until `done`, collecting what arrives by receiver.
  bool PumpUntil(const std::function<bool()>& done) {
    const Deadline deadline = Deadline::AfterNs(kTestNs);
    while (!done()) {
      if (deadline.Passed()) return false;
      for (auto& [id, transport] : transports_) {
        const Status status = transport->Poll(Deadline::AtNs(0), {}, &events_[id]);
        EXPECT_TRUE(status.ok()) << status.ToString();
      }
      rig_->Advance();
    }
    return true;
  }
  size_t CountDown(ProcessId at) {
    return std::count_if(events_[at].begin(), events_[at].end(), [](const TransportEvent& e) {
      return e.kind == TransportEvent::Kind::kPeerDown;
    });
  }

  std::unique_ptr<Rig> rig_;
  std::map<ProcessId, std::unique_ptr<Transport>> transports_;
  std::map<ProcessId, std::vector<TransportEvent>> events_;
};

TEST_P(TransportConformance, MessagesOfEverySizeArriveInOrder) {
  Add(kA);
  Add(kB);
  ConnectAll();
  // Big ones between small ones: a fabric may finish a small message before an earlier big one.
  const size_t sizes[] = {1,     0,  8,       100, 4096,    8 << 20, 1,
                          65536, 17, 1 << 20, 3,   8 << 20, 2,       300'000};
  uint32_t seed = 0;
  for (const size_t size : sizes) {
    ASSERT_TRUE(at(kA).Send(kB, Pattern(size, seed)).ok());
    ASSERT_TRUE(at(kB).Send(kA, Pattern(size, seed + 100)).ok());
    ++seed;
  }
  ASSERT_TRUE(PumpUntil([&] {
    return events_[kA].size() == std::size(sizes) && events_[kB].size() == std::size(sizes);
  }));
  for (size_t i = 0; i < std::size(sizes); ++i) {
    EXPECT_EQ(events_[kB][i].peer, kA);
    EXPECT_EQ(events_[kB][i].kind, TransportEvent::Kind::kMessage);
    EXPECT_TRUE(events_[kB][i].message == Pattern(sizes[i], i)) << "message " << i;
    EXPECT_TRUE(events_[kA][i].message == Pattern(sizes[i], i + 100)) << "message " << i;
  }
}

TEST_P(TransportConformance, ManySmallMessagesFromTwoPeersKeepEachPeersOrder) {
  Add(kA);
  Add(kB);
  Add(kC);
  ConnectAll();
  constexpr uint32_t kCount = 5000;
  for (uint32_t i = 0; i < kCount; ++i) {
    const std::vector<uint8_t> bytes{static_cast<uint8_t>(i), static_cast<uint8_t>(i >> 8)};
    ASSERT_TRUE(at(kA).Send(kC, bytes).ok());
    ASSERT_TRUE(at(kB).Send(kC, bytes).ok());
  }
  ASSERT_TRUE(PumpUntil([&] { return events_[kC].size() == 2 * kCount; }));
  std::map<ProcessId, uint32_t> next;
  for (const TransportEvent& event : events_[kC]) {
    ASSERT_EQ(event.message.size(), 2u);
    const uint32_t number = event.message[0] + 256u * event.message[1];
    ASSERT_EQ(number, next[event.peer]++);
  }
}

TEST_P(TransportConformance, AFullQueueRefusesAndEmptiesAgain) {
  Add(kA);
  Add(kB);
  ConnectAll();
  const std::vector<uint8_t> big(size_t{32} << 20, 1);
  size_t accepted = 0;
  Status status;
  // What the operating system's socket buffers take comes on top of the bound.
  for (; accepted < 2 * Transport::kQueuedBytesMax / big.size(); ++accepted) {
    status = at(kA).Send(kB, big);
    if (!status.ok()) break;
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
  EXPECT_GE(accepted * big.size(), Transport::kQueuedBytesMax);
  ASSERT_TRUE(PumpUntil([&] { return events_[kB].size() == accepted; }));
  ASSERT_TRUE(PumpUntil([&] { return at(kA).Flushed(); }));
  EXPECT_TRUE(at(kA).Send(kB, big).ok());
}

TEST_P(TransportConformance, MisuseIsRefusedByName) {
  Add(kA);
  Add(kB);
  const std::vector<uint8_t> small(1);
  EXPECT_EQ(at(kA).Send(kB, small).code(), StatusCode::kUnavailable);
  ConnectAll();
  EXPECT_EQ(at(kA).Connect(kB, at(kB).LocalAddress()).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(at(kA).Connect(kC, "garbage").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(at(kA).Connect(kC, "").code(), StatusCode::kInvalidArgument);
  const std::vector<uint8_t> huge(Transport::kMessageBytesMax + 1);
  EXPECT_EQ(at(kA).Send(kB, huge).code(), StatusCode::kInvalidArgument);
  at(kA).Disconnect(kB);
  at(kA).Disconnect(kB);
  EXPECT_EQ(at(kA).Send(kB, small).code(), StatusCode::kUnavailable);
}

TEST_P(TransportConformance, WhatAPeerSendsBeforeWeConnectIsKept) {
  Add(kA);
  Add(kB);
  ASSERT_TRUE(at(kA).Connect(kB, at(kB).LocalAddress()).ok());
  ASSERT_TRUE(at(kA).Send(kB, Pattern(10, 1)).ok());
  ASSERT_TRUE(PumpUntil([&] { return at(kA).Flushed(); }));
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(PumpUntil([&] { return i % 2 == 0 || at(kA).Flushed(); }));
    ASSERT_TRUE(at(kB).Poll(Deadline::AfterMs(1), {}, &events_[kB]).ok());
  }
  EXPECT_TRUE(events_[kB].empty());
  ASSERT_TRUE(at(kB).Connect(kA, at(kA).LocalAddress()).ok());
  ASSERT_TRUE(PumpUntil([&] { return events_[kB].size() == 1; }));
  EXPECT_EQ(events_[kB][0].message, Pattern(10, 1));
}

TEST_P(TransportConformance, APeerThatEndsIsReportedOnceAfterItsLastMessage) {
  Add(kA);
  Add(kB);
  Add(kC);
  ConnectAll();
  ASSERT_TRUE(at(kA).Send(kB, Pattern(4, 1)).ok());
  ASSERT_TRUE(at(kB).Send(kA, Pattern(5, 2)).ok());
  ASSERT_TRUE(at(kC).Send(kA, Pattern(6, 3)).ok());
  ASSERT_TRUE(PumpUntil(
      [&] { return events_[kA].size() == 2 && events_[kB].size() == 1 && at(kB).Flushed(); }));
  transports_.erase(kB);
  ASSERT_TRUE(PumpUntil([&] { return CountDown(kA) > 0 && CountDown(kC) > 0; }));
  for (int i = 0; i < 20; ++i) PumpUntil([n = 0]() mutable { return n++ > 2; });
  EXPECT_EQ(CountDown(kA), 1u);
  EXPECT_EQ(CountDown(kC), 1u);
  EXPECT_EQ(events_[kA].back().peer, kB);
  EXPECT_FALSE(events_[kA].back().reason.ok());
  EXPECT_EQ(at(kA).Send(kB, Pattern(4, 1)).code(), StatusCode::kUnavailable);
  // The others are not touched.
  ASSERT_TRUE(at(kA).Send(kC, Pattern(9, 4)).ok());
  ASSERT_TRUE(PumpUntil([&] { return events_[kC].back().kind == TransportEvent::Kind::kMessage; }));
  EXPECT_EQ(events_[kC].back().message, Pattern(9, 4));
}

TEST_P(TransportConformance, APeerThatCannotBeReachedIsDown) {
  Add(kA);
  ASSERT_TRUE(at(kA).Connect(kB, rig_->DeadAddress(kB)).ok());
  at(kA).Send(kB, Pattern(4, 1)).ok();  // may be refused or lost
  ASSERT_TRUE(PumpUntil([&] { return CountDown(kA) == 1; }));
  EXPECT_EQ(events_[kA].back().peer, kB);
}

TEST_P(TransportConformance, DisconnectIsSilentHereAndSeenThere) {
  Add(kA);
  Add(kB);
  ConnectAll();
  ASSERT_TRUE(at(kA).Send(kB, Pattern(4, 1)).ok());
  ASSERT_TRUE(at(kB).Send(kA, Pattern(4, 1)).ok());
  ASSERT_TRUE(PumpUntil([&] { return events_[kA].size() == 1 && events_[kB].size() == 1; }));
  at(kA).Disconnect(kB);
  ASSERT_TRUE(PumpUntil([&] { return CountDown(kB) == 1; }));
  EXPECT_EQ(events_[kA].size(), 1u);
  // FIELD_59: a connection can be made again, and old messages do not leak into it.
  ConnectAll();
  ASSERT_TRUE(at(kA).Send(kB, Pattern(7, 2)).ok());
  ASSERT_TRUE(at(kB).Send(kA, Pattern(8, 3)).ok());
  ASSERT_TRUE(PumpUntil([&] { return events_[kA].size() == 2 && events_[kB].size() == 3; }));
  EXPECT_EQ(events_[kA].back().message, Pattern(8, 3));
  EXPECT_EQ(events_[kB].back().message, Pattern(7, 2));
}

TEST_P(TransportConformance, WakeEndsAPollFromAnotherThread) {
  Add(kA);
  const Deadline deadline = Deadline::AfterNs(kTestNs);
  std::thread waker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    at(kA).Wake();
  });
  ASSERT_TRUE(at(kA).Poll(deadline, {}, &events_[kA]).ok());
  EXPECT_FALSE(deadline.Passed());
  waker.join();
  // A wake before the poll counts too, and only once.
  at(kA).Wake();
  ASSERT_TRUE(at(kA).Poll(deadline, {}, &events_[kA]).ok());
  EXPECT_FALSE(deadline.Passed());
  const Deadline soon = Deadline::AfterMs(10);
  ASSERT_TRUE(at(kA).Poll(soon, {}, &events_[kA]).ok());
  EXPECT_TRUE(soon.Passed());
}

TEST_P(TransportConformance, OtherDescriptorsEndAPoll) {
  Add(kA);
  const UniqueFd event(::eventfd(0, EFD_NONBLOCK));
  pollfd others[] = {{event.get(), POLLIN, 0}};
  const Deadline soon = Deadline::AfterMs(5);
  ASSERT_TRUE(at(kA).Poll(soon, others, &events_[kA]).ok());
  EXPECT_TRUE(soon.Passed());
  EXPECT_EQ(others[0].revents, 0);
  const uint64_t one = 1;
  ASSERT_EQ(::write(event.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  const Deadline late = Deadline::AfterNs(kTestNs);
  ASSERT_TRUE(at(kA).Poll(late, others, &events_[kA]).ok());
  EXPECT_FALSE(late.Passed());
  EXPECT_NE(others[0].revents & POLLIN, 0);
  // Also when the deadline has passed already.
  others[0].revents = 0;
  ASSERT_TRUE(at(kA).Poll(Deadline::AtNs(0), others, &events_[kA]).ok());
  EXPECT_NE(others[0].revents & POLLIN, 0);
}

TEST_P(TransportConformance, TeardownWithUnsentDataDoesNotWait) {
  Add(kA);
  Add(kB);
  ConnectAll();
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(at(kA).Send(kB, std::vector<uint8_t>(size_t{8} << 20)).ok());
  }
  at(kA).Poll(Deadline::AtNs(0), {}, &events_[kA]).ok();
  at(kB).Poll(Deadline::AtNs(0), {}, &events_[kB]).ok();
  const Deadline limit = Deadline::AfterMs(5000);
  transports_.erase(kA);  // its peer does not progress meanwhile
  transports_.erase(kB);
  EXPECT_FALSE(limit.Passed());
}

double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST_P(TransportConformance, AnIdlePollUsesNoCpu) {
  Add(kA);
  Add(kB);
  ConnectAll();
  ASSERT_TRUE(at(kA).Send(kB, Pattern(4, 1)).ok());
  ASSERT_TRUE(at(kB).Send(kA, Pattern(4, 1)).ok());
  ASSERT_TRUE(PumpUntil([&] { return events_[kA].size() == 1 && events_[kB].size() == 1; }));
  const Deadline deadline = Deadline::AfterMs(1000);
  const double before = CpuSeconds();
  while (!deadline.Passed()) ASSERT_TRUE(at(kA).Poll(deadline, {}, &events_[kA]).ok());
  EXPECT_LT(CpuSeconds() - before, 0.05);
  EXPECT_EQ(events_[kA].size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(All, TransportConformance, ::testing::Values("fake", "ucx"),
                         [](const auto& info) { return std::string(info.param); });

// --- UCX between processes ---------------------------------------------------------------------

std::string ToHex(const std::string& bytes) {
  std::string hex;
  for (const char c : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[static_cast<uint8_t>(c) >> 4];
    hex += kDigits[static_cast<uint8_t>(c) & 15];
  }
  return hex;
}

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// The child: connects to the parent, tells its address on stdout, echoes.
int EchoPeer(const char* parent_address) {
  auto transport = CreateUcxTransport({.self = kB, .net_devices = "lo"});
  if (!transport.ok()) return 1;
  const std::string line = ToHex((*transport)->LocalAddress()) + "\n";
  if (::write(1, line.data(), line.size()) != static_cast<ssize_t>(line.size())) return 2;
  if (!(*transport)->Connect(kA, FromHex(parent_address)).ok()) return 3;
  const Deadline deadline = Deadline::AfterNs(kTestNs);
  while (!deadline.Passed()) {
    std::vector<TransportEvent> events;
    if (!(*transport)->Poll(deadline, {}, &events).ok()) return 4;
    for (const TransportEvent& event : events) {
      if (event.kind == TransportEvent::Kind::kPeerDown) return 0;
      if (!(*transport)->Send(kA, event.message).ok()) return 5;
    }
  }
  return 6;
}

// FIELD row 58: processes of a host start UCX one after another.
TEST(UcxStart, FIELD_58_WaitsForAnotherProcessThatStarts) {
  std::optional<StartLock> other;
  auto lock = StartLock::Acquire(UcxStartLockName(), Deadline::AfterNs(kTestNs));
  ASSERT_TRUE(lock.ok()) << lock.status().ToString();
  other.emplace(std::move(lock).value());
  const auto refused =
      CreateUcxTransport({.self = kA, .net_devices = "lo", .start_ns = 50'000'000});
  EXPECT_EQ(refused.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(refused.status().message().find("another process"), std::string::npos)
      << refused.status().message();
  other.reset();
  EXPECT_TRUE(CreateUcxTransport({.self = kA, .net_devices = "lo"}).ok());
}

TEST(UcxStart, FIELD_58_TheLockGoesWithItsHolder) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const UniqueFd in(ready[0]);
  UniqueFd out(ready[1]);
  const pid_t holder = ::fork();
  if (holder == 0) {
    const auto lock = StartLock::Acquire("expertflow-start-lock-test", Deadline::AfterNs(kTestNs));
    const char held = lock.ok() ? 1 : 0;
    [[maybe_unused]] const ssize_t n = ::write(out.get(), &held, 1);
    ::pause();
  }
  char held = 0;
  ASSERT_EQ(::read(in.get(), &held, 1), 1);
  EXPECT_EQ(held, 1);
  EXPECT_FALSE(StartLock::Acquire("expertflow-start-lock-test", Deadline::AfterMs(20)).ok());
  ::kill(holder, SIGKILL);
  ASSERT_EQ(::waitpid(holder, nullptr, 0), holder);
  EXPECT_TRUE(StartLock::Acquire("expertflow-start-lock-test", Deadline::AfterNs(kTestNs)).ok());
}

TEST(UcxStart, FIELD_58_StartsDoNotOverlap) {
  std::atomic<int> running{0};
  std::atomic<int> overlaps{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const auto started = StartAlone<int>(
          "expertflow-start-alone-test", Deadline::AfterNs(kTestNs), [&]() -> Result<int> {
            if (running.fetch_add(1) != 0) ++overlaps;
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            running.fetch_sub(1);
            return 7;
          });
      EXPECT_TRUE(started.ok() && *started == 7);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(overlaps, 0);
}

TEST(UcxStart, FIELD_58_AStartThatDoesNotReturnIsAnError) {
  std::promise<void> end;
  const std::shared_future<void> ended = end.get_future().share();
  const auto started = StartAlone<int>("expertflow-stuck-start-test", Deadline::AfterMs(50),
                                       [ended]() -> Result<int> {
                                         ended.wait();
                                         return 7;
                                       });
  EXPECT_EQ(started.status().code(), StatusCode::kDeadlineExceeded);
  // While it is stuck nobody else starts.
  EXPECT_FALSE(StartLock::Acquire("expertflow-stuck-start-test", Deadline::AfterMs(20)).ok());
  end.set_value();
  EXPECT_TRUE(StartLock::Acquire("expertflow-stuck-start-test", Deadline::AfterNs(kTestNs)).ok());
}

class UcxProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    auto transport = CreateUcxTransport({.self = kA, .net_devices = "lo"});
    ASSERT_TRUE(transport.ok()) << transport.status().ToString();
    transport_ = *std::move(transport);
    int fds[2];
    ASSERT_EQ(::pipe(fds), 0);
    const UniqueFd in(fds[0]);
    UniqueFd out(fds[1]);
    auto child =
        SpawnProcess({.argv = {"/proc/self/exe", "--echo-peer", ToHex(transport_->LocalAddress())},
                      .stdout_fd = out.get(),
                      .parent_death_signal = SIGKILL});
    ASSERT_TRUE(child.ok()) << child.status().ToString();
    child_.emplace(*std::move(child));
    out.Reset();
    std::string line;
    char c = 0;
    while (::read(in.get(), &c, 1) == 1 && c != '\n') line.push_back(c);
    ASSERT_FALSE(line.empty());
    ASSERT_TRUE(transport_->Connect(kB, FromHex(line)).ok());
  }
  bool PollUntil(TransportEvent::Kind kind) {
    const Deadline deadline = Deadline::AfterNs(kTestNs);
    while (!deadline.Passed()) {
      events_.clear();
      EXPECT_TRUE(transport_->Poll(deadline, {}, &events_).ok());
      if (!events_.empty()) return events_.back().kind == kind;
    }
    return false;
  }

  std::unique_ptr<Transport> transport_;
  std::optional<ChildProcess> child_;
  std::vector<TransportEvent> events_;
};

TEST_F(UcxProcesses, MessagesTravelBothWays) {
  for (const size_t size : {size_t{1}, size_t{100'000}, size_t{8} << 20}) {
    ASSERT_TRUE(transport_->Send(kB, Pattern(size, 1)).ok());
    ASSERT_TRUE(PollUntil(TransportEvent::Kind::kMessage));
    EXPECT_TRUE(events_[0].message == Pattern(size, 1));
  }
  transport_.reset();
  const auto exit_code = child_->Wait(Deadline::AfterNs(kTestNs));
  ASSERT_TRUE(exit_code.ok());
  EXPECT_EQ(*exit_code, 0) << "the child did not see its peer end";
}

TEST_F(UcxProcesses, FIELD_53_KilledPeerIsReported) {
  ASSERT_TRUE(transport_->Send(kB, Pattern(10, 1)).ok());
  ASSERT_TRUE(PollUntil(TransportEvent::Kind::kMessage));
  child_->Kill(SIGKILL);
  ASSERT_TRUE(PollUntil(TransportEvent::Kind::kPeerDown));
  EXPECT_EQ(events_[0].peer, kB);
}

TEST_F(UcxProcesses, FIELD_53_KilledPeerIsReportedWithoutAnyMessageBefore) {
  child_->Kill(SIGKILL);
  ASSERT_TRUE(PollUntil(TransportEvent::Kind::kPeerDown));
}

TEST_F(UcxProcesses, FIELD_53_PeerKilledInABigTransferIsReported) {
  ASSERT_TRUE(transport_->Send(kB, Pattern(10, 1)).ok());
  ASSERT_TRUE(PollUntil(TransportEvent::Kind::kMessage));
  child_->Kill(SIGSTOP);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(transport_->Send(kB, Pattern(8 << 20, 1)).ok());
  events_.clear();
  ASSERT_TRUE(transport_->Poll(Deadline::AfterMs(20), {}, &events_).ok());
  EXPECT_TRUE(events_.empty());
  EXPECT_FALSE(transport_->Flushed());
  child_->Kill(SIGKILL);
  ASSERT_TRUE(PollUntil(TransportEvent::Kind::kPeerDown));
  EXPECT_TRUE(transport_->Flushed());
}

TEST_F(UcxProcesses, TeardownDoesNotWaitForAStoppedPeer) {
  ASSERT_TRUE(transport_->Send(kB, Pattern(10, 1)).ok());
  ASSERT_TRUE(PollUntil(TransportEvent::Kind::kMessage));
  child_->Kill(SIGSTOP);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(transport_->Send(kB, Pattern(8 << 20, 1)).ok());
  transport_->Poll(Deadline::AfterMs(10), {}, &events_).ok();
  const Deadline limit = Deadline::AfterMs(5000);
  transport_.reset();
  EXPECT_FALSE(limit.Passed());
}

}  // namespace
}  // namespace expertflow

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--echo-peer") {
    return expertflow::EchoPeer(argv[2]);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

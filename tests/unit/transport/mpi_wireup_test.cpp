// Real ranks under a real mpirun. The program is both sides: the tests start mpirun on this very
// file with --rank SCENARIO FOLDER; a rank leaves a file in the folder for each thing that it has
// reached, as <what>.<rank>.
#include "transport/mpi_wireup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "common/process.h"
#include "transport/ucx_transport.h"

namespace expertflow {
namespace {

constexpr int kRanks = 3;
constexpr ProcessId kVictim{1};
constexpr int64_t kTestNs = 20'000'000'000;
// FIELD_43: nothing outlives the job's launcher by more than this.
constexpr int64_t kOrphanNs = 2'000'000'000;

// --- a rank ------------------------------------------------------------------------------------

class Rank {
 public:
  Rank(std::string scenario, std::string folder)
      : scenario_(std::move(scenario)), folder_(std::move(folder)) {}

  int Run() {
    if (!DieWithParent(SIGKILL, ::getppid()).ok()) return 10;
    const char* text = std::getenv("OMPI_COMM_WORLD_RANK");
    rank_ = text == nullptr ? -1 : std::atoi(text);
    Note("pid", std::to_string(::getpid()));
    const bool missing_at_start = scenario_ == "dies_before_init";
    if (missing_at_start && rank_ == kVictim.value) ::raise(SIGKILL);
    const bool deadline_case = missing_at_start || scenario_ == "dies_before_exchange";
    const int64_t limit_ns = deadline_case ? 1'500'000'000 : kTestNs;

    auto wireup = MpiWireUp::Create(Deadline::AfterNs(limit_ns));
    if (!wireup.ok()) return Report(wireup.status());
    if (scenario_ == "dies_before_exchange" && rank_ == kVictim.value) ::raise(SIGKILL);
    auto transport = CreateUcxTransport({.self = (*wireup)->self(), .net_devices = "lo"});
    if (!transport.ok()) return 11;
    ProcessInfo info;
    info.host = "rank " + std::to_string(rank_);
    info.pid = ::getpid();
    info.address = (*transport)->LocalAddress();
    auto members = (*wireup)->Exchange(info, Deadline::AfterNs(limit_ns));
    if (!members.ok()) return Report(members.status());
    if ((*wireup)->self() != ProcessId(rank_) || (*wireup)->size() != kRanks) return 12;
    for (int i = 0; i < kRanks; ++i) {
      if ((*members)[i].id != ProcessId(i)) return 13;
      if ((*members)[i].info.host != "rank " + std::to_string(i)) return 14;
    }
    Note("wired", "");
    transport_ = *std::move(transport);
    if (scenario_ == "killed_later") return SurviveAKill(*members);
    if (scenario_ == "launcher_killed") std::this_thread::sleep_for(std::chrono::seconds(30));
    return 0;
  }

 private:
  void Note(const std::string& what, const std::string& content) {
    const std::string path = folder_ + "/" + what + "." + std::to_string(rank_);
    std::ofstream(path + ".new") << content;
    std::filesystem::rename(path + ".new", path);
  }

  // MPI may hang in exit handlers after an error.
  [[noreturn]] int Report(const Status& status) {
    Note(status.code() == StatusCode::kDeadlineExceeded ? "deadline" : "error", status.ToString());
    ::_exit(0);
  }

  // Everybody greets everybody; the victim then dies; the survivors see it and talk on.
  int SurviveAKill(const std::vector<Member>& members) {
    for (const Member& member : members) {
      if (member.id.value == rank_) continue;
      if (!transport_->Connect(member.id, member.info.address).ok()) return 20;
      if (!transport_->Send(member.id, std::vector<uint8_t>{1}).ok()) return 21;
    }
    if (!Wait(kRanks - 1, 0)) return 22;
    if (rank_ == kVictim.value) {
      // Its own greetings must have left.
      const Deadline deadline = Deadline::AfterNs(kTestNs);
      while (!transport_->Flushed() && !deadline.Passed()) Wait(messages_, 0);
      ::raise(SIGKILL);
    }
    if (!Wait(kRanks - 1, 1)) return 23;
    const ProcessId other(rank_ == 0 ? 2 : 0);
    if (!transport_->Send(other, std::vector<uint8_t>{2}).ok()) return 24;
    if (!Wait(kRanks, 1)) return 25;
    const Deadline deadline = Deadline::AfterNs(kTestNs);
    while (!transport_->Flushed() && !deadline.Passed()) Wait(messages_, 1);
    Note("survived", "");
    return 0;
  }

  bool Wait(int messages, int down) {
    const Deadline deadline = Deadline::AfterNs(kTestNs);
    do {
      std::vector<TransportEvent> events;
      const bool enough = messages_ >= messages && down_ >= down;
      if (!transport_->Poll(enough ? Deadline::AfterMs(1) : deadline, {}, &events).ok()) {
        return false;
      }
      for (const TransportEvent& event : events) {
        ++(event.kind == TransportEvent::Kind::kMessage ? messages_ : down_);
      }
    } while ((messages_ < messages || down_ < down) && !deadline.Passed());
    return messages_ >= messages && down_ >= down;
  }

  const std::string scenario_;
  const std::string folder_;
  int rank_ = -1;
  std::unique_ptr<Transport> transport_;
  int messages_ = 0;
  int down_ = 0;
};

// --- the tests ---------------------------------------------------------------------------------

class MpiWireUpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/expertflow_mpi_XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    mpirun_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Start(const std::string& scenario, bool recovery = true) {
    SpawnOptions options;
    options.argv = {"mpirun", "-n", std::to_string(kRanks)};
    if (recovery) options.argv.insert(options.argv.begin() + 1, "--enable-recovery");
    const std::string program = std::filesystem::read_symlink("/proc/self/exe");
    options.argv.insert(options.argv.end(), {program, "--rank", scenario, folder_});
    options.environment = {"OMPI_ALLOW_RUN_AS_ROOT=1",
                           "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                           "OMPI_MCA_rmaps_base_oversubscribe=1",
                           "OMPI_MCA_hwloc_base_binding_policy=none",
                           "OMPI_MCA_btl=self,tcp",
                           "OMPI_MCA_btl_tcp_if_include=lo",
                           "OMPI_MCA_oob_tcp_if_include=lo",
                           "UCX_NET_DEVICES=lo"};
    options.parent_death_signal = SIGKILL;
    auto child = SpawnProcess(options);
    ASSERT_TRUE(child.ok()) << child.status().ToString();
    mpirun_.emplace(*std::move(child));
  }
  int ExitCode() {
    const auto exit_code = mpirun_->Wait(Deadline::AfterNs(2 * kTestNs));
    return exit_code.ok() ? *exit_code : -1;
  }
  bool Noted(const std::string& what, int rank) const {
    return std::filesystem::exists(folder_ + "/" + what + "." + std::to_string(rank));
  }
  bool AllNoted(const std::string& what) const {
    bool all = true;
    for (int rank = 0; rank < kRanks; ++rank) all = all && Noted(what, rank);
    return all;
  }

  std::string folder_;
  std::optional<ChildProcess> mpirun_;
};

TEST_F(MpiWireUpTest, EveryRankLearnsAllMembers) {
  Start("exchange", /*recovery=*/false);
  EXPECT_EQ(ExitCode(), 0);
  EXPECT_TRUE(AllNoted("wired"));
}

TEST_F(MpiWireUpTest, FIELD_61_SurvivorsOfAKilledRankGoOn) {
  Start("killed_later");
  EXPECT_EQ(ExitCode(), 0);
  EXPECT_TRUE(AllNoted("wired"));
  EXPECT_TRUE(Noted("survived", 0));
  EXPECT_FALSE(Noted("survived", 1));
  EXPECT_TRUE(Noted("survived", 2));
}

TEST_F(MpiWireUpTest, FIELD_53_ARankThatDiesBeforeMpiStartsHoldsNobodyForEver) {
  Start("dies_before_init");
  EXPECT_GE(ExitCode(), 0);
  EXPECT_TRUE(Noted("deadline", 0));
  EXPECT_TRUE(Noted("deadline", 2));
}

TEST_F(MpiWireUpTest, FIELD_53_ARankThatDiesBeforeTheExchangeHoldsNobodyForEver) {
  Start("dies_before_exchange");
  EXPECT_GE(ExitCode(), 0);
  EXPECT_TRUE(Noted("deadline", 0));
  EXPECT_TRUE(Noted("deadline", 2));
}

TEST_F(MpiWireUpTest, FIELD_43_KillingMpirunEndsEveryRank) {
  Start("launcher_killed");
  const Deadline started = Deadline::AfterNs(kTestNs);
  while (!AllNoted("wired") && !started.Passed()) ::usleep(1000);
  ASSERT_TRUE(AllNoted("wired"));
  std::vector<std::pair<pid_t, int64_t>> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    pid_t pid = 0;
    std::ifstream(folder_ + "/pid." + std::to_string(rank)) >> pid;
    const auto ticks = ProcessStartTicks(pid);
    ASSERT_TRUE(ticks.ok());
    ranks.emplace_back(pid, *ticks);
  }
  mpirun_->Kill(SIGKILL);
  const Deadline deadline = Deadline::AfterNs(kOrphanNs);
  for (const auto& [pid, ticks] : ranks) {
    while (ProcessAlive(pid, ticks) && !deadline.Passed()) ::usleep(1000);
    EXPECT_FALSE(ProcessAlive(pid, ticks));
  }
}

}  // namespace
}  // namespace expertflow

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == "--rank") {
    return expertflow::Rank(argv[2], argv[3]).Run();
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

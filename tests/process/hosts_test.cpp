// A job over two hosts, emulated on this machine (FIELD rows 49, 53, 61): launch/mpmd with a host
// file, and roles that join. A dead process, a cut cable and a dead host cost time, never text.
#include "tests/process/host_lab.h"

namespace expertflow::testing {
namespace {

const std::vector<std::string> kSlow = {"--expert-memory", "20%", "--link", "60MB/s"};
const std::vector<std::string> kWatchful = {"--heartbeat-interval", "200ms", "--heartbeat-timeout",
                                            "2s"};
const std::vector<std::string> kLong = {"--max-tokens", "120", "--ignore-eos"};
// The first prompt goes to the worker with the lowest id, the second to the other.
const std::vector<std::string> kTwoPrompts = {"-p", "The lighthouse keeper", "-p",
                                              "In the beginning"};

const std::string& Expected() {
  static const std::string kText = [] {
    Program program(Joined(Joined({"run", "--model", kModel}, kLong), kTwoPrompts));
    EXPECT_EQ(program.Wait(), 0) << program.err();
    return program.out();
  }();
  return kText;
}

class HostsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!lab_.Missing().empty()) GTEST_SKIP() << lab_.Missing();
  }
  std::vector<std::string> Environment() const {
    return Joined(lab_.MpiEnvironment(), {std::string("EXPERTFLOW_JOIN_SECRET=") + kSecret});
  }
  void StartMpmd() {
    std::ofstream(lab_.folder() + "/hostfile") << "hosta slots=1\nhostb slots=1\n";
    std::vector<std::string> argv =
        Joined(lab_.On("head"), {kMpmd, "--executable", EXPERTFLOW_PROGRAM, "--model", kModel,
                                 "--hostfile", lab_.folder() + "/hostfile", "--interface", "eth0",
                                 "--job", "hosts", "--job-dir", job_folder_, "--"});
    argv = Joined(argv, Joined(kSlow, kWatchful));
    mpmd_ = std::make_unique<Program>(Program::Whole(), argv, Environment());
    ASSERT_TRUE(job_.ReadyWorkers(2)) << mpmd_->err();
  }
  // Starts a role on a host; it joins the coordinator of hosta.
  std::unique_ptr<Program> Role(const std::string& host, std::vector<std::string> words) const {
    if (words[0] != "coordinator") words = Joined(words, {"--join", "hosta:7001"});
    words = Joined(words, {"--job", "hosts", "--job-dir", job_folder_, "--model", kModel});
    return std::make_unique<Program>(Program::Whole(),
                                     Joined(Joined(lab_.On(host), {EXPERTFLOW_PROGRAM}),
                                            Joined(words, Joined(kSlow, kWatchful))),
                                     Environment());
  }
  // The process of `program` with these words that runs on the host.
  void KillOn(const std::string& host, const Program& program, const std::string& words) const {
    for (const pid_t pid : program.Processes(words)) {
      if (!lab_.IsOn(host, pid)) continue;
      ::kill(pid, SIGKILL);
      return;
    }
    ADD_FAILURE() << "no " << words << " on " << host;
  }
  // Runs two prompts, one on each host, and `disturb` in the middle: the texts are the same.
  void ExpectSameText(const std::function<void()>& disturb) {
    const auto run = job_.StartRun(Joined(kLong, kTwoPrompts));
    ASSERT_TRUE(run->Generating()) << run->err();
    disturb();
    EXPECT_EQ(run->Wait(), 0) << run->err() << (mpmd_ ? mpmd_->err() : "");
    EXPECT_EQ(run->out(), Expected());
  }

  const HostLab lab_{{"hosta", "hostb"}};
  std::string job_folder_ = lab_.own_folder() + "/job";
  JobCommands job_{job_folder_, lab_.On("hosta")};
  std::unique_ptr<Program> mpmd_;
};

TEST_F(HostsTest, FIELD_53_AJobOfMpmdSurvivesTheDeathsOfTheOtherHostsProcesses) {
  StartMpmd();
  std::map<std::string, std::vector<std::string>> roles;
  const nlohmann::json status = job_.Status();
  for (const auto& process : status["processes"]) {
    roles[process["host"]].push_back(process["role"]);
  }
  EXPECT_EQ(roles["hosta"], (std::vector<std::string>{"coordinator", "store", "worker"}));
  EXPECT_EQ(roles["hostb"], (std::vector<std::string>{"store", "worker"}));
  ExpectSameText([this] { KillOn("hostb", *mpmd_, "expertflow store"); });
  ExpectSameText([this] { KillOn("hostb", *mpmd_, "expertflow worker"); });
  ExpectSameText([] {});  // on hosta alone
  ::kill(mpmd_->pid(), SIGTERM);
  EXPECT_EQ(mpmd_->Wait(20'000), 143) << mpmd_->err();
  lab_.ExpectNothingLeftOn("hosta");
  // The killed store's segment: the next start there sweeps it, or a user does.
  Program clean(Program::Whole(), Joined(lab_.On("hostb"), {EXPERTFLOW_PROGRAM, "clean"}), {});
  EXPECT_EQ(clean.Wait(), 0) << clean.err();
  lab_.ExpectNothingLeftOn("hostb");
}

// On the coordinator's host by its board, elsewhere by messages.
TEST_F(HostsTest, WhatWorkersLearnReachesThoseOfTheOtherHost) {
  StartMpmd();
  ExpectSameText([] {});
  EXPECT_TRUE(Eventually([this] {
    const nlohmann::json status = job_.Status();
    if (status["workers"].size() != 2 || status["learning"]["version"] == 0) return false;
    return std::all_of(status["workers"].begin(), status["workers"].end(), [&](const auto& worker) {
      return worker["stats"]["predictor_version"] == status["learning"]["version"];
    });
  }));
  const nlohmann::json status = job_.Status();
  EXPECT_GE(status["learning"]["batches"], 2);
  EXPECT_GT(status["stride"]["number"], 0);
  ::kill(mpmd_->pid(), SIGTERM);
  EXPECT_EQ(mpmd_->Wait(20'000), 143) << mpmd_->err();
  lab_.ExpectNothingLeftOn("hosta");
  lab_.ExpectNothingLeftOn("hostb");
}

TEST_F(HostsTest, FIELD_53_AJobOfMpmdFinishesOnTheFirstHostWhenTheCableIsCut) {
  StartMpmd();
  ExpectSameText([this] { lab_.Link("hostb", false); });
  // The other host's processes end by themselves: nobody can tell them. MPI's own may stay.
  EXPECT_TRUE(Eventually([this] {
    for (const std::string& line : lab_.ProcessesOn("hostb")) {
      if (line.starts_with(EXPERTFLOW_PROGRAM)) return false;
    }
    return true;
  }));
  ::kill(mpmd_->pid(), SIGTERM);
  EXPECT_EQ(mpmd_->Wait(30'000), 143) << mpmd_->err();
  lab_.ExpectNothingLeftOn("hosta");
}

TEST_F(HostsTest, FIELD_61_AHostThatJoinedMayDieAsAWhole) {
  const auto coordinator = Role(
      "hosta", {"coordinator", "--join-listen", "hosta:7001", "--workers", "2", "--stores", "2"});
  std::vector<std::unique_ptr<Program>> joined;
  for (const char* host : {"hosta", "hostb"}) {
    joined.push_back(Role(host, {"store"}));
    joined.push_back(Role(host, {"worker", "--threads", "1"}));
    ASSERT_TRUE(job_.ReadyWorkers(joined.size() / 2)) << joined.back()->err();
  }
  ExpectSameText([this] { lab_.Crash("hostb"); });
  ::kill(coordinator->Processes("expertflow coordinator").at(0), SIGTERM);
  EXPECT_EQ(coordinator->Wait(), 143) << coordinator->err();
  EXPECT_EQ(joined[0]->Wait(), 0) << joined[0]->err();
  EXPECT_EQ(joined[1]->Wait(), 0) << joined[1]->err();
  lab_.ExpectNothingLeftOn("hosta");
}

TEST_F(HostsTest, FIELD_61_AHostThatJoinsARunTakesOver) {
  const std::string folder = "XDG_RUNTIME_DIR=" + lab_.own_folder();
  const JobCommands job("", lab_.On("hosta"), {folder});
  const auto run = std::make_unique<Program>(
      Program::Whole(),
      Joined(Joined(lab_.On("hosta"), {EXPERTFLOW_PROGRAM, "run", "--model", kModel, "--no-restart",
                                       "--join-listen", "hosta:7001"}),
             Joined(Joined(kSlow, kWatchful), Joined(kLong, kTwoPrompts))),
      Joined(Environment(), {folder}));
  ASSERT_TRUE(run->Generating()) << run->err();
  const auto store = Role("hostb", {"store"});
  const auto worker = Role("hostb", {"worker"});
  ASSERT_TRUE(job.ReadyWorkers(2)) << store->err() << worker->err();
  KillOn("hosta", *run, "expertflow worker");
  EXPECT_EQ(run->Wait(), 0) << run->err();
  EXPECT_EQ(run->out(), Expected());
  EXPECT_EQ(store->Wait(), 0) << store->err();
  EXPECT_EQ(worker->Wait(), 0) << worker->err();
  for (const char* host : {"hosta", "hostb"}) lab_.ExpectNothingLeftOn(host);
}

}  // namespace
}  // namespace expertflow::testing

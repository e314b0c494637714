// launch/mpmd on one host, and processes that join its job by hand (FIELD rows 43, 49, 51, 53).
#include <netinet/in.h>
#include <sys/socket.h>

#include "tests/loopback_listener.h"
#include "tests/process/job_commands.h"

namespace expertflow::testing {
namespace {

// Slow enough to be disturbed half-way: the emulated link is the bottleneck.
const std::vector<std::string> kSlow = {"--expert-memory", "20%", "--link", "60MB/s"};
const std::vector<std::string> kLong = {"-p", "The lighthouse keeper", "--max-tokens", "120",
                                        "--ignore-eos"};

const std::string& Expected() {
  static const std::string kText = [] {
    Program program(Joined({"run", "--model", kModel}, kLong));
    EXPECT_EQ(program.Wait(), 0) << program.err();
    return program.out();
  }();
  return kText;
}

class MpmdTest : public ::testing::Test {
 protected:
  void StartJob(const std::string& workers, const std::vector<std::string>& role_options = {}) {
    std::vector<std::string> argv = {"env",
                                     "-C",
                                     EXPERTFLOW_SOURCE_DIR,
                                     kMpmd,
                                     "--executable",
                                     EXPERTFLOW_PROGRAM,
                                     "--model",
                                     "models/tiny-moe",  // of that folder
                                     "--workers",
                                     workers,
                                     "--job",
                                     "mpmd-test-" + std::to_string(::getpid()),
                                     "--job-dir",
                                     job_folder_};
    for (const char* word : {"--join-listen", "127.0.0.1:0"}) {
      argv.insert(argv.end(), {"--coordinator", word});
    }
    argv = Joined(argv, Joined({"--"}, role_options));
    // TMPDIR: MPI's session files are looked for, too.
    mpmd_ = std::make_unique<Program>(
        Program::Whole(), argv,
        std::vector<std::string>{"TMPDIR=" + folder_.path(), "UCX_NET_DEVICES=lo",
                                 std::string("EXPERTFLOW_JOIN_SECRET=") + kSecret});
    ASSERT_TRUE(job_.ReadyWorkers(std::stoul(workers))) << mpmd_->err();
  }
  void EndJob() {
    ::kill(mpmd_->pid(), SIGTERM);
    EXPECT_EQ(mpmd_->Wait(20'000), 143) << mpmd_->err();
    ExpectNothingLeft();
  }
  void ExpectNothingLeft() {
    mpmd_->ExpectNothingLeft();
    EXPECT_TRUE(Eventually([this] { return folder_.Entries().empty(); }, 5'000))
        << folder_.Entries().front();
  }
  std::string JoinAddress() const { return job_.Status()["join_address"]; }
  // A role that joins the job, with the options that the job has.
  std::unique_ptr<Program> Join(const std::string& role, const std::vector<std::string>& options,
                                const std::string& address,
                                const std::vector<std::string>& environment = {}) const {
    return job_.Start(Joined({role, "--job", "mpmd-test-" + std::to_string(::getpid()), "--join",
                              address, "--log-level", "warning"},
                             options),
                      environment);
  }
  void ExpectRefused(Program& program, const std::vector<std::string>& words) const {
    EXPECT_EQ(program.Wait(), 2) << program.err();
    const std::string err = program.err();
    for (const std::string& word : words) {
      EXPECT_NE(err.find(word), std::string::npos) << word << "\n" << err;
    }
    EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
  }

  TestFolder folder_;
  std::string job_folder_ = folder_.path() + "/job";
  JobCommands job_{job_folder_};
  std::unique_ptr<Program> mpmd_;
};

class MpmdSignalTest : public MpmdTest, public ::testing::WithParamInterface<int> {};

TEST_P(MpmdSignalTest, FIELD_43_NothingStaysAndTheExitCodeTellsTheSignal) {
  StartJob("2", kSlow);
  const auto run = job_.StartRun(kLong);
  ASSERT_TRUE(run->Generating()) << run->err();
  ::kill(mpmd_->pid(), GetParam());
  EXPECT_EQ(mpmd_->Wait(20'000), 128 + GetParam()) << mpmd_->err();
  EXPECT_EQ(run->Wait(), 1) << run->err();  // its job is gone
  EXPECT_EQ(run->out().substr(0, 20), Expected().substr(0, 20));
  ExpectNothingLeft();
}

INSTANTIATE_TEST_SUITE_P(Signals, MpmdSignalTest, ::testing::Values(SIGINT, SIGTERM));

class MpmdKillTest : public MpmdTest,
                     public ::testing::WithParamInterface<std::pair<const char*, int>> {};

TEST_P(MpmdKillTest, FIELD_43_NothingStays) {
  StartJob("2");
  mpmd_->Kill(GetParam().first, GetParam().second);
  EXPECT_NE(mpmd_->Wait(20'000), 0);
  mpmd_->ExpectNothingLeft();
  EXPECT_FALSE(std::filesystem::exists(job_folder_));
}

INSTANTIATE_TEST_SUITE_P(Killed, MpmdKillTest,
                         ::testing::Values(std::pair{"mpirun", SIGTERM},
                                           std::pair{"mpirun", SIGKILL},
                                           std::pair{"bash", SIGKILL}));

TEST_F(MpmdTest, FIELD_10_PromptsGoToTheRunningJobAndGiveTheSameText) {
  StartJob("2");
  EXPECT_EQ(job_.Run(kLong), Expected());
  const auto refused = job_.StartRun({"-p", "x", "--workers", "3"});
  ExpectRefused(*refused, {"--workers", "--job"});
  EndJob();
  const auto late = job_.StartRun({"-p", "x"});
  ExpectRefused(*late, {"no job is running", job_folder_});
}

TEST_F(MpmdTest, FIELD_53_AWorkerThatIsStartedByHandGetsWorkAndMayLeave) {
  StartJob("1", kSlow);
  const auto worker = Join("worker", kSlow, JoinAddress());
  ASSERT_TRUE(job_.ReadyWorkers(2)) << worker->err();
  const auto run = job_.StartRun(Joined(kLong, {"-p", "The lighthouse keeper"}));
  ASSERT_TRUE(run->Generating()) << run->err();
  EXPECT_TRUE(Eventually([&] {
    const nlohmann::json status = job_.Status();
    if (!status.is_object()) return false;
    size_t working = 0;
    for (const auto& one : status["workers"]) {
      working += one["stats"]["decode_tokens"] > 0 ? 1 : 0;
    }
    return working == 2;
  }));
  ::kill(worker->pid(), SIGTERM);
  EXPECT_EQ(worker->Wait(), 143) << worker->err();
  EXPECT_EQ(run->Wait(), 0) << run->err();
  // Both texts, one of them begun by the worker that left.
  const std::string out = run->out();
  const size_t first = out.find(Expected());
  ASSERT_NE(first, std::string::npos) << out;
  EXPECT_NE(out.find(Expected(), first + 1), std::string::npos) << out;
  EXPECT_EQ(job_.Status()["restarts"], 0);
  EndJob();
}

// A socket of another version of the program, as far as a joiner can tell.
class NewerCoordinator {
 public:
  std::string address() const { return "127.0.0.1:" + std::to_string(socket_.port()); }
  void Answer() const {
    const UniqueFd joiner = socket_.Accept();
    const uint8_t challenge[] = {'E', 'F', 'F', 'J', 99, 0, 1, 0, 0, 0, 0, 0};
    EXPECT_EQ(::send(joiner.get(), challenge, sizeof(challenge), 0),
              static_cast<ssize_t>(sizeof(challenge)));
    char rest = 0;
    while (::recv(joiner.get(), &rest, 1, 0) > 0) continue;
  }

 private:
  const LoopbackListener socket_{1};
};

// What a joiner of another version is told.
std::string AnswerToAnotherVersion(const std::string& address) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  const uint8_t request[] = {'E', 'F', 'F', 'J', 99, 0, 2, 0, 0, 0, 0, 0};
  EXPECT_EQ(::send(socket.get(), request, sizeof(request), 0),
            static_cast<ssize_t>(sizeof(request)));
  std::string answer;
  char c = 0;
  while (::recv(socket.get(), &c, 1, 0) > 0) answer.push_back(c);
  return answer;
}

TEST_F(MpmdTest, FIELD_53_StrangersAreRefusedInOneLineAndTheJobGoesOn) {
  StartJob("1");
  const std::string address = JoinAddress();
  const auto wrong_secret =
      Join("worker", {}, address, {"EXPERTFLOW_JOIN_SECRET=guess", "UCX_NET_DEVICES=lo"});
  ExpectRefused(*wrong_secret, {"wrong job secret", address});
  const auto no_secret = Join("worker", {}, address, {"EXPERTFLOW_JOIN_SECRET="});
  ExpectRefused(*no_secret, {"EXPERTFLOW_JOIN_SECRET"});

  const std::string packed = folder_.path() + "/other";
  Program pack({"pack", EXPERTFLOW_SOURCE_DIR "/tests/golden/checkpoints/qwen2_moe", "-o", packed});
  ASSERT_EQ(pack.Wait(), 0) << pack.err();
  const auto wrong_model = Join("store", {"--model", packed}, address);
  ExpectRefused(*wrong_model, {"another model", "--model"});
  std::filesystem::remove_all(packed);

  EXPECT_NE(AnswerToAnotherVersion(address).find("protocol 99"), std::string::npos);
  const NewerCoordinator newer;
  const auto older = Join("worker", {}, newer.address());
  newer.Answer();
  ExpectRefused(*older, {"protocol 99", "one version"});

  EXPECT_EQ(job_.Run(kLong), Expected());
  EndJob();
}

}  // namespace
}  // namespace expertflow::testing

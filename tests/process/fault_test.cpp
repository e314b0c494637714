// kill -9 of each process in the middle of a run (FIELD rows 43, 49 to 54, 61): the rest goes on or
// ends as designed, nothing stays, the next start works.
#include "tests/process/program.h"

namespace expertflow::testing {
namespace {

// Slow enough to be killed half-way: the emulated link is the bottleneck.
std::vector<std::string> LongRun(const std::string& workers, const std::string& tokens = "250") {
  return {"run",
          "--model",
          kModel,
          "--workers",
          workers,
          "--expert-memory",
          "20%",
          "--link",
          "60MB/s",
          "--prompt",
          "The lighthouse keeper",
          "--max-tokens",
          tokens,
          "--ignore-eos"};
}

// What an undisturbed run prints.
const std::string& Expected() {
  static const std::string kText = [] {
    Program program({"run", "--model", kModel, "--prompt", "The lighthouse keeper", "--max-tokens",
                     "250", "--ignore-eos"});
    EXPECT_EQ(program.Wait(), 0) << program.err();
    return program.out();
  }();
  return kText;
}

void ExpectNextStartWorks() {
  Program program({"run", "--model", kModel, "--workers", "2", "-p", "#if", "--max-tokens", "4"});
  EXPECT_EQ(program.Wait(), 0) << program.err();
  program.ExpectNothingLeft();
}

TEST(FaultTest, FIELD_53_AKilledWorkersSequencesFinishElsewhereWithTheSameText) {
  Program program(LongRun("2"));
  ASSERT_TRUE(program.Generating()) << program.err();
  program.Kill("expertflow worker");  // the first has the sequence: ties go to the lowest id
  EXPECT_EQ(program.Wait(), 0) << program.err();
  EXPECT_EQ(program.out(), Expected());
  program.ExpectNothingLeft();
}

TEST(FaultTest, FIELD_61_TheOnlyWorkerIsReplaced) {
  Program program(LongRun("1"));
  ASSERT_TRUE(program.Generating()) << program.err();
  program.Kill("expertflow worker");
  EXPECT_EQ(program.Wait(), 0) << program.err();
  EXPECT_EQ(program.out(), Expected());
  program.ExpectNothingLeft();
}

TEST(FaultTest, FIELD_61_WithoutReplacementTheRunFailsAndNamesTheWorker) {
  auto arguments = LongRun("1");
  arguments.push_back("--no-restart");
  Program program(arguments);
  ASSERT_TRUE(program.Generating()) << program.err();
  program.Kill("expertflow worker");
  EXPECT_EQ(program.Wait(), 1) << program.err();
  EXPECT_NE(program.err().find("worker"), std::string::npos) << program.err();
  program.ExpectNothingLeft();
}

TEST(FaultTest, FIELD_50_WorkersGoOnWithoutTheStoreAndItIsRestarted) {
  Program program(LongRun("2"));
  ASSERT_TRUE(program.Generating()) << program.err();
  const auto before = program.Processes("expertflow store");
  ASSERT_EQ(before.size(), 1U);
  program.Kill("expertflow store");
  EXPECT_TRUE(Eventually([&] {
    const auto now = program.Processes("expertflow store");
    return now.size() == 1 && now != before;
  })) << program.err();
  EXPECT_EQ(program.Wait(), 0) << program.err();
  EXPECT_EQ(program.out(), Expected());
  program.ExpectNothingLeft();
}

class EndsTest : public ::testing::TestWithParam<const char*> {};

TEST_P(EndsTest, FIELD_43_EverythingEndsAndNothingStays) {
  Program program(LongRun("2", "1500"));
  ASSERT_TRUE(program.Generating()) << program.err();
  program.Kill(GetParam());
  // The promise is two seconds; the bound allows for a loaded machine.
  EXPECT_TRUE(Eventually(
      [&] {
        return program.Processes() == std::vector<pid_t>() ||
               program.Processes() == std::vector<pid_t>{program.pid()};
      },
      10'000));
  EXPECT_NE(program.Wait(20'000), 0);
  EXPECT_GT(program.err().size(), 0U);
  program.ExpectNothingLeft();
  ExpectNextStartWorks();
}

INSTANTIATE_TEST_SUITE_P(Killed, EndsTest, ::testing::Values("expertflow coordinator", "mpirun"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name.substr(name.find(' ') + 1);
                         });

TEST(FaultTest, FIELD_49_KillOfTheRunItselfEndsTheJobAndTheNextStartSweeps) {
  Program program(LongRun("2", "1500"));
  ASSERT_TRUE(program.Generating()) << program.err();
  ::kill(program.pid(), SIGKILL);
  EXPECT_TRUE(Eventually([&] { return program.Processes().empty(); }, 10'000));
  ExpectNextStartWorks();
  EXPECT_EQ(Segments(), std::vector<std::string>());
}

TEST(FaultTest, FIELD_49_KillOfEverythingAtOnceIsSweptByTheNextStart) {
  Program program(LongRun("2", "1500"));
  ASSERT_TRUE(program.Generating()) << program.err();
  // Stopped first, so that nobody can clean up after another's death. Children before their
  // parents: the kernel wakes the stopped members of a process group that a death orphans.
  auto pids = program.Processes();
  std::sort(pids.rbegin(), pids.rend());
  for (const pid_t pid : pids) ::kill(pid, SIGSTOP);
  for (const pid_t pid : pids) ::kill(pid, SIGKILL);
  EXPECT_TRUE(Eventually([&] { return program.Processes().empty(); }, 10'000));
  EXPECT_NE(Segments(), std::vector<std::string>());  // nobody was left to remove it
  ExpectNextStartWorks();
  EXPECT_EQ(Segments(), std::vector<std::string>());
}

class SignalTest : public ::testing::TestWithParam<int> {};

TEST_P(SignalTest, EndsCleanlyAndKeepsWhatWasGenerated) {
  Program program(LongRun("2", "1500"));
  ASSERT_TRUE(program.Generating()) << program.err();
  ::kill(program.pid(), GetParam());
  EXPECT_EQ(program.Wait(20'000), 128 + GetParam()) << program.err();
  const std::string out = program.out();
  const std::string expected = Expected();
  const size_t common = std::min({out.size(), expected.size(), size_t{20}});
  EXPECT_GE(common, 20U);
  EXPECT_EQ(out.substr(0, common), expected.substr(0, common));
  program.ExpectNothingLeft();
}

INSTANTIATE_TEST_SUITE_P(Signals, SignalTest, ::testing::Values(SIGINT, SIGTERM));

}  // namespace
}  // namespace expertflow::testing

#include "common/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

namespace expertflow {
namespace {

constexpr int64_t kTestNs = 20'000'000'000;

Deadline Soon() {
  return Deadline::AfterNs(kTestNs);
}

// Standard output of `options.argv`, which must exit with 0.
std::string OutputOf(SpawnOptions options) {
  int fds[2];
  EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  const UniqueFd in(fds[0]);
  UniqueFd out(fds[1]);
  options.stdout_fd = out.get();
  auto child = SpawnProcess(options);
  EXPECT_TRUE(child.ok()) << child.status().ToString();
  if (!child.ok()) return "";
  out.Reset();
  std::string text;
  char buffer[256];
  for (ssize_t n = 0; (n = ::read(in.get(), buffer, sizeof(buffer))) > 0;) text.append(buffer, n);
  const auto exit_code = child->Wait(Soon());
  EXPECT_TRUE(exit_code.ok() && *exit_code == 0);
  return text;
}

Result<ChildProcess> Shell(const std::string& script) {
  return SpawnProcess({.argv = {"sh", "-c", script}, .parent_death_signal = SIGKILL});
}

TEST(Process, KnowsItself) {
  EXPECT_EQ(ReadBootId().size(), 36u);
  EXPECT_FALSE(HostName().empty());
  const auto ticks = ProcessStartTicks(::getpid());
  ASSERT_TRUE(ticks.ok());
  EXPECT_GT(*ticks, 0);
  EXPECT_TRUE(ProcessAlive(::getpid(), *ticks));
  EXPECT_FALSE(ProcessAlive(::getpid(), *ticks + 1)) << "a reused pid must not look alive";
  EXPECT_EQ(OpenPidFd(::getpid(), *ticks + 1).status().code(), StatusCode::kNotFound);
}

TEST(Process, NameMayHoldAnyCharacter) {
  char before[16] = {};
  ASSERT_EQ(::prctl(PR_GET_NAME, before), 0);
  const auto ticks = ProcessStartTicks(::getpid());
  SetProcessName("a) R 1 (2 a very long name");
  const auto renamed = ProcessStartTicks(::getpid());
  SetProcessName(before);
  ASSERT_TRUE(ticks.ok() && renamed.ok());
  EXPECT_EQ(*ticks, *renamed);
}

TEST(Process, PidFdBecomesReadableWhenTheProcessDies) {
  auto child = Shell("exec sleep 60");
  ASSERT_TRUE(child.ok()) << child.status().ToString();
  const auto ticks = ProcessStartTicks(child->pid());
  ASSERT_TRUE(ticks.ok());
  auto fd = OpenPidFd(child->pid(), *ticks);
  ASSERT_TRUE(fd.ok()) << fd.status().ToString();
  pollfd waiting{fd->get(), POLLIN, 0};
  EXPECT_EQ(::poll(&waiting, 1, 0), 0);
  child->Kill(SIGKILL);
  EXPECT_EQ(::poll(&waiting, 1, 10'000), 1);
  EXPECT_FALSE(ProcessAlive(child->pid(), *ticks)) << "a zombie is dead";
  const auto exit_code = child->Wait(Soon());
  ASSERT_TRUE(exit_code.ok());
  EXPECT_EQ(*exit_code, 128 + SIGKILL);
  EXPECT_EQ(OpenPidFd(child->pid(), *ticks).status().code(), StatusCode::kNotFound);
}

TEST(Process, SpawnReportsExitCodesAndDeadlines) {
  auto child = Shell("exit 7");
  ASSERT_TRUE(child.ok());
  for (int i = 0; i < 2; ++i) {
    const auto exit_code = child->Wait(Soon());
    ASSERT_TRUE(exit_code.ok());
    EXPECT_EQ(*exit_code, 7);
  }
  auto slow = Shell("exec sleep 60");
  ASSERT_TRUE(slow.ok());
  EXPECT_EQ(slow->Wait(Deadline::AfterMs(5)).status().code(), StatusCode::kDeadlineExceeded);
}

TEST(Process, SpawnNamesAProgramThatCannotStart) {
  const auto missing = SpawnProcess({.argv = {"no-such-program-here"}});
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_NE(missing.status().message().find("no-such-program-here"), std::string::npos);
  EXPECT_FALSE(SpawnProcess({.argv = {"/etc/passwd"}}).ok());
}

TEST(Process, SpawnSetsEnvironmentAndDescriptors) {
  ASSERT_EQ(::setenv("EXPERTFLOW_TEST_KEPT", "kept", 1), 0);
  ASSERT_EQ(::setenv("EXPERTFLOW_TEST_CHANGED", "old", 1), 0);
  EXPECT_EQ(
      OutputOf({.argv = {"sh", "-c", "echo $EXPERTFLOW_TEST_KEPT $EXPERTFLOW_TEST_CHANGED; wc -c"},
                .environment = {"EXPERTFLOW_TEST_CHANGED=new"}}),
      "kept new\n0\n");
  // A descriptor that is itself among 0, 1, 2.
  EXPECT_EQ(OutputOf({.argv = {"sh", "-c", "echo out"}, .stderr_fd = 1}), "out\n");
}

TEST(Process, AChildDoesNotInheritBlockedSignals) {
  sigset_t set;
  sigset_t before;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &set, &before), 0);
  auto child = SpawnProcess({.argv = {"sleep", "60"}});
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
  ASSERT_TRUE(child.ok());
  child->Kill(SIGTERM);
  const auto exit_code = child->Wait(Soon());
  ASSERT_TRUE(exit_code.ok());
  EXPECT_EQ(*exit_code, 128 + SIGTERM);
}

// The pid that a shell script prints on its first line.
class Grandchild : public ::testing::Test {
 protected:
  void Start(SpawnOptions options) {
    int fds[2];
    ASSERT_EQ(::pipe2(fds, O_CLOEXEC), 0);
    const UniqueFd in(fds[0]);
    UniqueFd out(fds[1]);
    options.stdout_fd = out.get();
    auto child = SpawnProcess(options);
    ASSERT_TRUE(child.ok()) << child.status().ToString();
    child_.emplace(*std::move(child));
    out.Reset();
    std::string line;
    char c = 0;
    while (::read(in.get(), &c, 1) == 1 && c != '\n') line.push_back(c);
    ASSERT_FALSE(line.empty());
    pid_ = std::stoi(line);
    const auto ticks = ProcessStartTicks(pid_);
    ASSERT_TRUE(ticks.ok());
    ticks_ = *ticks;
  }
  bool Ended() const {
    const Deadline deadline = Soon();
    while (ProcessAlive(pid_, ticks_) && !deadline.Passed()) ::usleep(1000);
    return !ProcessAlive(pid_, ticks_);
  }

  std::optional<ChildProcess> child_;
  pid_t pid_ = 0;
  int64_t ticks_ = 0;
};

TEST_F(Grandchild, FIELD_43_KillReachesTheWholeGroup) {
  Start({.argv = {"sh", "-c", "sleep 60 & echo $!; wait"}, .new_process_group = true});
  child_->Kill(SIGKILL);
  EXPECT_TRUE(Ended());
}

TEST_F(Grandchild, FIELD_43_AHandleThatGoesTakesItsChildrenAlong) {
  Start({.argv = {"sh", "-c", "sleep 60 & echo $!; wait"}, .new_process_group = true});
  child_.reset();
  EXPECT_TRUE(Ended());
}

TEST(Process, FIELD_43_AChildDiesWithItsParent) {
  // The middle process starts a child of its own with a death signal, tells its pid, and dies.
  int fds[2];
  ASSERT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  const UniqueFd in(fds[0]);
  UniqueFd out(fds[1]);
  const pid_t middle = ::fork();
  ASSERT_GE(middle, 0);
  if (middle == 0) {
    auto child = SpawnProcess({.argv = {"sleep", "60"}, .parent_death_signal = SIGKILL});
    const pid_t pid = child.ok() ? child->pid() : -1;
    [[maybe_unused]] const ssize_t n = ::write(out.get(), &pid, sizeof(pid));
    ::raise(SIGKILL);
  }
  out.Reset();
  pid_t pid = -1;
  ASSERT_EQ(::read(in.get(), &pid, sizeof(pid)), static_cast<ssize_t>(sizeof(pid)));
  ASSERT_GT(pid, 0);
  ASSERT_EQ(::waitpid(middle, nullptr, 0), middle);
  const Deadline deadline = Soon();
  while (::kill(pid, 0) == 0 && !deadline.Passed()) {
    const auto ticks = ProcessStartTicks(pid);
    if (!ticks.ok() || !ProcessAlive(pid, *ticks)) break;
    ::usleep(1000);
  }
  EXPECT_FALSE(deadline.Passed());
}

TEST(Process, DieWithParentSeesAParentThatIsGoneAlready) {
  EXPECT_TRUE(DieWithParent(SIGTERM, ::getppid()).ok());
  EXPECT_EQ(DieWithParent(SIGTERM, ::getppid() + 1).code(), StatusCode::kUnavailable);
  ASSERT_EQ(::prctl(PR_SET_PDEATHSIG, 0), 0);
}

TEST(Process, SignalsBecomeReadable) {
  auto watcher = SignalWatcher::Create();
  ASSERT_TRUE(watcher.ok());
  EXPECT_EQ(watcher->Take(), std::nullopt);
  ASSERT_EQ(::kill(::getpid(), SIGTERM), 0);
  pollfd waiting{watcher->fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&waiting, 1, 10'000), 1);
  EXPECT_EQ(watcher->Take(), SIGTERM);
  EXPECT_EQ(watcher->Take(), std::nullopt);
}

// --- cgroups, from made-up trees ---------------------------------------------------------------

class HostLimits : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/expertflow_host_XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    root_ = name;
    Write("/proc/meminfo", "MemTotal: 2000 kB\nMemAvailable:    1000 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& content) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << content;
  }
  uint64_t Available() {
    const auto bytes = AvailableMemoryBytes(root_);
    EXPECT_TRUE(bytes.ok());
    return bytes.ok() ? *bytes : 0;
  }

  std::string root_;
};

TEST_F(HostLimits, WithoutCgroupsTheKernelsFigureCounts) {
  EXPECT_EQ(Available(), 1'024'000u);
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(Available(), 1'024'000u);
}

TEST_F(HostLimits, TheTightestCgroupAboveUsCounts) {
  Write("/proc/self/cgroup", "0::/job/step\n");
  Write("/sys/fs/cgroup/job/step/memory.max", "900000\n");
  Write("/sys/fs/cgroup/job/step/memory.current", "0\n");
  Write("/sys/fs/cgroup/job/memory.max", "500000\n");
  Write("/sys/fs/cgroup/job/memory.current", "300000\n");
  Write("/sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 100000\n");
  EXPECT_EQ(Available(), 300'000u);
  Write("/sys/fs/cgroup/job/memory.current", "700000\n");
  EXPECT_EQ(Available(), 0u);
}

TEST_F(HostLimits, CgroupVersion1Counts) {
  Write("/proc/self/cgroup", "4:memory:/job\n2:cpuacct,cpu:/job\n");
  Write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "400000\n");
  Write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "150000\n");
  EXPECT_EQ(Available(), 250'000u);
  Write("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  const int unlimited = CoreCount(root_);
  EXPECT_GE(unlimited, 1);
  Write("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\n");
  EXPECT_EQ(CoreCount(root_), 1);
}

TEST_F(HostLimits, CoresFollowTheAffinityMaskAndTheQuota) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(CoreCount(root_), CPU_COUNT(&before));
  Write("/proc/self/cgroup", "0::/job\n");
  Write("/sys/fs/cgroup/job/cpu.max", "110000 100000\n");
  EXPECT_EQ(CoreCount(root_), std::min(2, CPU_COUNT(&before)));
  Write("/sys/fs/cgroup/job/cpu.max", "max 100000\n");
  EXPECT_EQ(CoreCount(root_), CPU_COUNT(&before));
}

TEST(Process, MeasuresItsOwnMemory) {
  const auto before = ProportionalSetSizeBytes();
  ASSERT_TRUE(before.ok()) << before.status().ToString();
  std::vector<char> block(size_t{64} << 20, 1);
  const auto after = ProportionalSetSizeBytes();
  ASSERT_TRUE(after.ok());
  EXPECT_GE(*after, *before + (size_t{60} << 20)) << block[123];
  EXPECT_GT(*AvailableMemoryBytes(), 0u);
}

}  // namespace
}  // namespace expertflow

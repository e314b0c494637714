#include "expert_store/segment.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <thread>

#include "common/process.h"
#include "common/unique_fd.h"
#include "expert_store/host_limits.h"
#include "store_fixture.h"

namespace expertflow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::InSmallTmpfs;

std::string NewJobId() {
  static int count = 0;
  return "test-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
}

std::string PathOf(const std::string& name) {
  return "/dev/shm/" + name;
}

bool Exists(const std::string& job_id) {
  return ::access(PathOf(SegmentName(job_id)).c_str(), F_OK) == 0;
}

std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// What ListSegments says about one segment.
SegmentInfo Listed(const std::string& job_id) {
  for (const SegmentInfo& info : ListSegments()) {
    if (info.name == SegmentName(job_id)) return info;
  }
  return {};
}

void ChangeOwner(const std::string& job_id, const std::function<void(StoreOwner*)>& change) {
  std::fstream file(PathOf(SegmentName(job_id)), std::ios::in | std::ios::out | std::ios::binary);
  StoreHeader header;
  file.read(reinterpret_cast<char*>(&header), sizeof(header));
  change(&header.owner);
  file.seekp(0);
  file.write(reinterpret_cast<const char*>(&header), sizeof(header));
}

class SegmentTest : public testing::StoreFixture {
 protected:
  // One at a time: a segment that another test's sweep looks at is left to that sweep.
  SegmentTest() : shared_memory_(::open("/dev/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    EXPECT_EQ(::flock(shared_memory_.get(), LOCK_EX), 0);
  }
  ~SegmentTest() override {
    for (const std::string& job_id : job_ids_) ::unlink(PathOf(SegmentName(job_id)).c_str());
  }
  // Sweeping in a test that runs beside this one spares the segments of our "job".
  SegmentOptions Options() {
    job_ids_.push_back(NewJobId());
    return {.job_id = job_ids_.back(), .job_pid = ::getpid()};
  }

  StoreSegment MustCreate(const SegmentOptions& options) {
    auto segment = StoreSegment::Create(options, layout_->total_bytes());
    EXPECT_TRUE(segment.ok()) << segment.status().ToString();
    return std::move(segment).value();
  }
  StoreSegment MustPublish(const SegmentOptions& options) {
    StoreSegment segment = MustCreate(options);
    const Status filled = segment.Fill(*layout_, {});
    EXPECT_TRUE(filled.ok()) << filled.ToString();
    const Status published = segment.Publish();
    EXPECT_TRUE(published.ok()) << published.ToString();
    return segment;
  }
  // Another process creates the segment and is killed when it holds it. Returns its pid.
  pid_t CreateInProcessThatDies(const SegmentOptions& options, bool publish) {
    int pipe_fds[2];
    EXPECT_EQ(::pipe(pipe_fds), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      StoreSegment segment = publish ? MustPublish(options) : MustCreate(options);
      const char ready = 1;
      if (::write(pipe_fds[1], &ready, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    char ready = 0;
    EXPECT_EQ(::read(pipe_fds[0], &ready, 1), 1);
    EXPECT_TRUE(Listed(options.job_id).owner_alive);
    EXPECT_EQ(Listed(options.job_id).owner_pid, child);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ::close(pipe_fds[0]);
    ::close(pipe_fds[1]);
    EXPECT_TRUE(Exists(options.job_id));
    return child;
  }

  UniqueFd shared_memory_;
  std::vector<std::string> job_ids_;
};

TEST_F(SegmentTest, ReadersGetInOnlyWhenItIsPublished) {
  const SegmentOptions options = Options();
  StoreSegment segment = MustCreate(options);
  StoreDescriptor descriptor{.name = segment.name()};
  EXPECT_EQ(StoreView::Attach(descriptor).status().code(), StatusCode::kUnavailable);
  EXPECT_FALSE(segment.Publish().ok());  // nothing in it yet
  ASSERT_TRUE(segment.Fill(*layout_, {}).ok());
  EXPECT_EQ(StoreView::Attach(descriptor).status().code(), StatusCode::kUnavailable);
  ASSERT_TRUE(segment.Publish().ok());

  descriptor = segment.descriptor();
  const auto view = StoreView::Attach(descriptor);
  ASSERT_TRUE(view.ok()) << view.status().ToString();
  EXPECT_TRUE(view->VerifyAll().ok());
  EXPECT_TRUE(view->Matches(plan_).ok());
  descriptor.fingerprint.low ^= 1;
  EXPECT_EQ(StoreView::Attach(descriptor).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(SegmentTest, AReaderKeepsItsMappingAndTheNameGoesWithTheOwner) {
  const SegmentOptions options = Options();
  std::optional<StoreSegment> segment(MustPublish(options));
  const StoreDescriptor descriptor = segment->descriptor();
  const auto view = StoreView::Attach(descriptor);
  ASSERT_TRUE(view.ok());
  segment.reset();
  EXPECT_FALSE(Exists(options.job_id));
  EXPECT_TRUE(view->VerifyAll().ok());
  EXPECT_EQ(StoreView::Attach(descriptor).status().code(), StatusCode::kNotFound);
}

TEST_F(SegmentTest, AnotherProcessReadsIt) {
  const StoreSegment segment = MustPublish(Options());
  const StoreDescriptor descriptor = segment.descriptor();
  const pid_t child = ::fork();
  if (child == 0) {
    const auto view = StoreView::Attach(descriptor);
    ::_exit(view.ok() && view->VerifyAll().ok() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(::access(PathOf(segment.name()).c_str(), F_OK), 0);
}

TEST_F(SegmentTest, OnlyItsUserMayOpenIt) {
  const StoreSegment segment = MustPublish(Options());
  struct stat info;
  ASSERT_EQ(::stat(PathOf(segment.name()).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(SegmentTest, APackedFileHasTheSegmentsBytes) {
  const StoreSegment segment = MustPublish(Options());
  const testing::TemporaryFolder folder;
  ASSERT_TRUE(PackStore(*layout_, folder.File("packed"), {}).ok());
  std::string a = ReadBytes(PathOf(segment.name()));
  std::string b = ReadBytes(folder.File("packed"));
  ASSERT_EQ(a.size(), layout_->total_bytes());
  for (std::string* bytes : {&a, &b}) {
    std::memset(bytes->data() + offsetof(StoreHeader, owner), 0, sizeof(StoreOwner));
  }
  EXPECT_TRUE(a == b);
}

TEST_F(SegmentTest, TwoOwnersAreImpossible) {
  const SegmentOptions options = Options();
  const StoreSegment segment = MustPublish(options);
  const auto second = StoreSegment::Create(options, layout_->total_bytes());
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr(std::to_string(::getpid())));
  EXPECT_EQ(StoreSegment::Adopt(options, std::nullopt).status().code(),
            StatusCode::kFailedPrecondition);
  SweepStale();
  EXPECT_TRUE(Exists(options.job_id));
}

TEST_F(SegmentTest, FIELD_50_AnOrphanIsAdoptedAndItsReadersGoOn) {
  const SegmentOptions options = Options();
  CreateInProcessThatDies(options, /*publish=*/true);
  const SegmentInfo orphan = Listed(options.job_id);
  EXPECT_TRUE(orphan.ready);
  EXPECT_FALSE(orphan.owner_alive);
  EXPECT_TRUE(orphan.job_alive);
  SweepStale();
  ASSERT_TRUE(Exists(options.job_id)) << "the job lives and may adopt it";

  EXPECT_THAT(StoreSegment::Adopt(options, Fingerprint{1, 2}).status().message(),
              HasSubstr("another model"));
  auto adopted = StoreSegment::Adopt(options, std::nullopt);
  ASSERT_TRUE(adopted.ok()) << adopted.status().ToString();
  const auto view = StoreView::Attach(adopted->descriptor());
  ASSERT_TRUE(view.ok()) << view.status().ToString();
  EXPECT_TRUE(view->VerifyAll().ok());
  EXPECT_EQ(Listed(options.job_id).owner_pid, ::getpid());
  EXPECT_FALSE(StoreSegment::Adopt(options, view->fingerprint()).ok());
}

TEST_F(SegmentTest, FIELD_51_AHalfLoadedOrphanIsReplacedNotAdopted) {
  const SegmentOptions options = Options();
  CreateInProcessThatDies(options, /*publish=*/false);
  EXPECT_EQ(StoreSegment::Adopt(options, std::nullopt).status().code(),
            StatusCode::kFailedPrecondition);
  const StoreSegment segment = MustPublish(options);
  EXPECT_TRUE(StoreView::Attach(segment.descriptor()).ok());
  EXPECT_EQ(StoreSegment::Adopt({.job_id = NewJobId()}, std::nullopt).status().code(),
            StatusCode::kNotFound);
}

TEST_F(SegmentTest, FIELD_49_SegmentsOfTheDeadAreSwept) {
  SegmentOptions options = Options();
  options.job_pid = 0;
  CreateInProcessThatDies(options, /*publish=*/true);
  SweepStale();
  EXPECT_FALSE(Exists(options.job_id));
}

TEST_F(SegmentTest, FIELD_49_AReusedPidDoesNotKeepASegmentAlive) {
  const SegmentOptions options = Options();
  CreateInProcessThatDies(options, /*publish=*/true);
  ChangeOwner(options.job_id, [](StoreOwner* owner) {
    owner->pid = ::getpid();  // alive, but started at another time:
    owner->start_ticks = 1;   // the dead child may have started in the same tick as this process
    owner->job_pid = 0;
  });
  SweepStale();
  EXPECT_FALSE(Exists(options.job_id));
}

TEST_F(SegmentTest, FIELD_49_ASegmentFromBeforeTheLastBootIsSwept) {
  const SegmentOptions options = Options();
  CreateInProcessThatDies(options, /*publish=*/true);
  ChangeOwner(options.job_id, [](StoreOwner* owner) { owner->boot_id[3] ^= 1; });
  EXPECT_FALSE(StoreSegment::Adopt({.job_id = "no-such-job"}, std::nullopt).ok());
  SweepStale();
  EXPECT_FALSE(Exists(options.job_id));
}

TEST_F(SegmentTest, ALeftoverWithoutAHeaderIsSwept) {
  const SegmentOptions options = Options();
  std::ofstream(PathOf(SegmentName(options.job_id))) << "";
  SweepStale();
  EXPECT_FALSE(Exists(options.job_id));
}

TEST_F(SegmentTest, FIELD_50_SweepingNeverTakesASegmentThatIsBeingCreated) {
  std::atomic<bool> stop = false;
  std::thread sweeper([&] {
    while (!stop) SweepStale();
  });
  constexpr int kRounds = 200;
  for (int i = 0; i < kRounds; ++i) {
    SegmentOptions options = Options();
    options.job_pid = 0;
    const auto segment = StoreSegment::Create(options, layout_->total_bytes());
    ASSERT_TRUE(segment.ok()) << segment.status().ToString();
    ASSERT_TRUE(Exists(options.job_id));
  }
  stop = true;
  sweeper.join();
}

TEST_F(SegmentTest, FIELD_52_MoreThanThereIsIsRefusedWithNeedAndHave) {
  const SegmentOptions options = Options();
  const auto segment = StoreSegment::Create(options, uint64_t{1} << 52);
  EXPECT_EQ(segment.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(segment.status().message(),
              AllOf(HasSubstr("needs 4.50 PB of /dev/shm"), HasSubstr("are free")));
  EXPECT_FALSE(Exists(options.job_id));
}

TEST_F(SegmentTest, FIELD_52_AFullSharedMemoryIsAnErrorAndLeavesNothing) {
  const SegmentOptions options = Options();
  const int result = InSmallTmpfs("/dev/shm", 128 << 10, [&] {
    const auto segment = StoreSegment::Create(options, layout_->total_bytes());
    if (segment.status().code() != StatusCode::kResourceExhausted) return 1;
    return Exists(options.job_id) ? 2 : 0;
  });
  if (result < 0) GTEST_SKIP() << "this user may not mount a small tmpfs";
  EXPECT_EQ(result, 0);
}

TEST_F(SegmentTest, BadJobIdsAreRefused) {
  for (const std::string id : {"", "a/b", "..%", "a b"}) {
    EXPECT_EQ(StoreSegment::Create({.job_id = id}, layout_->total_bytes()).status().code(),
              StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(StoreSegment::Create({.job_id = std::string(65, 'a')}, 1 << 20).ok());
}

TEST(HostLimits, FIELD_47_LockingMoreThanTheLimitSaysHowToRaiseIt) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{64 << 10, 64 << 10};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) ::_exit(1);
    constexpr uid_t kNobody = 65534;
    if (::geteuid() == 0 && ::setresuid(kNobody, kNobody, kNobody) != 0) ::_exit(2);
    if (!CheckMemlock(64 << 10).ok()) ::_exit(3);
    const Status status = CheckMemlock(1 << 20);
    const bool complete = status.message().find("1.05 MB") != std::string::npos &&
                          status.message().find("65.5 kB") != std::string::npos &&
                          status.message().find("ulimit -l") != std::string::npos;
    ::_exit(status.code() == StatusCode::kResourceExhausted && complete ? 0 : 4);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace expertflow

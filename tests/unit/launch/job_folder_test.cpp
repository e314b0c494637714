#include "launch/job_folder.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "common/mapped_file.h"
#include "tests/unit/launch/launch_testing.h"

namespace expertflow {
namespace {

// Job folders of these tests lie apart from those of real jobs.
class JobFolderTest : public testing::Test {
 protected:
  JobFolderTest() { ::setenv("XDG_RUNTIME_DIR", base_.path().c_str(), 1); }
  ~JobFolderTest() override { ::unsetenv("XDG_RUNTIME_DIR"); }

  static bool Lists(const std::vector<JobFolder>& folders, const std::string& path) {
    return std::any_of(folders.begin(), folders.end(),
                       [&](const JobFolder& folder) { return folder.path == path; });
  }

  TemporaryFolder base_;
};

// The note of a process that has ended: no pid has started so early.
void MakeOwnerDead(const std::string& folder) {
  ASSERT_TRUE(WriteFileAtomically(folder + "/job.json",
                                  R"({"job": "dead", "pid": 1, "start_ticks": -5, "boot_id": "x"})")
                  .ok());
}

TEST_F(JobFolderTest, NewFolderIsForItsUserOnlyAndFitsASocket) {
  const Result<JobFolder> folder = CreateJobFolder();
  ASSERT_TRUE(folder.ok()) << folder.status().ToString();
  struct stat status {};
  ASSERT_EQ(::stat(folder->path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700U);
  EXPECT_LT(ControlSocketPath(folder->path).size(), 108U);
  EXPECT_TRUE(Lists(ListJobFolders(), folder->path));
}

TEST_F(JobFolderTest, SweepSparesALivingOwner) {
  const Result<JobFolder> folder = CreateJobFolder();
  ASSERT_TRUE(folder.ok());
  EXPECT_FALSE(Lists(SweepJobFolders(false), folder->path));
  EXPECT_TRUE(std::filesystem::exists(folder->path));
}

TEST_F(JobFolderTest, SweepRemovesTheFolderOfADeadOwner) {
  const Result<JobFolder> folder = CreateJobFolder();
  ASSERT_TRUE(folder.ok());
  MakeOwnerDead(folder->path);
  EXPECT_TRUE(Lists(SweepJobFolders(/*dry_run=*/true), folder->path));
  EXPECT_TRUE(std::filesystem::exists(folder->path));
  EXPECT_TRUE(Lists(SweepJobFolders(/*dry_run=*/false), folder->path));
  EXPECT_FALSE(std::filesystem::exists(folder->path));
}

TEST_F(JobFolderTest, SweepSparesAFolderThatIsJustBeingMade) {
  const std::string path = base_.path() + "/expertflow-abcdef";
  ASSERT_TRUE(std::filesystem::create_directory(path));
  EXPECT_FALSE(Lists(SweepJobFolders(false), path));
}

TEST_F(JobFolderTest, ClaimTakesOverOnlyFromTheDead) {
  const Result<JobFolder> folder = CreateJobFolder();
  ASSERT_TRUE(folder.ok());
  bool owned = true;
  ASSERT_TRUE(ClaimJobFolder(folder->path, "other", &owned).ok());
  EXPECT_FALSE(owned);
  MakeOwnerDead(folder->path);
  ASSERT_TRUE(ClaimJobFolder(folder->path, "other", &owned).ok());
  EXPECT_TRUE(owned);
}

TEST_F(JobFolderTest, ClaimMakesAMissingFolder) {
  bool owned = false;
  const std::string path = base_.path() + "/expertflow-new";
  ASSERT_TRUE(ClaimJobFolder(path, "new", &owned).ok());
  EXPECT_TRUE(owned);
  EXPECT_TRUE(Lists(ListJobFolders(), path));
}

TEST_F(JobFolderTest, ClaimRefusesAFile) {
  bool owned = false;
  EXPECT_FALSE(ClaimJobFolder(base_.Write("expertflow-file", ""), "x", &owned).ok());
}

}  // namespace
}  // namespace expertflow

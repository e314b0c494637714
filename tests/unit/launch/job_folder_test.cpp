#include "launch/job_folder.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
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

  ScratchFolder base_;
};

// The note of a process that has ended: no pid has started so early.
void MakeOwnerDead(const std::string& folder) {
  ASSERT_TRUE(WriteFileAtomically(folder + "/job.json",
                                  R"({"format": "expertflow-job", "job": "dead", "pid": 1,)"
                                  R"( "start_ticks": -5, "boot_id": "x"})")
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

// However old it is, and whatever it is called: a source tree, say.
TEST_F(JobFolderTest, SweepSparesAFolderWithoutOurNote) {
  const std::string path = base_.path() + "/expertflow-src";
  ASSERT_TRUE(std::filesystem::create_directory(path));
  const auto expect_spared = [&path] {
    std::filesystem::last_write_time(
        path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(48));
    EXPECT_FALSE(Lists(SweepJobFolders(false), path));
    EXPECT_TRUE(std::filesystem::exists(path));
  };
  expect_spared();
  ASSERT_TRUE(WriteFileAtomically(path + "/main.cpp", "int main() {}").ok());
  expect_spared();
  // Somebody else's file of the same name.
  ASSERT_TRUE(WriteFileAtomically(path + "/job.json",
                                  R"({"job": "x", "pid": 1, "start_ticks": -5, "boot_id": "x"})")
                  .ok());
  expect_spared();
}

// The coordinator removes its job's folder with all it holds.
TEST_F(JobFolderTest, ClaimRefusesAFolderThatHoldsSomethingElse) {
  const std::string path = base_.path() + "/work";
  ASSERT_TRUE(std::filesystem::create_directory(path));
  bool owned = false;
  ASSERT_TRUE(WriteFileAtomically(path + "/thesis.tex", "").ok());
  const Status status = ClaimJobFolder(path, "x", &owned);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(owned);
  EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
  std::filesystem::remove(path + "/thesis.tex");
  EXPECT_TRUE(ClaimJobFolder(path, "x", &owned).ok());
  EXPECT_TRUE(owned);
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

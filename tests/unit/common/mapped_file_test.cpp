#include "common/mapped_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace expertflow {
namespace {

class MappedFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/expertflow_file_XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
};

TEST_F(MappedFileTest, MapsWhatWasWritten) {
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "content").ok());
  auto file = MappedFile::Open(Path("a"));
  ASSERT_TRUE(file.ok());
  const MappedFile moved = *std::move(file);
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "other").ok());
  // The old mapping lives on, and nothing but the file itself is left in the folder.
  EXPECT_EQ(std::string(moved.bytes().begin(), moved.bytes().end()), "content");
  EXPECT_EQ(moved.path(), Path("a"));
  EXPECT_EQ(*ReadFileToString(Path("a"), 100), "other");
  const auto entries = std::filesystem::directory_iterator(folder_);
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);
}

TEST_F(MappedFileTest, AnEmptyFileIsAnEmptySpan) {
  ASSERT_TRUE(WriteFileAtomically(Path("empty"), "").ok());
  const auto file = MappedFile::Open(Path("empty"));
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->bytes().empty());
}

TEST_F(MappedFileTest, ErrorsNameThePath) {
  for (const Status& status : {MappedFile::Open(Path("missing")).status(),
                               ReadFileToString(Path("missing"), 1).status()}) {
    EXPECT_EQ(status.code(), StatusCode::kNotFound);
    EXPECT_NE(status.message().find(Path("missing")), std::string::npos);
  }
  EXPECT_EQ(MappedFile::Open(folder_).status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(WriteFileAtomically(Path("no/such/folder"), "x").ok());
}

TEST_F(MappedFileTest, TheLimitOfASmallFileHolds) {
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "12345").ok());
  EXPECT_TRUE(ReadFileToString(Path("a"), 5).ok());
  EXPECT_EQ(ReadFileToString(Path("a"), 4).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace expertflow

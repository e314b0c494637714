#include "model/checkpoint/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "checkpoint_files.h"
#include "model/checkpoint/safetensors.h"

namespace expertflow {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryFolder;

std::vector<TensorDeclaration> TwoTensors() {
  return {{"z", ElementType::kF32, {2, 2}}, {"a", ElementType::kBF16, {3}}};
}

size_t FilesIn(const TemporaryFolder& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder.path()),
                                           std::filesystem::directory_iterator()));
}

TEST(SafetensorsWriter, WhatIsWrittenInPiecesIsReadBack) {
  const TemporaryFolder folder;
  auto writer = SafetensorsWriter::Create(folder.File("f.safetensors"), TwoTensors());
  ASSERT_TRUE(writer.ok()) << writer.status().ToString();
  std::vector<uint8_t> bytes(22);
  std::iota(bytes.begin(), bytes.end(), uint8_t{1});
  const std::span<const uint8_t> all(bytes);
  ASSERT_TRUE(writer->Append(all.first(5)).ok());
  ASSERT_TRUE(writer->Append(all.subspan(5)).ok());
  EXPECT_FALSE(std::filesystem::exists(folder.File("f.safetensors")));
  ASSERT_TRUE(writer->Finish().ok());

  const auto file = SafetensorsFile::Open(folder.File("f.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + 16, file->Find("z")->data.begin()));
  EXPECT_TRUE(std::equal(bytes.begin() + 16, bytes.end(), file->Find("a")->data.begin()));
  EXPECT_EQ(file->Find("a")->shape, std::vector<int64_t>{3});
  EXPECT_EQ(FilesIn(folder), 1u);
}

TEST(SafetensorsWriter, TooFewAndTooManyBytesAreErrorsAndLeaveNothing) {
  const TemporaryFolder folder;
  const std::vector<uint8_t> bytes(23);
  {
    auto writer = SafetensorsWriter::Create(folder.File("f.safetensors"), TwoTensors());
    ASSERT_TRUE(writer.ok());
    EXPECT_FALSE(writer->Append(bytes).ok());
    ASSERT_TRUE(writer->Append(std::span(bytes).first(21)).ok());
    EXPECT_THAT(writer->Finish().message(), HasSubstr("1 bytes"));
  }
  EXPECT_EQ(FilesIn(folder), 0u);
}

TEST(SafetensorsWriter, EqualNamesAndImpossibleShapesAreErrors) {
  const TemporaryFolder folder;
  EXPECT_FALSE(SafetensorsWriter::Create(
                   folder.File("f"), {{"a", ElementType::kF32, {1}}, {"a", ElementType::kF32, {1}}})
                   .ok());
  EXPECT_FALSE(
      SafetensorsWriter::Create(folder.File("f"), {{"a", ElementType::kF32, {1LL << 62, 2}}}).ok());
}

TEST(SafetensorsWriter, AFullDiskIsNamed) {
  // /dev/full answers every write with ENOSPC; the writer's temporary name must lead there.
  const TemporaryFolder folder;
  const std::string path = folder.File("f.safetensors");
  std::filesystem::create_symlink("/dev/full", path + ".tmp." + std::to_string(::getpid()));
  const auto writer = SafetensorsWriter::Create(path, TwoTensors());
  EXPECT_EQ(writer.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(writer.status().message(), HasSubstr("f.safetensors"));
  EXPECT_EQ(FilesIn(folder), 0u);
}

}  // namespace
}  // namespace expertflow

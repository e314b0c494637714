// A test of the real program with a folder of its own, which goes with it.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/process/program.h"

namespace expertflow::testing {

class FolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = (std::filesystem::temp_directory_path() / "process-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // What the program prints. It ends well and leaves nothing.
  static std::string Output(const std::vector<std::string>& arguments) {
    Program program(arguments);
    EXPECT_EQ(program.Wait(), 0) << program.err();
    program.ExpectNothingLeft();
    return program.out();
  }
  static std::string Output(std::vector<std::string> arguments,
                            const std::vector<std::string>& extra) {
    arguments.insert(arguments.end(), extra.begin(), extra.end());
    return Output(arguments);
  }

  std::string folder_;
};

}  // namespace expertflow::testing

#include "tests/unit/launch/launch_testing.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <system_error>

namespace expertflow {

ScratchFolder::ScratchFolder() : path_(testing::TempDir() + "launch-XXXXXX") {
  EXPECT_NE(::mkdtemp(path_.data()), nullptr);
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string ScratchFolder::Write(const std::string& name, const std::string& content) const {
  const std::string file = path_ + "/" + name;
  std::ofstream(file, std::ios::binary) << content;
  return file;
}

}  // namespace expertflow

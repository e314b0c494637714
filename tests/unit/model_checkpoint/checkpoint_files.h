// Files for tests: hand-made safetensors content, right or wrong, in a folder that goes away.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace expertflow::testing {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "expertflow-XXXXXX").string();
    const char* made = ::mkdtemp(pattern.data());
    EXPECT_NE(made, nullptr);
    path_ = pattern;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  std::string Write(const std::string& name, std::string_view content) const {
    std::ofstream(File(name), std::ios::binary) << content;
    return File(name);
  }

 private:
  std::string path_;
};

// A safetensors file with this header text and this many bytes of data.
inline std::string SafetensorsContent(std::string_view header, size_t data_bytes) {
  std::string content;
  for (size_t i = 0; i < 8; ++i) {
    content.push_back(static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i)));
  }
  content += header;
  for (size_t i = 0; i < data_bytes; ++i) content.push_back(static_cast<char>(i));
  return content;
}

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace expertflow::testing

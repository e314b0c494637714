// A job that runs on its own, such as one of launch/mpmd, from a user's side: prompts, status, more
// processes that join.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/program.h"

namespace expertflow::testing {

inline const std::string kMpmd = EXPERTFLOW_SOURCE_DIR "/launch/mpmd";
inline constexpr const char* kSecret = "correct horse battery staple";

inline std::vector<std::string> Joined(std::vector<std::string> words,
                                       const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// A folder that is empty and goes with the test.
class TestFolder {
 public:
  TestFolder() {
    char pattern[] = "/tmp/eft-XXXXXX";  // short: a socket's path has little room
    path_ = ::mkdtemp(pattern);
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }
  std::vector<std::string> Entries() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

 private:
  std::string path_;
};

// Sends commands to the job whose folder is `job_folder`, or else to the newest of the user;
// `prefix` starts them where that is.
class JobCommands {
 public:
  explicit JobCommands(const std::string& job_folder, std::vector<std::string> prefix = {},
                       std::vector<std::string> environment = {})
      : prefix_(std::move(prefix)), environment_(std::move(environment)) {
    if (!job_folder.empty()) job_ = {"--job-dir", job_folder};
    environment_.push_back(std::string("EXPERTFLOW_JOIN_SECRET=") + kSecret);
  }

  std::unique_ptr<Program> Start(const std::vector<std::string>& words,
                                 const std::vector<std::string>& environment = {}) const {
    std::vector<std::string> argv = Joined(prefix_, {EXPERTFLOW_PROGRAM});
    return std::make_unique<Program>(Program::Whole(), Joined(argv, words),
                                     environment.empty() ? environment_ : environment);
  }
  // `run` with the job's folder.
  std::unique_ptr<Program> StartRun(const std::vector<std::string>& words) const {
    return Start(Joined(Joined({"run"}, job_), words));
  }
  std::string Run(const std::vector<std::string>& words) const {
    const auto program = StartRun(words);
    EXPECT_EQ(program->Wait(), 0) << program->err();
    return program->out();
  }
  // Null while the job cannot be asked.
  nlohmann::json Status() const {
    const auto program = Start(Joined({"status", "--json", "-"}, job_));
    if (program->Wait() != 0) return nullptr;
    return nlohmann::json::parse(program->out(), nullptr, false)["job"];
  }
  bool ReadyWorkers(size_t count) const {
    return Eventually([&] {
      const nlohmann::json status = Status();
      if (!status.is_object()) return false;
      size_t ready = 0;
      for (const auto& worker : status["workers"]) ready += worker["ready"] == true ? 1 : 0;
      return ready == count;
    });
  }

 private:
  std::vector<std::string> job_;
  std::vector<std::string> prefix_;
  std::vector<std::string> environment_;
};

}  // namespace expertflow::testing

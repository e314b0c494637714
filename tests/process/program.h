// Runs the real program and looks at it from outside: its output, its processes, what it leaves
// behind.
//
// Every process of a run carries a mark in its environment, so that it can be found (and, at the
// end of a test, proved gone) whoever its parent is by then. Only processes with the mark are ever
// signalled.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/process.h"
#include "common/unique_fd.h"

namespace expertflow::testing {

inline const std::string kModel = EXPERTFLOW_SOURCE_DIR "/models/tiny-moe";

// Waits until `condition` holds. REQUIRES: it becomes true well before the deadline on a slow
// machine
inline bool Eventually(const std::function<bool()>& condition, int64_t ms = 30'000) {
  const Deadline deadline = Deadline::AfterMs(ms);
  while (!condition()) {
    if (deadline.Passed()) return false;
    ::usleep(10'000);
  }
  return true;
}

inline std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Pids of live processes with `mark` in their environment whose command line, without the program's
// folder, starts with `words`: "expertflow worker", "mpirun".
inline std::vector<pid_t> FindProcesses(const std::string& mark, const std::string& words = "") {
  std::vector<pid_t> pids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (ReadAll(entry.path().string() + "/environ").find(mark) == std::string::npos) continue;
    std::string line = ReadAll(entry.path().string() + "/cmdline");
    const size_t program = line.substr(0, line.find('\0')).rfind('/');
    if (program != std::string::npos) line.erase(0, program + 1);
    std::replace(line.begin(), line.end(), '\0', ' ');
    if (line.starts_with(words)) pids.push_back(std::stoi(name));
  }
  std::sort(pids.begin(), pids.end());
  return pids;
}

inline std::vector<std::string> Segments() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("expertflow")) names.push_back(name);
  }
  return names;
}

class Program {
 public:
  // Starts `expertflow` with these arguments. Its job folders go to a folder of this test's own,
  // unless `environment` says where.
  explicit Program(const std::vector<std::string>& arguments,
                   const std::vector<std::string>& environment = {})
      : Program(Whole(), With(EXPERTFLOW_PROGRAM, arguments), environment) {}

  // Any command line, such as one that starts `expertflow` elsewhere.
  struct Whole {};
  Program(Whole, const std::vector<std::string>& argv,
          const std::vector<std::string>& environment) {
    static int count = 0;
    mark_ = "TEST_OF_EXPERTFLOW=" + std::to_string(::getpid()) + "-" + std::to_string(++count);
    // Short: a socket's path has little room.
    char folder[] = "/tmp/eft-XXXXXX";
    folder_ = ::mkdtemp(folder);
    SpawnOptions options;
    options.argv = argv;
    options.environment =
        environment.empty() ? std::vector<std::string>{"XDG_RUNTIME_DIR=" + folder_} : environment;
    options.environment.push_back(mark_);
    UniqueFd out(::creat((folder_ + "/stdout").c_str(), 0600));
    UniqueFd err(::creat((folder_ + "/stderr").c_str(), 0600));
    options.stdout_fd = out.get();
    options.stderr_fd = err.get();
    auto child = SpawnProcess(options);
    EXPECT_TRUE(child.ok()) << child.status().ToString();
    if (child.ok()) child_.emplace(std::move(child).value());
  }

  ~Program() {
    for (const pid_t pid : Processes()) ::kill(pid, SIGKILL);
    child_.reset();
    std::filesystem::remove_all(folder_);
  }

  static std::vector<std::string> With(const std::string& program,
                                       std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), program);
    return arguments;
  }

  std::string out() const { return ReadAll(folder_ + "/stdout"); }
  std::string err() const { return ReadAll(folder_ + "/stderr"); }
  const std::string& folder() const { return folder_; }
  pid_t pid() const { return child_->pid(); }
  // `words` narrow it: "expertflow worker", "mpirun", ...
  std::vector<pid_t> Processes(const std::string& words = "") const {
    return FindProcesses(mark_, words);
  }

  // -1 when it does not end in time.
  int Wait(int64_t ms = 60'000) {
    const auto code = child_->Wait(Deadline::AfterMs(ms));
    return code.ok() ? *code : -1;
  }

  // Waits until text arrives: the job is in the middle of generating.
  bool Generating() {
    return Eventually([this] { return out().size() > 20; });
  }

  void Kill(const std::string& words, int signal = SIGKILL) {
    const auto pids = Processes(words);
    ASSERT_FALSE(pids.empty()) << words;
    ::kill(pids.front(), signal);
  }

  // Nothing of the job is left: processes, segments, job folders.
  void ExpectNothingLeft(int64_t ms = 10'000) {
    EXPECT_TRUE(Eventually([this] { return Processes().empty(); }, ms));
    for (const pid_t pid : Processes()) {
      ADD_FAILURE() << pid << ": " << ReadAll("/proc/" + std::to_string(pid) + "/cmdline");
    }
    EXPECT_EQ(Segments(), std::vector<std::string>());
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      if (name != "stdout" && name != "stderr") ADD_FAILURE() << "left: " << entry.path();
    }
  }

 private:
  std::string mark_;
  std::string folder_;
  std::optional<ChildProcess> child_;
};

}  // namespace expertflow::testing

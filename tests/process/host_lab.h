// Several hosts on one machine (host_lab): network namespaces with host names, process tables and
// /dev/shm of their own. Without the rights for that, tests skip and say so.
#pragma once

#include <sys/stat.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/process/job_commands.h"

namespace expertflow::testing {

class HostLab {
 public:
  explicit HostLab(const std::vector<std::string>& hosts) : hosts_(hosts) {
    lab_ = std::make_unique<Program>(Program::Whole(),
                                     Joined({kScript, "hold", folder_.path()}, hosts),
                                     std::vector<std::string>{"HOST_LAB=" + folder_.path()});
    ready_ = Eventually([this] {
               return std::filesystem::exists(folder_.path() + "/ready") || lab_->Wait(0) != -1;
             }) &&
             std::filesystem::exists(folder_.path() + "/ready");
  }

  // Empty when the hosts are there, else why not.
  std::string Missing() const {
    return ready_ ? "" : "no rights or no kernel support for network namespaces: " + lab_->err();
  }
  // The start of a command line that runs on a host, or on "head".
  std::vector<std::string> On(const std::string& host) const {
    return {kScript, "run", folder_.path(), host};
  }
  // What mpirun on "head" needs to reach the others.
  std::vector<std::string> MpiEnvironment() const {
    return {"HOST_LAB=" + folder_.path(), "OMPI_MCA_plm_rsh_agent=" + kScript + " agent",
            "TMPDIR=" + folder_.path() + "/own"};
  }
  // Each host sees an empty folder of its own here.
  std::string own_folder() const { return folder_.path() + "/own"; }
  const std::string& folder() const { return folder_.path(); }

  void Link(const std::string& host, bool up) const {
    Program link(Program::Whole(), {kScript, "link", folder_.path(), host, up ? "up" : "down"}, {});
    EXPECT_EQ(link.Wait(), 0) << link.err();
  }
  // The host as a whole dies at once.
  void Crash(const std::string& host) const { ::kill(Holder(host), SIGKILL); }

  bool IsOn(const std::string& host, pid_t pid) const {
    return Namespace(pid) == Namespace(Holder(host));
  }
  // Marked or not: all but those that hold the host.
  std::vector<std::string> ProcessesOn(const std::string& host) const {
    std::vector<std::string> lines;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename().string();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      std::string line = ReadAll(entry.path().string() + "/cmdline");
      std::replace(line.begin(), line.end(), '\0', ' ');
      if (line.empty() || std::stoi(name) == Holder(host) || !IsOn(host, std::stoi(name))) continue;
      const bool holds = line.starts_with("sleep infinity") || line.starts_with("unshare ");
      if (!holds) lines.push_back(line);
    }
    return lines;
  }
  // Processes, segments, files of a job.
  void ExpectNothingLeftOn(const std::string& host) const {
    EXPECT_TRUE(Eventually([&] { return ProcessesOn(host).empty(); }, 10'000))
        << host << ": " << ProcessesOn(host).front();
    Program list(Program::Whole(),
                 Joined(On(host), {"find", "/dev/shm", own_folder(), "-mindepth", "1"}), {});
    EXPECT_EQ(list.Wait(), 0) << list.err();
    EXPECT_EQ(list.out(), "") << "left on " << host;
  }

 private:
  static inline const std::string kScript = EXPERTFLOW_SOURCE_DIR "/tests/process/host_lab";

  pid_t Holder(const std::string& host) const {
    return std::stoi(ReadAll(folder_.path() + "/" + host + ".pid"));
  }
  static std::string Namespace(pid_t pid) {
    std::error_code error;
    return std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/ns/uts", error);
  }

  std::vector<std::string> hosts_;
  TestFolder folder_;
  std::unique_ptr<Program> lab_;
  bool ready_ = false;
};

}  // namespace expertflow::testing

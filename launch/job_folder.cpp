#include "launch/job_folder.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "common/mapped_file.h"
#include "common/process.h"

namespace expertflow {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolderPrefix = "expertflow-";
constexpr const char* kFormat = "expertflow-job";
constexpr size_t kOwnerBytesMax = 4096;
// The socket's whole path must fit into sockaddr_un.
constexpr size_t kBasePathMax = 70;

std::string OwnerPath(const std::string& folder) {
  return folder + "/job.json";
}

std::vector<std::string> BaseFolders() {
  std::vector<std::string> bases;
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime == '/' && std::string_view(runtime).size() <= kBasePathMax &&
      ::access(runtime, W_OK | X_OK) == 0) {
    bases.emplace_back(runtime);
  }
  bases.emplace_back("/tmp");
  return bases;
}

Status WriteOwner(const std::string& folder, const std::string& job) {
  ASSIGN_OR_RETURN(const int64_t ticks, ProcessStartTicks(::getpid()));
  const nlohmann::json owner = {{"format", kFormat},    {"version", 1},
                                {"job", job},           {"pid", ::getpid()},
                                {"start_ticks", ticks}, {"boot_id", ReadBootId()}};
  return WriteFileAtomically(OwnerPath(folder), owner.dump() + "\n");
}

// False when there is no readable note.
bool ReadOwner(JobFolder* folder) {
  const Result<std::string> text = ReadFileToString(OwnerPath(folder->path), kOwnerBytesMax);
  if (!text.ok()) return false;
  const nlohmann::json owner = nlohmann::json::parse(*text, nullptr, false);
  if (!owner.is_object() || owner.value("format", nlohmann::json()) != kFormat ||
      !owner.contains("pid") || !owner["pid"].is_number_integer() ||
      !owner.contains("start_ticks") || !owner["start_ticks"].is_number_integer() ||
      !owner.contains("boot_id") || !owner["boot_id"].is_string() || !owner.contains("job") ||
      !owner["job"].is_string()) {
    return false;
  }
  folder->job = owner["job"].get<std::string>();
  folder->owner_pid = owner["pid"].get<pid_t>();
  folder->owner_alive = owner["boot_id"].get<std::string>() == ReadBootId() &&
                        ProcessAlive(folder->owner_pid, owner["start_ticks"].get<int64_t>());
  return true;
}

}  // namespace

std::string ControlSocketPath(const std::string& folder) {
  return folder + "/control.sock";
}

Result<JobFolder> CreateJobFolder() {
  JobFolder folder;
  folder.path = BaseFolders().front() + "/" + std::string(kFolderPrefix) + "XXXXXX";
  if (::mkdtemp(folder.path.data()) == nullptr) {
    return FromErrno(errno, fmt::format("cannot make a job folder {}", folder.path));
  }
  folder.job = fmt::format("{}-{}", ::getpid(), folder.path.substr(folder.path.size() - 6));
  folder.owner_pid = ::getpid();
  folder.owner_alive = true;
  if (Status status = WriteOwner(folder.path, folder.job); !status.ok()) {
    RemoveJobFolder(folder.path);
    return status;
  }
  return folder;
}

Status ClaimJobFolder(const std::string& path, const std::string& job, bool* owned) {
  *owned = false;
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return FromErrno(errno, fmt::format("cannot make the job folder {}", path));
  }
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return FromErrno(errno, path);
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid()) {
    return FailedPrecondition(fmt::format("job folder {} is not a folder of this user", path));
  }
  JobFolder existing{.path = path};
  const bool is_job_folder = ReadOwner(&existing);
  if (is_job_folder && existing.owner_alive) return OkStatus();
  // A job's folder is removed with all it holds, so it may hold nothing of anybody else's.
  std::error_code error;
  if (!is_job_folder && (!fs::is_empty(path, error) || error)) {
    return FailedPrecondition(fmt::format(
        "job folder {} holds files that are not a job's; name an empty or a new folder", path));
  }
  RETURN_IF_ERROR(WriteOwner(path, job));
  *owned = true;
  return OkStatus();
}

void RemoveJobFolder(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

std::vector<JobFolder> ListJobFolders() {
  std::vector<JobFolder> folders;
  for (const std::string& base : BaseFolders()) {
    std::error_code error;
    for (fs::directory_iterator entry(base, error), end; !error && entry != end;
         entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      struct stat status {};
      if (!name.starts_with(kFolderPrefix) || ::lstat(entry->path().c_str(), &status) != 0 ||
          !S_ISDIR(status.st_mode) || status.st_uid != ::geteuid()) {
        continue;
      }
      JobFolder folder{.job = name, .path = entry->path().string()};
      folder.modified_ns = status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec;
      // Without our note a folder is somebody's, whatever its name.
      if (!ReadOwner(&folder)) continue;
      folders.push_back(std::move(folder));
    }
  }
  std::stable_sort(folders.begin(), folders.end(), [](const JobFolder& a, const JobFolder& b) {
    return a.modified_ns > b.modified_ns;
  });
  return folders;
}

std::vector<JobFolder> SweepJobFolders(bool dry_run) {
  std::vector<JobFolder> stale;
  for (JobFolder& folder : ListJobFolders()) {
    if (folder.owner_alive) continue;
    if (!dry_run) RemoveJobFolder(folder.path);
    stale.push_back(std::move(folder));
  }
  return stale;
}

}  // namespace expertflow

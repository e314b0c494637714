#include "launch/trace/recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "launch/trace/trace_tools.h"

namespace expertflow {
namespace {

namespace fs = std::filesystem;

// What all parts of a job's recording are called up to the worker's number.
std::string PartPrefix(const fs::path& file, const std::string& job) {
  return fmt::format("{}.{}.", file.stem().string(), job);
}

}  // namespace

std::string RecordingPart(const std::string& file, const std::string& job, ProcessId worker) {
  const fs::path path(file);
  const std::string name =
      fmt::format("{}{}{}", PartPrefix(path, job), worker.value, path.extension().string());
  return (path.parent_path() / name).string();
}

Status GatherRecording(const std::string& file, const std::string& job) {
  const fs::path path(file);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const std::string prefix = PartPrefix(path, job);
  std::vector<std::string> parts;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename().string().starts_with(prefix)) {
      parts.push_back(entry.path().string());
    }
  }
  if (parts.empty()) {
    return NotFound(fmt::format("--record {}: no worker of this host recorded anything", file));
  }
  std::sort(parts.begin(), parts.end());
  if (parts.size() == 1) {
    fs::rename(parts[0], path, error);
    if (error) return FromErrno(error.value(), "--record " + file);
    return OkStatus();
  }
  RETURN_IF_ERROR(MergeTraces(parts, file).WithContext("--record"));
  for (const std::string& part : parts) fs::remove(part, error);
  return OkStatus();
}

}  // namespace expertflow

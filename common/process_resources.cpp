// The last part of process.h: memory and cores under cgroup limits.
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>
#include <string_view>

#include "common/process.h"

namespace expertflow {
namespace {

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::optional<uint64_t> ParseNumber(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\n"), text.size()));
  uint64_t value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) {
    return std::nullopt;
  }
  return value;
}

// The number behind a line's `key`, as in "MemAvailable:   123 kB" or "inactive_file 456".
std::optional<uint64_t> FindNumber(std::string_view text, std::string_view key) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    if (line.starts_with(key)) return ParseNumber(line.substr(key.size()));
    begin = end + 1;
  }
  return std::nullopt;
}

// Calls `visit` for this process's cgroup folder of `controller` (empty: the unified hierarchy) and
// for each folder above it: a limit holds for everything below.
void ForEachCgroup(const std::string& root, const std::string& controller,
                   const std::function<void(const std::string&)>& visit) {
  std::istringstream lines(ReadText(root + "/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers.find("," + controller + ",") == std::string::npos) continue;
    if (controller.empty() && controllers != ",,") continue;
    const std::string mount =
        root + "/sys/fs/cgroup" + (controller.empty() ? "" : "/" + controller);
    std::string path = line.substr(second + 1);
    while (true) {
      visit(mount + path);
      const size_t slash = path.rfind('/');
      if (slash == std::string::npos || path == "/" || path.empty()) break;
      path.resize(slash);
    }
  }
}

// `limit` less what is in use and cannot be reclaimed at once.
void CapByLimit(std::optional<uint64_t> limit, std::optional<uint64_t> used,
                std::optional<uint64_t> reclaimable, uint64_t* available) {
  if (!limit) return;
  const uint64_t hard_used = used.value_or(0) - std::min(used.value_or(0), reclaimable.value_or(0));
  *available = std::min(*available, *limit - std::min(*limit, hard_used));
}

}  // namespace

Result<uint64_t> ProportionalSetSizeBytes() {
  const auto kib = FindNumber(ReadText("/proc/self/smaps_rollup"), "Pss:");
  if (!kib) return Internal("cannot read /proc/self/smaps_rollup");
  return *kib * 1024;
}

Result<uint64_t> AvailableMemoryBytes(const std::string& root) {
  const auto kib = FindNumber(ReadText(root + "/proc/meminfo"), "MemAvailable:");
  if (!kib) return Internal("cannot read MemAvailable from /proc/meminfo");
  uint64_t available = *kib * 1024;
  ForEachCgroup(root, "", [&](const std::string& folder) {
    CapByLimit(ParseNumber(ReadText(folder + "/memory.max")),
               ParseNumber(ReadText(folder + "/memory.current")),
               FindNumber(ReadText(folder + "/memory.stat"), "inactive_file "), &available);
  });
  ForEachCgroup(root, "memory", [&](const std::string& folder) {
    CapByLimit(ParseNumber(ReadText(folder + "/memory.limit_in_bytes")),
               ParseNumber(ReadText(folder + "/memory.usage_in_bytes")),
               FindNumber(ReadText(folder + "/memory.stat"), "total_inactive_file "), &available);
  });
  return available;
}

int CoreCount(const std::string& root) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  uint64_t cores = 1;
  if (::sched_getaffinity(0, sizeof(mask), &mask) == 0) {
    cores = static_cast<uint64_t>(CPU_COUNT(&mask));
  }
  const auto cap = [&cores](std::optional<uint64_t> quota, std::optional<uint64_t> period) {
    if (quota && period && *period > 0) {
      cores = std::min(cores, *quota / *period + (*quota % *period != 0 ? 1 : 0));
    }
  };
  ForEachCgroup(root, "", [&](const std::string& folder) {
    const std::string text = ReadText(folder + "/cpu.max");  // "<quota or max> <period>"
    const size_t space = text.find(' ');
    if (space != std::string::npos) {
      cap(ParseNumber(text), ParseNumber(std::string_view(text).substr(space)));
    }
  });
  ForEachCgroup(root, "cpu", [&](const std::string& folder) {
    cap(ParseNumber(ReadText(folder + "/cpu.cfs_quota_us")),
        ParseNumber(ReadText(folder + "/cpu.cfs_period_us")));
  });
  return static_cast<int>(std::max<uint64_t>(cores, 1));
}

}  // namespace expertflow

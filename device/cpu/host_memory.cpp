#include "device/cpu/host_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>

#include "common/unique_fd.h"
#include "common/units.h"

namespace expertflow::cpu {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr size_t kFileBytesMax = 64 << 10;

// The first number after `key` in `text`, or `fallback`.
uint64_t NumberAfter(std::string_view text, std::string_view key, uint64_t fallback) {
  const size_t at = text.find(key);
  if (at == std::string_view::npos) return fallback;
  const size_t digits = text.find_first_not_of(" \t", at + key.size());
  if (digits == std::string_view::npos) return fallback;
  uint64_t value = 0;
  const auto parsed = std::from_chars(text.data() + digits, text.data() + text.size(), value);
  return parsed.ec == std::errc() ? value : fallback;
}

// A file of /proc or /sys (their sizes read as 0), at most 64 KiB; empty when it cannot be read.
std::string ReadSystemFile(const char* path) {
  const UniqueFd fd(open(path, O_RDONLY | O_CLOEXEC));
  std::string text(kFileBytesMax, '\0');
  size_t done = 0;
  while (fd.valid() && done < text.size()) {
    const ssize_t n = read(fd.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  text.resize(done);
  return text;
}

uint64_t NumberInFile(const char* path, uint64_t fallback) {
  return NumberAfter(ReadSystemFile(path), "", fallback);
}

// What a memory cgroup (version 2 or 1) still allows; caches that it counts can be reclaimed.
uint64_t CgroupBytesAvailable() {
  struct Files {
    const char* limit;
    const char* used;
    const char* stat;
  };
  constexpr Files kVersions[] = {
      {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
       "/sys/fs/cgroup/memory/memory.stat"}};
  uint64_t available = UINT64_MAX;
  for (const Files& files : kVersions) {
    const uint64_t limit = NumberInFile(files.limit, UINT64_MAX);
    if (limit == UINT64_MAX) continue;
    const uint64_t cache = NumberAfter(ReadSystemFile(files.stat), "inactive_file", 0);
    const uint64_t used = NumberInFile(files.used, 0);
    const uint64_t fixed = used - std::min(used, cache);
    available = std::min(available, limit - std::min(limit, fixed));
  }
  return available;
}

class Mapping : public DeviceAllocation {
 public:
  Mapping(void* base, size_t mapped, size_t bytes) : base_(base), mapped_(mapped), bytes_(bytes) {
    const auto address = reinterpret_cast<uintptr_t>(base);
    const uintptr_t aligned = (address + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
    const bool huge = bytes >= kHugePageBytes;
    data_ = static_cast<std::byte*>(base) + (huge ? aligned - address : 0);
  }
  ~Mapping() override { munmap(base_, mapped_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const override { return data_; }
  size_t bytes() const override { return bytes_; }

  // 0, or the errno of the failure.
  int Commit() {
    const size_t length = (bytes_ + kPageBytes - 1) / kPageBytes * kPageBytes;
    if (bytes_ >= kHugePageBytes) madvise(data_, length, MADV_HUGEPAGE);
    if (madvise(data_, length, MADV_POPULATE_WRITE) == 0) return 0;
    if (errno != EINVAL) return errno;
    // A kernel before 5.14: touch the pages.
    for (size_t at = 0; at < length; at += kPageBytes) {
      *reinterpret_cast<volatile std::byte*>(data_ + at) = std::byte{0};
    }
    return 0;
  }

 private:
  void* base_;
  size_t mapped_;
  size_t bytes_;
  std::byte* data_;
};

}  // namespace

Result<HostMemory> QueryHostMemory() {
  constexpr const char* kPath = "/proc/meminfo";
  const std::string text = ReadSystemFile(kPath);
  HostMemory memory;
  memory.bytes_total = NumberAfter(text, "MemTotal:", 0) * 1024;
  memory.bytes_available = NumberAfter(text, "MemAvailable:", 0) * 1024;
  if (memory.bytes_total == 0 || memory.bytes_available == 0) {
    return Internal(fmt::format("{} has no MemTotal or MemAvailable", kPath));
  }
  memory.bytes_available = std::min(memory.bytes_available, CgroupBytesAvailable());
  return memory;
}

Result<std::unique_ptr<DeviceAllocation>> AllocateHostMemory(size_t bytes) {
  if (bytes == 0) return InvalidArgument("a device allocation of 0 bytes");
  ASSIGN_OR_RETURN(const HostMemory memory, QueryHostMemory());
  const Status too_big = ResourceExhausted(fmt::format(
      "device memory: needs {} ({} bytes), {} available; use less device memory or free some",
      FormatBytes(bytes), bytes, FormatBytes(memory.bytes_available)));
  if (bytes > memory.bytes_available) return too_big;
  const size_t mapped = bytes + (bytes >= kHugePageBytes ? kHugePageBytes : 0);
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return too_big.WithContext("mmap refused");
  auto mapping = std::make_unique<Mapping>(base, mapped, bytes);
  if (mapping->Commit() != 0) return too_big.WithContext("the kernel could not populate it");
  return std::unique_ptr<DeviceAllocation>(std::move(mapping));
}

}  // namespace expertflow::cpu

#include "expert_store/segment_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "common/process.h"

namespace expertflow {
namespace {

bool SameBoot(const StoreOwner& owner) {
  const std::string boot_id = ReadBootId();
  return ::strnlen(owner.boot_id, sizeof(owner.boot_id)) == boot_id.size() &&
         std::memcmp(owner.boot_id, boot_id.data(), boot_id.size()) == 0;
}

bool Alive(int64_t pid, int64_t start_ticks) {
  return pid > 0 && pid <= std::numeric_limits<pid_t>::max() &&
         ProcessAlive(static_cast<pid_t>(pid), start_ticks);
}

}  // namespace

Result<UniqueFd> OpenSegmentFile(const std::string& name) {
  UniqueFd fd(::shm_open(name.c_str(), O_RDWR, 0));
  if (!fd.valid()) return FromErrno(errno, "cannot open shared memory " + name);
  return fd;
}

bool TryLockSegment(int fd) {
  int result = 0;
  do {
    result = ::flock(fd, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

bool LockSegment(int fd, Deadline deadline) {
  constexpr useconds_t kPauseUs = 1000;
  while (!TryLockSegment(fd)) {
    if (deadline.Passed()) return false;
    ::usleep(kPauseUs);
  }
  return true;
}

bool StillNamed(int fd, const std::string& name) {
  struct stat opened;
  struct stat named;
  const std::string path = fmt::format("{}/{}", kSharedMemoryFolder, name);
  return ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

void RemoveSegmentName(const std::string& name) {
  ::shm_unlink(name.c_str());
}

StoreHeader ReadSegmentHeader(int fd) {
  StoreHeader header;
  if (::pread(fd, &header, sizeof(header), 0) != static_cast<ssize_t>(sizeof(header)) ||
      header.magic != kStoreMagic) {
    return StoreHeader();
  }
  return header;
}

uint64_t SegmentFileBytes(int fd) {
  struct stat info;
  return ::fstat(fd, &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

StoreOwner DescribeOwner(pid_t job_pid) {
  StoreOwner owner;
  owner.pid = ::getpid();
  owner.start_ticks = ProcessStartTicks(::getpid()).ok() ? *ProcessStartTicks(::getpid()) : 0;
  if (job_pid > 0) {
    const auto ticks = ProcessStartTicks(job_pid);
    owner.job_pid = ticks.ok() ? job_pid : 0;
    owner.job_start_ticks = ticks.ok() ? *ticks : 0;
  }
  const std::string boot_id = ReadBootId();
  boot_id.copy(owner.boot_id, sizeof(owner.boot_id) - 1);
  return owner;
}

bool OwnerAlive(const StoreOwner& owner) {
  return SameBoot(owner) && Alive(owner.pid, owner.start_ticks);
}

bool JobAlive(const StoreOwner& owner) {
  return SameBoot(owner) && Alive(owner.job_pid, owner.job_start_ticks);
}

std::string StaleReason(const StoreHeader& header) {
  if (header.magic != kStoreMagic) return "its creation was never finished";
  if (!SameBoot(header.owner)) return "it is from before the last boot";
  if (OwnerAlive(header.owner) || JobAlive(header.owner)) return "";
  return fmt::format("its owner (pid {}) is dead", header.owner.pid);
}

}  // namespace expertflow

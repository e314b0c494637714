#include "expert_store/host_limits.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "common/process.h"
#include "common/units.h"

namespace expertflow {
namespace {

bool MayLockWithoutLimit() {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return false;
  return (data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0;
}

}  // namespace

Status CheckSharedMemory(uint64_t bytes) {
  struct statvfs info;
  if (::statvfs("/dev/shm", &info) != 0) return FromErrno(errno, "cannot look at /dev/shm");
  const uint64_t free_bytes = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  if (free_bytes < bytes) {
    return ResourceExhausted(fmt::format(
        "the expert store needs {} of /dev/shm, {} are free; enlarge it (mount -o remount,size=... "
        "/dev/shm), remove stale segments (expertflow clean), or serve from a packed file "
        "(expertflow pack)",
        FormatBytes(bytes), FormatBytes(free_bytes)));
  }
  ASSIGN_OR_RETURN(const uint64_t available, AvailableMemoryBytes());
  if (available < bytes) {
    return ResourceExhausted(fmt::format(
        "the expert store needs {} of memory, {} are available; free some, raise the cgroup's "
        "limit, or serve from a packed file (expertflow pack)",
        FormatBytes(bytes), FormatBytes(available)));
  }
  return OkStatus();
}

Status CheckMemlock(uint64_t bytes) {
  rlimit limit;
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
    return FromErrno(errno, "cannot read RLIMIT_MEMLOCK");
  }
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= bytes || MayLockWithoutLimit()) {
    return OkStatus();
  }
  return ResourceExhausted(fmt::format(
      "locking memory needs {}, RLIMIT_MEMLOCK allows {}; raise it (ulimit -l, or memlock in "
      "/etc/security/limits.conf)",
      FormatBytes(bytes), FormatBytes(limit.rlim_cur)));
}

}  // namespace expertflow

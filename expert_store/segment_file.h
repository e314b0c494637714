// A segment's file below /dev/shm, its lock and its ownership record: what create, adopt, list and
// sweep share. Internal to expert_store.
#pragma once

#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/status.h"
#include "common/unique_fd.h"
#include "expert_store/layout.h"

namespace expertflow {

inline constexpr std::string_view kSegmentPrefix = "expertflow-";
inline constexpr std::string_view kSegmentSuffix = "-store";
inline constexpr const char* kSharedMemoryFolder = "/dev/shm";

// For reading and locking.
Result<UniqueFd> OpenSegmentFile(const std::string& name);
// Takes the ownership lock when nobody has it.
bool TryLockSegment(int fd);
// Also waits for somebody who only looks: ListSegments and SweepStale hold a free lock for moments.
bool LockSegment(int fd, Deadline deadline);
// False when the name was removed, or given to another segment, since `fd` was opened. While the
// lock is held the answer cannot change from true to false: only lock holders remove names.
bool StillNamed(int fd, const std::string& name);
void RemoveSegmentName(const std::string& name);

// The header as it is in the file, unchecked; magic is 0 when it was never written.
StoreHeader ReadSegmentHeader(int fd);
uint64_t SegmentFileBytes(int fd);

// This process, as owner of a segment of the job of `job_pid`.
StoreOwner DescribeOwner(pid_t job_pid);
bool OwnerAlive(const StoreOwner& owner);
bool JobAlive(const StoreOwner& owner);
// Of a segment whose lock is free; empty when it must stay.
std::string StaleReason(const StoreHeader& header);

}  // namespace expertflow

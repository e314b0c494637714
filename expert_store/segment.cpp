#include "expert_store/segment.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/interprocess/mapped_region.hpp>
#include <boost/interprocess/shared_memory_object.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/clock.h"
#include "common/units.h"
#include "expert_store/host_limits.h"
#include "expert_store/segment_file.h"
#include "expert_store/store_index.h"

namespace expertflow {

namespace bip = boost::interprocess;

struct StoreSegment::State {
  std::string name;
  bip::shared_memory_object object;  // its descriptor holds the lock
  bip::mapped_region region;
  pid_t created_by = ::getpid();
  bool published = false;

  uint8_t* data() { return static_cast<uint8_t*>(region.get_address()); }
  ~State() {
    if (created_by == ::getpid()) RemoveSegmentName(name);
  }
};

namespace {

constexpr int kCreateAttemptsMax = 16;
constexpr int64_t kLockWaitMs = 200;

Status CheckJobId(const std::string& job_id) {
  constexpr size_t kBytesMax = 64;
  constexpr std::string_view kAllowed =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  if (!job_id.empty() && job_id.size() <= kBytesMax &&
      job_id.find_first_not_of(kAllowed) == std::string::npos) {
    return OkStatus();
  }
  return InvalidArgument(
      fmt::format("job id '{}': expected 1 to {} of A-Z a-z 0-9 . _ -", job_id, kBytesMax));
}

Status OwnedByOther(const std::string& name, const StoreHeader& header) {
  if (header.owner.pid == 0) {
    return FailedPrecondition(
        fmt::format("shared memory {} is being created by another process", name));
  }
  return FailedPrecondition(fmt::format(
      "shared memory {} belongs to the running process {}; use another job id, or stop that job",
      name, header.owner.pid));
}

// Removes the name when no live process owns it.
Status RemoveAbandoned(const std::string& name) {
  auto fd = OpenSegmentFile(name);
  if (!fd.ok()) return fd.status().code() == StatusCode::kNotFound ? OkStatus() : fd.status();
  const bool locked = LockSegment(fd->get(), Deadline::AfterMs(kLockWaitMs));
  const StoreHeader header = ReadSegmentHeader(fd->get());
  if (!locked || OwnerAlive(header.owner)) return OwnedByOther(name, header);
  if (StillNamed(fd->get(), name)) RemoveSegmentName(name);
  return OkStatus();
}

Status FromBoost(const bip::interprocess_exception& error, const std::string& what) {
  if (error.get_native_error() != 0) return FromErrno(error.get_native_error(), what);
  return Internal(what + ": " + error.what());
}

// A new segment under `name` with its lock held. A sweeper may hold the lock of a segment that is
// just being born, or remove it in that moment; then another one is made.
Result<bip::shared_memory_object> CreateLocked(const std::string& name) {
  const std::string what = "cannot create shared memory " + name;
  for (int attempt = 0; attempt < kCreateAttemptsMax; ++attempt) {
    try {
      bip::shared_memory_object object(bip::create_only, name.c_str(), bip::read_write,
                                       bip::permissions(0600));
      const int fd = object.get_mapping_handle().handle;
      if (LockSegment(fd, Deadline::AfterMs(kLockWaitMs)) && StillNamed(fd, name)) return object;
    } catch (const bip::interprocess_exception& error) {
      if (error.get_error_code() != bip::already_exists_error) return FromBoost(error, what);
    }
    RETURN_IF_ERROR(RemoveAbandoned(name));
  }
  return Unavailable(what + ": other processes keep removing it; try again");
}

Status CommitMemory(int fd, const std::string& name, uint64_t total_bytes) {
  constexpr uint64_t kStepBytes = uint64_t{1} << 30;  // a signal restarts one step, not all
  for (uint64_t done = 0; done < total_bytes;) {
    const uint64_t step = std::min(kStepBytes, total_bytes - done);
    const int error = ::posix_fallocate(fd, static_cast<off_t>(done), static_cast<off_t>(step));
    if (error == EINTR) continue;
    if (error != 0) {
      return FromErrno(error, fmt::format("shared memory {}: {} of {} could be had in /dev/shm",
                                          name, FormatBytes(done), FormatBytes(total_bytes)));
    }
    done += step;
  }
  return OkStatus();
}

SegmentInfo Describe(const std::string& name, int fd, bool lock_is_free) {
  const StoreHeader header = ReadSegmentHeader(fd);
  SegmentInfo info;
  info.name = name;
  info.bytes = SegmentFileBytes(fd);
  info.ready = header.state == static_cast<uint32_t>(StoreState::kReady);
  info.owner_pid = static_cast<pid_t>(header.owner.pid);
  info.owner_alive = !lock_is_free || OwnerAlive(header.owner);
  info.job_alive = JobAlive(header.owner);
  if (lock_is_free) info.stale_reason = StaleReason(header);
  return info;
}

std::vector<std::string> SegmentNames() {
  std::vector<std::string> names;
  DIR* folder = ::opendir(kSharedMemoryFolder);
  if (folder == nullptr) return names;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string name = entry->d_name;
    if (name.starts_with(kSegmentPrefix) && name.ends_with(kSegmentSuffix)) names.push_back(name);
  }
  ::closedir(folder);
  std::sort(names.begin(), names.end());
  return names;
}

// Looks at each segment with its lock held if it was free, and at no other time.
template <typename Visit>
void ForEachSegment(const Visit& visit) {
  for (const std::string& name : SegmentNames()) {
    const auto fd = OpenSegmentFile(name);
    if (!fd.ok()) continue;  // gone since, or another user's
    const bool lock_is_free = TryLockSegment(fd->get());
    if (!StillNamed(fd->get(), name)) continue;
    visit(Describe(name, fd->get(), lock_is_free));
  }
}

}  // namespace

std::string SegmentName(const std::string& job_id) {
  return fmt::format("{}{}{}", kSegmentPrefix, job_id, kSegmentSuffix);
}

StoreSegment::StoreSegment(std::unique_ptr<State> state) : state_(std::move(state)) {}
StoreSegment::StoreSegment(StoreSegment&& other) noexcept = default;
StoreSegment& StoreSegment::operator=(StoreSegment&& other) noexcept = default;
StoreSegment::~StoreSegment() = default;

Result<StoreSegment> StoreSegment::Create(const SegmentOptions& options, uint64_t total_bytes) {
  RETURN_IF_ERROR(CheckJobId(options.job_id));
  if (total_bytes < kStoreHeaderBytes) {
    return InvalidArgument(fmt::format("an expert store of {} bytes", total_bytes));
  }
  const std::string name = SegmentName(options.job_id);
  RETURN_IF_ERROR(RemoveAbandoned(name));
  RETURN_IF_ERROR(CheckSharedMemory(total_bytes));
  auto state = std::make_unique<State>();
  ASSIGN_OR_RETURN(state->object, CreateLocked(name));
  state->name = name;  // from here on the destructor removes it
  // The ownership first, so that whoever finds the segment knows whose it is.
  StoreHeader header;
  header.magic = kStoreMagic;
  header.version = kStoreVersion;
  header.state = static_cast<uint32_t>(StoreState::kLoading);
  header.owner = DescribeOwner(options.job_pid);
  const int fd = state->object.get_mapping_handle().handle;
  if (::pwrite(fd, &header, sizeof(header), 0) != static_cast<ssize_t>(sizeof(header))) {
    return FromErrno(errno, "cannot write shared memory " + name);
  }
  RETURN_IF_ERROR(CommitMemory(fd, name, total_bytes));
  try {
    state->region = bip::mapped_region(state->object, bip::read_write);
  } catch (const bip::interprocess_exception& error) {
    return FromBoost(error, "cannot map shared memory " + name);
  }
  return StoreSegment(std::move(state));
}

Result<StoreSegment> StoreSegment::Adopt(const SegmentOptions& options,
                                         std::optional<Fingerprint> expected) {
  RETURN_IF_ERROR(CheckJobId(options.job_id));
  const std::string name = SegmentName(options.job_id);
  bip::shared_memory_object object;
  bip::mapped_region region;
  try {
    object = bip::shared_memory_object(bip::open_only, name.c_str(), bip::read_write);
    const int fd = object.get_mapping_handle().handle;
    if (!LockSegment(fd, Deadline::AfterMs(kLockWaitMs)))
      return OwnedByOther(name, ReadSegmentHeader(fd));
    if (!StillNamed(fd, name)) return NotFound("shared memory " + name + " was just removed");
    if (SegmentFileBytes(fd) < kStoreHeaderBytes) {
      return FailedPrecondition("shared memory " + name + " was never filled");
    }
    region = bip::mapped_region(object, bip::read_write);
  } catch (const bip::interprocess_exception& error) {
    if (error.get_error_code() == bip::not_found_error) {
      return NotFound("shared memory " + name + " does not exist");
    }
    return FromBoost(error, "cannot map shared memory " + name);
  }

  auto* data = static_cast<uint8_t*>(region.get_address());
  auto* header = reinterpret_cast<StoreHeader*>(data);
  if (OwnerAlive(header->owner)) return OwnedByOther(name, *header);
  if (LoadStoreState(data) != static_cast<uint32_t>(StoreState::kReady)) {
    return FailedPrecondition("shared memory " + name + " was never completely loaded");
  }
  ASSIGN_OR_RETURN(const StoreIndex index, ParseStore({data, region.get_size()}, name));
  if (expected && index.header.fingerprint != *expected) {
    return FailedPrecondition(fmt::format("shared memory {} holds another model: {}, expected {}",
                                          name, index.header.fingerprint.ToString(),
                                          expected->ToString()));
  }
  header->owner = DescribeOwner(options.job_pid);
  auto state = std::make_unique<State>();
  state->name = name;
  state->object = std::move(object);
  state->region = std::move(region);
  state->published = true;
  return StoreSegment(std::move(state));
}

const std::string& StoreSegment::name() const {
  return state_->name;
}

Status StoreSegment::Fill(const StoreLayout& layout, const StoreFillOptions& options) {
  CHECK(!state_->published && layout.total_bytes() == state_->region.get_size());
  return FillStore(layout, state_->object.get_mapping_handle().handle, state_->name, options);
}

Status StoreSegment::Publish() {
  const auto index = ParseStore({state_->data(), state_->region.get_size()}, state_->name);
  if (!index.ok()) return index.status();
  PublishStoreState(state_->data(), StoreState::kReady);
  state_->published = true;
  return OkStatus();
}

StoreDescriptor StoreSegment::descriptor() const {
  CHECK(state_->published);
  StoreHeader header;
  std::memcpy(&header, state_->data(), sizeof(header));
  return {.kind = StoreDescriptor::Kind::kSharedMemory,
          .name = state_->name,
          .total_bytes = header.total_bytes,
          .fingerprint = header.fingerprint};
}

std::vector<SegmentInfo> ListSegments() {
  std::vector<SegmentInfo> found;
  ForEachSegment([&](const SegmentInfo& info) { found.push_back(info); });
  return found;
}

std::vector<SegmentInfo> SweepStale() {
  std::vector<SegmentInfo> removed;
  ForEachSegment([&](const SegmentInfo& info) {
    if (info.stale_reason.empty()) return;
    RemoveSegmentName(info.name);
    removed.push_back(info);
  });
  return removed;
}

}  // namespace expertflow

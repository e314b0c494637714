#include "expert_store/pack_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

namespace expertflow {
namespace {

struct ListHeader {
  char magic[8] = {'E', 'X', 'F', 'P', 'A', 'C', 'K', '1'};
  uint64_t identity = 0;
};
struct ListEntry {
  uint64_t unit = 0;
  uint64_t checksum = 0;
};
static_assert(sizeof(ListHeader) == 16 && sizeof(ListEntry) == 16);

std::string PartName(const std::string& path) {
  return path + ".part";
}
std::string ListName(const std::string& path) {
  return path + ".part.done";
}

// Of everything that decides the file's bytes.
Result<uint64_t> IdentityOf(const StoreLayout& layout) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  XXH3_64bits_reset(state.get());
  const auto add = [&](const void* data, size_t bytes) {
    XXH3_64bits_update(state.get(), data, bytes);
  };
  add(layout.metadata().data(), layout.metadata().size());
  std::string last;
  for (const StoreUnit& unit : layout.units()) {
    for (const StorePiece& piece : unit.pieces) {
      const std::string& file = piece.source->info->file->path();
      add(piece.source->info->name.data(), piece.source->info->name.size());
      add(&piece.first, sizeof(piece.first));
      if (file == last) continue;
      last = file;
      struct stat found = {};
      if (::stat(file.c_str(), &found) != 0) return FromErrno(errno, "cannot open " + file);
      add(file.data(), file.size());
      add(&found.st_size, sizeof(found.st_size));
      add(&found.st_mtim, sizeof(found.st_mtim));
    }
  }
  return XXH3_64bits_digest(state.get());
}

Status WriteAll(int fd, const void* data, size_t bytes, const std::string& name) {
  // One call: entries of several threads do not mix, and a torn one is the last.
  const ssize_t n = ::write(fd, data, bytes);
  if (n == static_cast<ssize_t>(bytes)) return OkStatus();
  return FromErrno(n < 0 ? errno : ENOSPC, "cannot write " + name);
}

}  // namespace

Result<PackFile> PackFile::Open(const std::string& path, const StoreLayout& layout) {
  ASSIGN_OR_RETURN(const uint64_t identity, IdentityOf(layout));
  PackFile file;
  const std::string list = ListName(path), part = PartName(path);
  file.list_.Reset(::open(list.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file.list_.valid()) return FromErrno(errno, "cannot write " + path);
  if (::flock(file.list_.get(), LOCK_EX | LOCK_NB) != 0) {
    return FailedPrecondition(fmt::format("another process is packing {}", path));
  }
  file.path_ = path;
  file.data_.Reset(::open(part.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!file.data_.valid()) return FromErrno(errno, "cannot write " + path);
  RETURN_IF_ERROR(file.ReadList(layout.units().size(), identity));
  return file;
}

Status PackFile::ReadList(size_t units, uint64_t identity) {
  listed_.resize(units);
  ListHeader found;
  const ListHeader expected{.identity = identity};
  const ssize_t bytes = ::pread(list_.get(), &found, sizeof(found), 0);
  if (bytes == sizeof(found) && std::memcmp(&found, &expected, sizeof(found)) == 0) {
    ListEntry entry;
    off_t end = sizeof(found);
    while (::pread(list_.get(), &entry, sizeof(entry), end) == sizeof(entry)) {
      if (entry.unit < units) listed_[entry.unit] = entry.checksum;
      end += sizeof(entry);
    }
    // What a crash has torn, if anything.
    if (::ftruncate(list_.get(), end) != 0) return FromErrno(errno, "cannot write " + path_);
    return OkStatus();
  }
  if (::ftruncate(list_.get(), 0) != 0 || ::ftruncate(data_.get(), 0) != 0) {
    return FromErrno(errno, "cannot write " + path_);
  }
  return WriteAll(list_.get(), &expected, sizeof(expected), ListName(path_));
}

PackFile::PackFile(PackFile&& other) noexcept
    : path_(std::exchange(other.path_, {})),
      data_(std::move(other.data_)),
      list_(std::move(other.list_)),
      listed_(std::move(other.listed_)) {}

PackFile::~PackFile() {
  if (path_.empty()) return;
  ::unlink(PartName(path_).c_str());
  ::unlink(ListName(path_).c_str());
}

Status PackFile::List(size_t unit, uint64_t checksum) {
  const ListEntry entry{unit, checksum};
  return WriteAll(list_.get(), &entry, sizeof(entry), ListName(path_));
}

Status PackFile::Commit() {
  if (::fsync(data_.get()) != 0 || ::rename(PartName(path_).c_str(), path_.c_str()) != 0) {
    return FromErrno(errno, "cannot write " + path_);
  }
  ::unlink(ListName(path_).c_str());
  path_.clear();
  return OkStatus();
}

}  // namespace expertflow

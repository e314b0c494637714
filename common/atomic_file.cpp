#include "common/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

namespace expertflow {

Result<AtomicFile> AtomicFile::Create(const std::string& path) {
  AtomicFile file;
  file.path_ = path;
  std::string temporary = fmt::format("{}.tmp.{}", path, ::getpid());
  file.fd_.Reset(::open(temporary.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file.fd_.valid()) return FromErrno(errno, "cannot write " + path);
  file.temporary_ = std::move(temporary);
  return file;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      fd_(std::move(other.fd_)) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  if (this != &other) {
    Discard();
    path_ = std::move(other.path_);
    temporary_ = std::exchange(other.temporary_, {});
    fd_ = std::move(other.fd_);
  }
  return *this;
}

AtomicFile::~AtomicFile() {
  Discard();
}

void AtomicFile::Discard() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

Status AtomicFile::Commit() {
  if (::fsync(fd_.get()) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return FromErrno(errno, "cannot write " + path_);
  }
  temporary_.clear();
  fd_.Reset();
  return OkStatus();
}

}  // namespace expertflow

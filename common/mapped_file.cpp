#include "common/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/atomic_file.h"
#include "common/unique_fd.h"

namespace expertflow {
namespace {

// Opens a regular file for reading and tells its size.
Result<std::pair<UniqueFd, size_t>> OpenRegular(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return FromErrno(errno, "cannot open " + path);
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return FromErrno(errno, "cannot stat " + path);
  if (!S_ISREG(info.st_mode)) return InvalidArgument(path + ": not a regular file");
  return std::pair(std::move(fd), static_cast<size_t>(info.st_size));
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(auto opened, OpenRegular(path));
  MappedFile file;
  file.path_ = path;
  file.size_ = opened.second;
  if (file.size_ > 0) {
    void* data = ::mmap(nullptr, file.size_, PROT_READ, MAP_SHARED, opened.first.get(), 0);
    if (data == MAP_FAILED) {
      file.size_ = 0;
      return FromErrno(errno, "cannot map " + path);
    }
    file.data_ = static_cast<const uint8_t*>(data);
  }
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept {
  *this = std::move(other);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), size_);
}

Result<std::string> ReadFileToString(const std::string& path, size_t max_bytes) {
  ASSIGN_OR_RETURN(auto opened, OpenRegular(path));
  if (opened.second > max_bytes) {
    return InvalidArgument(fmt::format("{}: {} bytes, more than the limit of {} for this file",
                                       path, opened.second, max_bytes));
  }
  std::string content(opened.second, '\0');
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t n = ::read(opened.first.get(), content.data() + done, content.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FromErrno(errno, "cannot read " + path);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  content.resize(done);
  return content;
}

Status WriteAll(int fd, std::span<const uint8_t> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FromErrno(errno, "cannot write " + path);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return OkStatus();
}

Status WriteFileAtomically(const std::string& path, std::string_view content) {
  ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  const auto* bytes = reinterpret_cast<const uint8_t*>(content.data());
  RETURN_IF_ERROR(WriteAll(file.fd(), {bytes, content.size()}, path));
  return file.Commit();
}

}  // namespace expertflow

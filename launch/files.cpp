#include "launch/files.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

namespace expertflow {
namespace {

namespace fs = std::filesystem;

}  // namespace

Status MakeFolder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return FromErrno(error.value(), fmt::format("cannot make the folder {}", path));
  return OkStatus();
}

Status CopyFile(const std::string& from, const std::string& to) {
  std::error_code error;
  if (fs::equivalent(from, to, error)) return OkStatus();
  fs::copy_file(from, to, fs::copy_options::overwrite_existing, error);
  if (error) return FromErrno(error.value(), fmt::format("cannot copy {} to {}", from, to));
  return OkStatus();
}

Status CopyIfPresent(const std::string& from, const std::string& to) {
  std::error_code error;
  if (!fs::exists(from, error)) return OkStatus();
  return CopyFile(from, to);
}

}  // namespace expertflow

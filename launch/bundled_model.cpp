#include "launch/bundled_model.h"

#include <filesystem>
#include <system_error>

namespace expertflow {

std::string BundledModel() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path model = fs::path("models") / "tiny-moe";
  for (fs::path folder = program.parent_path(); folder.has_relative_path();
       folder = folder.parent_path()) {
    if (fs::exists(folder / model / "config.json", error)) return (folder / model).string();
  }
  return model.string();
}

}  // namespace expertflow

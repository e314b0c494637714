// Small file operations of the tools.
#pragma once

#include <string>

#include "common/status.h"

namespace expertflow {

// With its parents; one that exists is fine.
Status MakeFolder(const std::string& path);
// Replaces `to`. Copying a file onto itself does nothing.
Status CopyFile(const std::string& from, const std::string& to);
// The same; a missing `from` is fine.
Status CopyIfPresent(const std::string& from, const std::string& to);

}  // namespace expertflow

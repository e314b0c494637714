// The model that comes with the program.
#pragma once

#include <string>

namespace expertflow {

// models/tiny-moe of the source tree that this program was built in, or of the current folder.
std::string BundledModel();

}  // namespace expertflow

// Hardware that `simulate` knows: the profiles of sim/profiles/, compiled in, and files like them.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"
#include "sim/roofline.h"

namespace expertflow {

// Name and TOML text, by name (generated from sim/profiles/).
const std::vector<std::pair<std::string_view, std::string_view>>& BuiltinProfiles();

// A built-in name, or a path that ends in .toml. An error names the file and the key.
Result<HardwareProfile> LoadHardware(const std::string& name);

}  // namespace expertflow

// Hardware that `simulate` knows: the profiles of sim/profiles/, compiled in, files like them, and
// this machine.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"
#include "launch/simulate/probed_hardware.h"
#include "sim/roofline.h"

namespace expertflow {

// Name and TOML text, by name (generated from sim/profiles/).
const std::vector<std::pair<std::string_view, std::string_view>>& BuiltinProfiles();

// A built-in name, kThisMachine, which is probed, or a path that ends in .toml. An error names the
// file and the key.
Result<HardwareProfile> LoadHardware(const std::string& name,
                                     const HardwareProbeOptions& probe = {});

// For reports: every figure and where it is from, in a line, and under the names of the fields.
std::string DescribeHardware(const HardwareProfile& hardware);
nlohmann::json HardwareJson(const HardwareProfile& hardware);

}  // namespace expertflow

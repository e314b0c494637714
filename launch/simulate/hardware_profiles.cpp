#include "launch/simulate/hardware_profiles.h"

#include <fmt/format.h>

#include <toml++/toml.h>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "common/mapped_file.h"
#include "common/units.h"

namespace expertflow {
namespace {

constexpr size_t kProfileBytesMax = 64 * 1024;

class Profile {
 public:
  Profile(const toml::table& table, std::string name) : table_(table), name_(std::move(name)) {}

  Result<std::string> Text(const char* key) {
    seen_.insert(key);
    const std::optional<std::string> text = table_[key].value<std::string>();
    if (!text) {
      return InvalidArgument(fmt::format("{}: {} is missing or not a string", name_, key));
    }
    return *text;
  }
  template <typename T>
  Result<T> Parsed(const char* key, Result<T> (*parse)(std::string_view)) {
    ASSIGN_OR_RETURN(const std::string text, Text(key));
    Result<T> value = parse(text);
    if (!value.ok()) return value.status().WithContext(fmt::format("{}: {}", name_, key));
    return value;
  }
  Result<double> Number(const char* key) {
    seen_.insert(key);
    const std::optional<double> value = table_[key].value<double>();
    if (!value) {
      return InvalidArgument(fmt::format("{}: {} is missing or not a number", name_, key));
    }
    return *value;
  }
  Status NothingElse() const {
    for (const auto& [key, value] : table_) {
      if (!seen_.contains(std::string(key.str()))) {
        return InvalidArgument(fmt::format("{}: unknown key {}", name_, std::string(key.str())));
      }
    }
    return OkStatus();
  }

 private:
  const toml::table& table_;
  const std::string name_;
  std::set<std::string> seen_;
};

Result<HardwareProfile> Parse(std::string_view text, const std::string& origin,
                              const std::string& name) {
  toml::table table;
  try {
    table = toml::parse(text, origin);
  } catch (const toml::parse_error& error) {
    return InvalidArgument(fmt::format("{}: {} (line {})", origin, std::string(error.description()),
                                       error.source().begin.line));
  }
  Profile profile(table, origin);
  HardwareProfile hardware;
  hardware.name = name;
  ASSIGN_OR_RETURN(hardware.flops, profile.Number("flops"));
  ASSIGN_OR_RETURN(const uint64_t memory_rate,
                   profile.Parsed("memory_bandwidth", ParseBytesPerSecond));
  hardware.memory_bytes_per_second = static_cast<double>(memory_rate);
  ASSIGN_OR_RETURN(hardware.launch_ns, profile.Parsed("launch", ParseDurationNs));
  ASSIGN_OR_RETURN(hardware.memory_bytes, profile.Parsed("memory", ParseBytes));
  ASSIGN_OR_RETURN(hardware.link_bytes_per_second, profile.Parsed("link", ParseBytesPerSecond));
  ASSIGN_OR_RETURN(hardware.link_latency_ns, profile.Parsed("link_latency", ParseDurationNs));
  ASSIGN_OR_RETURN(hardware.sources, profile.Text("sources"));
  RETURN_IF_ERROR(profile.NothingElse());
  RETURN_IF_ERROR(CheckHardware(hardware));
  return hardware;
}

}  // namespace

Result<HardwareProfile> LoadHardware(const std::string& name, const HardwareProbeOptions& probe) {
  if (name == kThisMachine) return ProbeHardware(probe);
  if (name.ends_with(".toml")) {
    ASSIGN_OR_RETURN(const std::string text, ReadFileToString(name, kProfileBytesMax));
    return Parse(text, name, std::filesystem::path(name).stem().string());
  }
  std::string known;
  for (const auto& [builtin, text] : BuiltinProfiles()) {
    if (builtin == name) return Parse(text, "profile " + name, name);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", builtin);
  }
  return InvalidArgument(
      fmt::format("no hardware profile is called \"{}\"; there are {} and {}, which is probed; a "
                  "file ends in .toml",
                  name, known, kThisMachine));
}

std::string DescribeHardware(const HardwareProfile& hardware) {
  const bool tera = hardware.flops >= 1e12;
  return fmt::format(
      "{:.3g} {}FLOP/s, {} of memory at {}, {} a launch, a link of {} and {}; {}",
      hardware.flops * (tera ? 1e-12 : 1e-9), tera ? 'T' : 'G', FormatBytes(hardware.memory_bytes),
      FormatBytesPerSecond(hardware.memory_bytes_per_second), FormatDurationNs(hardware.launch_ns),
      FormatBytesPerSecond(static_cast<double>(hardware.link_bytes_per_second)),
      FormatDurationNs(hardware.link_latency_ns), hardware.sources);
}

nlohmann::json HardwareJson(const HardwareProfile& hardware) {
  return {{"flops", hardware.flops},
          {"memory_bytes_per_second", hardware.memory_bytes_per_second},
          {"launch_ns", hardware.launch_ns},
          {"memory_bytes", hardware.memory_bytes},
          {"link_bytes_per_second", hardware.link_bytes_per_second},
          {"link_latency_ns", hardware.link_latency_ns},
          {"sources", hardware.sources}};
}

}  // namespace expertflow

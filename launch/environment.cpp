#include "launch/environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "launch/nearest_name.h"
#include "launch/option_table.h"
#include "launch/options.h"

namespace expertflow {
namespace {

constexpr std::string_view kVariablePrefix = "EXPERTFLOW_";
// EXPERTFLOW_ROOT is the source folder for launch/expertflow.sbatch.
constexpr std::string_view kOthers[] = {kJoinSecretVariable, "EXPERTFLOW_CONFIG",
                                        "EXPERTFLOW_ROOT"};

}  // namespace

std::vector<std::string> OwnVariables() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (!text.starts_with(kVariablePrefix) || equals == std::string_view::npos) continue;
    if (equals + 1 < text.size()) names.emplace_back(text.substr(0, equals));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> IgnoredVariables(const std::vector<std::string>& names) {
  std::vector<std::string> known(std::begin(kOthers), std::end(kOthers));
  std::vector<std::string> command_line_only;
  for (const OptionSpec& spec : AllOptions()) {
    auto& list = spec.traits.command_line_only ? command_line_only : known;
    list.push_back(EnvironmentName(spec.name));
  }
  const auto contains = [](const std::vector<std::string>& list, const std::string& name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  std::vector<std::string> lines;
  for (const std::string& name : names) {
    if (contains(known, name)) continue;
    if (contains(command_line_only, name)) {
      lines.push_back(fmt::format("{} is ignored: this option is for the command line only", name));
      continue;
    }
    const std::string_view nearest = NearestName(name, known);
    lines.push_back(fmt::format("{} is ignored: there is no such option{}", name,
                                nearest.empty() ? std::string() : fmt::format(" ({}?)", nearest)));
  }
  return lines;
}

}  // namespace expertflow

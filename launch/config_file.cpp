#include "launch/config_file.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "common/mapped_file.h"
#include "launch/nearest_name.h"
#include "launch/option_table.h"

namespace expertflow {
namespace {

constexpr size_t kConfigFileBytesMax = size_t{1} << 20;

std::optional<std::string> ScalarText(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return fmt::format("{}", number->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  return std::nullopt;
}

// on|off options read better as booleans.
std::string AsChoice(const OptionSpec& spec, const toml::node& node, std::string text) {
  if (spec.type != OptionType::kChoice || spec.value_name != "on|off" || !node.is_boolean()) {
    return text;
  }
  return text == "true" ? "on" : "off";
}

const OptionSpec* AnyOption(std::string_view name) {
  for (const OptionSpec& spec : AllOptions()) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

Result<GivenOption> ReadEntry(const std::string& path, std::string_view key,
                              const toml::node& node) {
  GivenOption given{.name = std::string(key), .source = OptionSource::kConfigFile};
  given.origin = fmt::format("{}:{}: {}", path, node.source().begin.line, key);
  const OptionSpec* spec = AnyOption(key);
  if (spec == nullptr) {
    std::vector<std::string> names;
    for (const OptionSpec& option : AllOptions()) names.emplace_back(option.name);
    const std::string_view nearest = NearestName(key, names);
    return InvalidArgument(
        fmt::format("{}: there is no such option{}", given.origin,
                    nearest.empty() ? std::string() : fmt::format(" ({}?)", nearest)));
  }
  if (spec->traits.command_line_only) {
    return InvalidArgument(
        fmt::format("{}: this option is for the command line only", given.origin));
  }
  if (const toml::array* array = node.as_array();
      array != nullptr && spec->type == OptionType::kTextList) {
    for (const toml::node& element : *array) {
      const std::optional<std::string> text = ScalarText(element);
      if (!text) return InvalidArgument(fmt::format("{}: expected strings", given.origin));
      given.texts.push_back(*text);
    }
    return given;
  }
  std::optional<std::string> text = ScalarText(node);
  if (!text) {
    return InvalidArgument(fmt::format("{}: expected {}, found another kind of value", given.origin,
                                       ExpectedValue(*spec)));
  }
  given.texts.push_back(AsChoice(*spec, node, std::move(*text)));
  return given;
}

}  // namespace

Result<std::vector<GivenOption>> ReadConfigFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFileToString(path, kConfigFileBytesMax));
  toml::table table;
  try {
    table = toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    return InvalidArgument(
        fmt::format("{}:{}: {}", path, error.source().begin.line, error.description()));
  }
  std::vector<GivenOption> options;
  for (const auto& [key, node] : table) {
    ASSIGN_OR_RETURN(GivenOption given, ReadEntry(path, key.str(), node));
    options.push_back(std::move(given));
  }
  return options;
}

}  // namespace expertflow

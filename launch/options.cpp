#include "launch/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "common/check.h"
#include "launch/config_file.h"

namespace expertflow {
namespace {

std::optional<GivenOption> FromEnvironment(const OptionSpec& spec, const Environment& environment) {
  const std::string variable = EnvironmentName(spec.name);
  const char* text = environment(variable);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return GivenOption{.name = std::string(spec.name),
                     .texts = {text},
                     .source = OptionSource::kEnvironment,
                     .origin = variable};
}

std::string ConfigFileName(const std::vector<GivenOption>& command_line,
                           const Environment& environment) {
  for (const GivenOption& given : command_line) {
    if (given.name == "config") return given.texts.back();
  }
  const char* text = environment(EnvironmentName("config"));
  return text == nullptr ? "" : text;
}

}  // namespace

std::string_view OptionSourceName(OptionSource source) {
  switch (source) {
    case OptionSource::kDefault: return "default";
    case OptionSource::kConfigFile: return "config file";
    case OptionSource::kEnvironment: return "environment";
    case OptionSource::kCommandLine: return "command line";
  }
  return "";
}

std::string EnvironmentName(std::string_view option) {
  std::string name = "EXPERTFLOW_";
  for (const char c : option) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

Options::Options(Command command) : command_(command) {
  for (const OptionSpec& spec : AllOptions()) {
    if (!spec.For(command)) continue;
    Value value;
    if (!spec.default_text.empty()) value.texts.emplace_back(spec.default_text);
    if (spec.type == OptionType::kFlag) value.texts.emplace_back("false");
    value.origin = fmt::format("--{}", spec.name);
    values_.emplace(spec.name, std::move(value));
  }
}

Result<Options> Options::Load(Command command, const std::vector<GivenOption>& command_line,
                              const Environment& environment) {
  std::vector<GivenOption> all;
  if (const std::string file = ConfigFileName(command_line, environment); !file.empty()) {
    ASSIGN_OR_RETURN(all, ReadConfigFile(file));
  }
  for (const OptionSpec& spec : AllOptions()) {
    if (!spec.For(command) || spec.traits.command_line_only) continue;
    if (std::optional<GivenOption> given = FromEnvironment(spec, environment)) {
      all.push_back(std::move(*given));
    }
  }
  all.insert(all.end(), command_line.begin(), command_line.end());

  Options options(command);
  for (const GivenOption& given : all) {  // by ascending precedence
    const OptionSpec* spec = FindOption(command, given.name);
    if (spec == nullptr) continue;  // of a config file that serves other commands, too
    for (const std::string& text : given.texts) {
      RETURN_IF_ERROR(CheckOptionValue(*spec, text, given.origin));
    }
    options.values_[given.name] = {given.texts, given.source, given.origin};
  }
  for (const OptionSpec& spec : AllOptions()) {
    if (spec.For(command) && spec.traits.required && !options.Given(spec.name)) {
      return InvalidArgument(
          spec.traits.positional
              ? fmt::format("{} is missing: {}", spec.value_name, spec.help)
              : fmt::format("--{} {} is missing: {}", spec.name, spec.value_name, spec.help));
    }
  }
  return options;
}

OptionSource Options::Source(std::string_view name) const {
  const auto found = values_.find(name);
  CHECK(found != values_.end());
  return found->second.source;
}

std::string Options::Origin(std::string_view name) const {
  const auto found = values_.find(name);
  CHECK(found != values_.end());
  return found->second.origin;
}

const Options::Value& Options::Get(std::string_view name, OptionType type) const {
  const auto found = values_.find(name);
  const OptionSpec* spec = FindOption(command_, name);
  CHECK(found != values_.end() && spec != nullptr && spec->type == type);
  return found->second;
}

bool Options::Flag(std::string_view name) const {
  const Value& value = Get(name, OptionType::kFlag);
  return !value.texts.empty() && ParseSwitch(value.texts.back()).value_or(false);
}

bool Options::Switch(std::string_view name) const {
  return ParseSwitch(Text(name)).value_or(false);
}

std::string Options::Text(std::string_view name) const {
  const OptionSpec* spec = FindOption(command_, name);
  CHECK(spec != nullptr && (spec->type == OptionType::kText || spec->type == OptionType::kChoice));
  const Value& value = Get(name, spec->type);
  return value.texts.empty() ? "" : value.texts.back();
}

const std::vector<std::string>& Options::TextList(std::string_view name) const {
  return Get(name, OptionType::kTextList).texts;
}

int64_t Options::Integer(std::string_view name) const {
  const Value& value = Get(name, OptionType::kInteger);
  return value.texts.empty() ? 0 : ParseInteger(value.texts.back()).value_or(0);
}

double Options::Number(std::string_view name) const {
  const Value& value = Get(name, OptionType::kNumber);
  return value.texts.empty() ? 0 : ParseNumber(value.texts.back()).value_or(0);
}

uint64_t Options::Bytes(std::string_view name) const {
  const Value& value = Get(name, OptionType::kBytes);
  return value.texts.empty() ? 0 : ParseBytes(value.texts.back()).value();
}

ByteBudget Options::Budget(std::string_view name) const {
  const Value& value = Get(name, OptionType::kByteBudget);
  return value.texts.empty() ? ByteBudget{} : ParseByteBudget(value.texts.back()).value();
}

int64_t Options::DurationNs(std::string_view name) const {
  const Value& value = Get(name, OptionType::kDuration);
  return value.texts.empty() ? 0 : ParseDurationNs(value.texts.back()).value();
}

LinkSetting Options::Link(std::string_view name) const {
  const Value& value = Get(name, OptionType::kLink);
  return value.texts.empty() ? LinkSetting{} : ParseLink(value.texts.back()).value();
}

Options Options::With(const std::vector<std::pair<std::string, std::string>>& values) const {
  Options copy = *this;
  for (const auto& [name, text] : values) {
    const OptionSpec* spec = FindOption(command_, name);
    CHECK(spec != nullptr && CheckOptionValue(*spec, text, name).ok());
    copy.values_[name] = {{text}, OptionSource::kCommandLine, "--" + name};
  }
  return copy;
}

Options Options::Without(std::string_view name) const {
  Options copy = *this;
  const Options defaults(command_);
  const auto found = copy.values_.find(name);
  CHECK(found != copy.values_.end());
  found->second = defaults.values_.find(name)->second;
  return copy;
}

std::vector<std::string> Options::ArgumentsFor(Command command) const {
  std::vector<std::string> arguments;
  for (const auto& [name, value] : values_) {
    const OptionSpec* spec = FindOption(command, name);
    if (spec == nullptr || spec->traits.command_line_only ||
        value.source == OptionSource::kDefault) {
      continue;
    }
    if (spec->type == OptionType::kFlag) {
      if (Flag(name)) arguments.push_back("--" + name);
      continue;
    }
    for (const std::string& text : value.texts) {
      arguments.push_back("--" + name);
      arguments.push_back(text);
    }
  }
  return arguments;
}

std::string Options::ProvenanceJson() const {
  nlohmann::json all = nlohmann::json::object();
  for (const auto& [name, value] : values_) {
    nlohmann::json entry;
    if (value.texts.size() > 1) {
      entry["value"] = value.texts;
    } else {
      entry["value"] = value.texts.empty() ? nlohmann::json() : nlohmann::json(value.texts.front());
    }
    entry["source"] = OptionSourceName(value.source);
    all[name] = std::move(entry);
  }
  return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace expertflow

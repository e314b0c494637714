// The options of one command with their values and where each value came from. Precedence: command
// line, environment (EXPERTFLOW_<NAME>), config file, default. Immutable once loaded.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "common/units.h"
#include "launch/option_table.h"
#include "launch/option_values.h"

namespace expertflow {

// In order of precedence, lowest first.
enum class OptionSource { kDefault, kConfigFile, kEnvironment, kCommandLine };
// "default", "config file", "environment", "command line"
std::string_view OptionSourceName(OptionSource source);

// A value as somebody wrote it.
struct GivenOption {
  std::string name;
  std::vector<std::string> texts;  // more than one only for lists
  OptionSource source = OptionSource::kCommandLine;
  std::string origin;  // for messages: "--workers", "EXPERTFLOW_WORKERS", "job.toml:3: workers"
};

// Null for a variable that is not set.
using Environment = std::function<const char*(const std::string& name)>;

// "expert-memory" -> "EXPERTFLOW_EXPERT_MEMORY"
std::string EnvironmentName(std::string_view option);

class Options {
 public:
  // Merges and checks. Adds what environment and config file say to what the command line says.
  static Result<Options> Load(Command command, const std::vector<GivenOption>& command_line,
                              const Environment& environment);

  Command command() const { return command_; }
  OptionSource Source(std::string_view name) const;
  // Somebody set it.
  bool Given(std::string_view name) const { return Source(name) != OptionSource::kDefault; }
  // "--workers", "EXPERTFLOW_WORKERS", ...: how a message names the option.
  std::string Origin(std::string_view name) const;

  // REQUIRES, for all of these: the command has the option, and it is of that type. An option
  // without value and default is empty, 0 or false.
  bool Flag(std::string_view name) const;
  bool Switch(std::string_view name) const;  // a choice of on|off
  std::string Text(std::string_view name) const;
  const std::vector<std::string>& TextList(std::string_view name) const;
  int64_t Integer(std::string_view name) const;
  double Number(std::string_view name) const;
  uint64_t Bytes(std::string_view name) const;
  ByteBudget Budget(std::string_view name) const;
  int64_t DurationNs(std::string_view name) const;
  LinkSetting Link(std::string_view name) const;

  // The same options with some values replaced, as if given on the command line.
  // REQUIRES: names and values are valid
  Options With(const std::vector<std::pair<std::string, std::string>>& values) const;
  // As if nobody had set it.
  Options Without(std::string_view name) const;

  // Arguments that give the set options to another command, as far as it has them; options of the
  // command line only are left out.
  std::vector<std::string> ArgumentsFor(Command command) const;
  // {"workers": {"value": "2", "source": "command line"}, ...}
  std::string ProvenanceJson() const;

 private:
  struct Value {
    std::vector<std::string> texts;
    OptionSource source = OptionSource::kDefault;
    std::string origin;
  };

  explicit Options(Command command);
  const Value& Get(std::string_view name, OptionType type) const;

  Command command_;
  std::map<std::string, Value, std::less<>> values_;  // every option of the command
};

}  // namespace expertflow

// The one table of every option of every command: name, type, unit, default and help. The command
// line, the environment (EXPERTFLOW_<NAME>) and the config file all go by it, and so does --help.
// Immutable; any thread may read.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "common/status.h"

namespace expertflow {

enum class Command : uint32_t {
  kRun = 1U << 0,
  kCompare = 1U << 1,
  kInspect = 1U << 2,
  kPack = 1U << 3,
  kSynth = 1U << 4,
  kTokenize = 1U << 5,
  kStatus = 1U << 6,
  kClean = 1U << 7,
  kCoordinator = 1U << 8,
  kStore = 1U << 9,
  kWorker = 1U << 10,
  kTrace = 1U << 11,
  kBench = 1U << 12,
  kReplay = 1U << 13,
  kTrain = 1U << 14,
  kServe = 1U << 15,
  kPerplexity = 1U << 16,
  kSimulate = 1U << 17,
  kChat = 1U << 18,
  kTop = 1U << 19,
};

struct CommandInfo {
  Command command;
  std::string_view name;
  std::string_view summary;  // one line, in the list of commands
  std::string_view details;  // more lines of its own --help; may be empty
};

std::span<const CommandInfo> AllCommands();
const CommandInfo& InfoOf(Command command);

enum class OptionType {
  kFlag,        // present or not; true, false elsewhere than on the command line
  kText,        // not empty
  kTextList,    // may be repeated
  kChoice,      // one of value_name's words
  kInteger,     // within [min, max]
  kNumber,      // within [min, max]
  kBytes,       // "64MiB"
  kByteBudget,  // "64MiB" or "30%"
  kDuration,    // "10s"
  kLink,        // "12GB/s,10us": rate and, if wanted, latency
};

struct OptionSpec {
  std::string_view name;  // without dashes
  OptionType type = OptionType::kText;
  uint32_t commands = 0;        // Command bits
  std::string_view value_name;  // in help, with the unit; "a|b" for a choice
  // What holds when nobody sets the option; empty: nothing, `default_note` then says what happens.
  std::string_view default_text;
  std::string_view help;
  struct Traits {
    double min = 0;
    double max = std::numeric_limits<double>::infinity();
    char short_name = 0;
    bool positional = false;
    bool required = false;
    // Not taken from environment or file: it says what to do now, not how a job is set up.
    bool command_line_only = false;
    std::string_view default_note = {};
  } traits = {};

  bool For(Command command) const { return (commands & static_cast<uint32_t>(command)) != 0; }
};

std::span<const OptionSpec> AllOptions();
// Null when the command has no such option. `name` without dashes.
const OptionSpec* FindOption(Command command, std::string_view name);
// True when any command has the option (a config file may serve several).
bool IsOptionName(std::string_view name);

// "an integer from 1 to 256", "one of auto, avx2": what an error says was expected.
std::string ExpectedValue(const OptionSpec& spec);
// ok, or kInvalidArgument: "<origin>: expected <what>, found "<text>"".
Status CheckOptionValue(const OptionSpec& spec, std::string_view text, std::string_view origin);

}  // namespace expertflow

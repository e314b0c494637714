// The command line, split into options by the table (CLI11 behind it, kept out of this header).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "launch/options.h"

namespace expertflow {

struct CommandLine {
  bool help = false;
  std::vector<GivenOption> given;
};

// `arguments` without the program's and the command's name. Unknown options, missing values and
// surplus words are kInvalidArgument; values are not looked at.
Result<CommandLine> ParseCommandLine(Command command, std::span<const std::string> arguments);

// What `expertflow <command> --help` prints, and `expertflow --help`.
std::string HelpText(Command command);
std::string OverviewText();

}  // namespace expertflow

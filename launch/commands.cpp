#include "launch/commands.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string_view>
#include <system_error>
#include <vector>

#include "common/log.h"
#include "common/mapped_file.h"
#include "launch/command_line.h"
#include "launch/environment.h"

namespace expertflow {
namespace {

int Dispatch(const Options& options) {
  switch (options.command()) {
    case Command::kRun: return RunCommand(options);
    case Command::kServe: return ServeCommand(options);
    case Command::kCompare: return CompareCommand(options);
    case Command::kTop: return TopCommand(options);
    case Command::kChat: return ChatCommand(options);
    case Command::kPerplexity: return PerplexityCommand(options);
    case Command::kInspect: return InspectCommand(options);
    case Command::kPack: return PackCommand(options);
    case Command::kSynth: return SynthCommand(options);
    case Command::kTokenize: return TokenizeCommand(options);
    case Command::kStatus: return StatusCommand(options);
    case Command::kTrace: return TraceCommand(options);
    case Command::kTrain: return TrainCommand(options);
    case Command::kReplay: return ReplayCommand(options);
    case Command::kSimulate: return SimulateCommand(options);
    case Command::kBench: return BenchCommand(options);
    case Command::kClean: return CleanCommand(options);
    case Command::kCoordinator: return CoordinatorCommand(options);
    case Command::kStore: return StoreCommand(options);
    case Command::kWorker: return WorkerCommand(options);
  }
  return kExitBadInput;
}

int FailPlain(std::string_view command, const Status& status) {
  fmt::print(stderr, "expertflow{}{}: {}\n", command.empty() ? "" : " ", command, status.message());
  return kExitBadInput;
}

const CommandInfo* FindCommand(std::string_view name) {
  for (const CommandInfo& info : AllCommands()) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

bool WasGiven(const CommandLine& line, std::string_view name) {
  return std::any_of(line.given.begin(), line.given.end(),
                     [name](const GivenOption& given) { return given.name == name; });
}

bool IsRole(Command command) {
  return command == Command::kCoordinator || command == Command::kStore ||
         command == Command::kWorker;
}

}  // namespace

int ExitCodeFor(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kNotFound
             ? kExitBadInput
             : kExitFailure;
}

int Fail(const Options& options, const Status& status, int exit_code) {
  fmt::print(stderr, "expertflow {}: {}\n", InfoOf(options.command()).name, status.message());
  return exit_code;
}

Status WriteJsonOption(const Options& options, const std::string& json) {
  const std::string file = options.Text("json");
  if (file.empty()) return OkStatus();
  if (file == "-") {
    fmt::print("{}\n", json);
    return OkStatus();
  }
  // A device or a pipe is written to, not replaced.
  std::error_code error;
  if (std::filesystem::exists(file, error) && !std::filesystem::is_regular_file(file, error)) {
    std::ofstream stream(file, std::ios::app);
    stream << json << '\n';
    stream.flush();
    if (!stream) return FailedPrecondition(fmt::format("--json {}: cannot be written", file));
    return OkStatus();
  }
  return WriteFileAtomically(file, json + "\n");
}

int Main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty()) {
    fmt::print(stderr, "{}", OverviewText());
    return kExitBadInput;
  }
  if (words[0] == "--version") {
    fmt::print("expertflow {}\n", EXPERTFLOW_VERSION);
    return kExitOk;
  }
  if (words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    fmt::print("{}", OverviewText());
    return kExitOk;
  }
  const CommandInfo* info = FindCommand(words[0]);
  if (info == nullptr) {
    return FailPlain(
        "", InvalidArgument(fmt::format("unknown command {}; see expertflow --help", words[0])));
  }
  const Result<CommandLine> line = ParseCommandLine(info->command, std::span(words).subspan(1));
  if (!line.ok()) return FailPlain(info->name, line.status());
  if (line->help) {
    fmt::print("{}", HelpText(info->command));
    return kExitOk;
  }
  const Result<Options> options =
      Options::Load(info->command, line->given,
                    [](const std::string& name) { return std::getenv(name.c_str()); });
  if (!options.ok()) return FailPlain(info->name, options.status());
  // Of the processes that mpirun starts, one says it for all.
  if (!IsRole(info->command) || info->command == Command::kCoordinator || WasGiven(*line, "join")) {
    for (const std::string& warning : IgnoredVariables(OwnVariables())) {
      fmt::print(stderr, "expertflow {}: warning: {}\n", info->name, warning);
    }
  }
  if (!IsRole(info->command)) InitLog(*ParseLogLevel(options->Text("log-level")), "");
  return Dispatch(*options);
}

}  // namespace expertflow

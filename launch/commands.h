// The commands of the program, one file each. A command prints its own errors and returns the
// process's exit code.
#pragma once

#include <string>

#include "common/status.h"
#include "launch/options.h"

namespace expertflow {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitBadInput = 2;
inline constexpr int kExitSignal = 128;  // plus the signal's number

int RunCommand(const Options& options);      // run
int ServeCommand(const Options& options);    // serve
int TopCommand(const Options& options);      // top
int ChatCommand(const Options& options);     // chat
int CompareCommand(const Options& options);  // compare
int PerplexityCommand(const Options& options);
int InspectCommand(const Options& options);
int PackCommand(const Options& options);
int SynthCommand(const Options& options);
int TokenizeCommand(const Options& options);
int StatusCommand(const Options& options);
int TraceCommand(const Options& options);
int TrainCommand(const Options& options);
int ReplayCommand(const Options& options);
int SimulateCommand(const Options& options);
int BenchCommand(const Options& options);
int BenchServeCommand(const Options& options);  // bench serve
int CleanCommand(const Options& options);
// The roles end the process themselves.
int CoordinatorCommand(const Options& options);
int StoreCommand(const Options& options);
int WorkerCommand(const Options& options);

// Bad input (kInvalidArgument, kNotFound) or a failure.
int ExitCodeFor(const Status& status);
// One line on standard error: "expertflow <command>: <message>". Returns `exit_code`.
int Fail(const Options& options, const Status& status, int exit_code);
inline int Fail(const Options& options, const Status& status) {
  return Fail(options, status, ExitCodeFor(status));
}
// Writes `json` to the file that --json names, "-" being standard output. Nothing without --json.
Status WriteJsonOption(const Options& options, const std::string& json);

// Everything but the exit: parses `argc` and `argv` and runs the command.
int Main(int argc, char** argv);

}  // namespace expertflow

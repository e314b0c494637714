// Helpers of the launch tests.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "launch/command_line.h"
#include "launch/options.h"

namespace expertflow {

using Variables = std::map<std::string, std::string>;

inline Environment EnvironmentOf(const Variables& variables) {
  return [&variables](const std::string& name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

// As the program does it, from words and variables.
inline Result<Options> LoadOptions(Command command, const std::vector<std::string>& words,
                                   const Variables& variables = {}) {
  ASSIGN_OR_RETURN(const CommandLine line, ParseCommandLine(command, words));
  return Options::Load(command, line.given, EnvironmentOf(variables));
}

// A folder that goes with the object.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }
  // Returns the file's path.
  std::string Write(const std::string& name, const std::string& content) const;

 private:
  std::string path_;
};

}  // namespace expertflow

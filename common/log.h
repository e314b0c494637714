// Logging: one line where an error is decided, on stderr (spdlog behind it, kept out of this
// header). A process sets its role once ("coordinator", "worker 1"); every line carries it.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"

namespace expertflow {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// "debug", "info", "warning", "error", "off"
Result<LogLevel> ParseLogLevel(std::string_view text);
std::string_view LogLevelName(LogLevel level);

// Call once, before other threads start. `role` may be empty.
void InitLog(LogLevel level, std::string role);
bool LogEnabled(LogLevel level);
void LogMessage(LogLevel level, std::string_view message);

struct KeptLogLine {
  int64_t time_ms = 0;  // since 1970, UTC
  LogLevel level = LogLevel::kInfo;
  std::string text;
};
// From now on the latest `lines` lines are kept, those of level kInfo too that are not printed.
void KeepLog(size_t lines);
std::vector<KeptLogLine> KeptLog();  // the oldest first; any thread

template <typename... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  if (LogEnabled(LogLevel::kDebug)) {
    LogMessage(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
  }
}
template <typename... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  if (LogEnabled(LogLevel::kInfo)) {
    LogMessage(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
  }
}
template <typename... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  LogMessage(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  LogMessage(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace expertflow

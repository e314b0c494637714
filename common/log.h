// Logging: one line where an error is decided, on stderr (spdlog behind it, kept out of this
// header). A process sets its role once ("coordinator", "worker 1"); every line carries it.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

#include "common/status.h"

namespace expertflow {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// "debug", "info", "warning", "error", "off"
Result<LogLevel> ParseLogLevel(std::string_view text);

// Call once, before other threads start. `role` may be empty.
void InitLog(LogLevel level, std::string role);
bool LogEnabled(LogLevel level);
void LogMessage(LogLevel level, std::string_view message);

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

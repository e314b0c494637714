#include "common/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

namespace expertflow {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
    case LogLevel::kOff: return spdlog::level::off;
  }
  return spdlog::level::info;
}

spdlog::logger& Logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto created = std::make_shared<spdlog::logger>(
        "expertflow", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    created->set_pattern("%H:%M:%S.%e %^%l%$ %v");
    created->set_level(spdlog::level::warn);
    created->flush_on(spdlog::level::debug);
    return created;
  }();
  return *logger;
}

}  // namespace

Result<LogLevel> ParseLogLevel(std::string_view text) {
  if (text == "debug") return LogLevel::kDebug;
  if (text == "info") return LogLevel::kInfo;
  if (text == "warning") return LogLevel::kWarning;
  if (text == "error") return LogLevel::kError;
  if (text == "off") return LogLevel::kOff;
  return InvalidArgument(
      fmt::format("log level '{}' is not one of debug, info, warning, error, off", text));
}

void InitLog(LogLevel level, std::string role) {
  Logger().set_level(ToSpdlog(level));
  Logger().set_pattern(role.empty() ? "%H:%M:%S.%e %l: %v" : "%H:%M:%S.%e [" + role + "] %l: %v");
}

bool LogEnabled(LogLevel level) {
  return Logger().should_log(ToSpdlog(level));
}

void LogMessage(LogLevel level, std::string_view message) {
  Logger().log(ToSpdlog(level), message);
}

}  // namespace expertflow

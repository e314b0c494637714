#include "common/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

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
  static std::shared_ptr<spdlog::logger> logger = [] {
    auto created = std::make_shared<spdlog::logger>(
        "expertflow", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    created->set_pattern("%H:%M:%S.%e %^%l%$ %v");
    created->set_level(spdlog::level::warn);
    created->flush_on(spdlog::level::debug);
    return created;
  }();
  return *logger;
}

struct KeptLines {
  std::atomic<size_t> lines_max{0};
  std::mutex mutex;
  std::deque<KeptLogLine> lines;  // guarded by mutex
};

KeptLines& Kept() {
  static KeptLines kept;
  return kept;
}

constexpr std::array<std::string_view, 5> kLevels = {"debug", "info", "warning", "error", "off"};

}  // namespace

Result<LogLevel> ParseLogLevel(std::string_view text) {
  for (size_t i = 0; i < kLevels.size(); ++i) {
    if (text == kLevels[i]) return static_cast<LogLevel>(i);
  }
  return InvalidArgument(
      fmt::format("log level '{}' is not one of debug, info, warning, error, off", text));
}

std::string_view LogLevelName(LogLevel level) {
  return kLevels[static_cast<size_t>(level)];
}

void InitLog(LogLevel level, std::string role) {
  Logger().set_level(ToSpdlog(level));
  const std::string of_role = role.empty() ? "" : " [" + std::move(role) + "]";
  Logger().set_pattern("%H:%M:%S.%e" + of_role + " %l: %v");
}

bool LogEnabled(LogLevel level) {
  return Logger().should_log(ToSpdlog(level)) ||
         (level != LogLevel::kDebug && Kept().lines_max > 0);
}

void LogMessage(LogLevel level, std::string_view message) {
  Logger().log(ToSpdlog(level), message);
  KeptLines& kept = Kept();
  if (level == LogLevel::kDebug || kept.lines_max == 0) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::lock_guard lock(kept.mutex);
  kept.lines.push_back({std::chrono::duration_cast<std::chrono::milliseconds>(now).count(), level,
                        std::string(message)});
  if (kept.lines.size() > kept.lines_max) kept.lines.pop_front();
}

void KeepLog(size_t lines) {
  Kept().lines_max = lines;
}

std::vector<KeptLogLine> KeptLog() {
  KeptLines& kept = Kept();
  const std::lock_guard lock(kept.mutex);
  return {kept.lines.begin(), kept.lines.end()};
}

}  // namespace expertflow

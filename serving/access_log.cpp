#include "serving/access_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/clock.h"
#include "serving/json_text.h"

namespace expertflow {
namespace {

constexpr size_t kPathShown = 200;
constexpr size_t kMethodShown = 16;

std::string TimeOfDay() {
  const auto now = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
  const auto seconds = std::chrono::floor<std::chrono::seconds>(now);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03d}Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(seconds)),
                     (now - seconds).count());
}

double Milliseconds(int64_t ns) {
  return static_cast<double>(ns) / 1e6;
}

}  // namespace

void AccessLog::Begin(const HttpRequest& request, size_t key) {
  Entry& entry = open_[request.connection];
  entry = {};
  entry.method = request.method.substr(0, kMethodShown);
  entry.path = request.path.substr(0, kPathShown);
  entry.request = request.id;
  entry.trace = request.trace.trace_id;
  entry.key = key;
  entry.began_ns = NowNs();
}

void AccessLog::AddTokens(HttpConnectionId connection, uint64_t prompt, uint64_t completion) {
  const auto entry = open_.find(connection);
  if (entry == open_.end()) return;
  entry->second.prompt_tokens = prompt;
  entry->second.completion_tokens = completion;
}

void AccessLog::Failed(HttpConnectionId connection, std::string_view code) {
  if (const auto entry = open_.find(connection); entry != open_.end()) {
    entry->second.outcome = code;
  }
}

void AccessLog::Gone(HttpConnectionId connection) {
  Failed(connection, "client gone");
  End(connection);
}

void AccessLog::Refused(int status) {
  write_(fmt::format("{{\"time\":\"{}\",\"status\":{},\"outcome\":\"refused\"}}\n", TimeOfDay(),
                     status));
}

void AccessLog::Respond(HttpConnectionId connection, const HttpResponse& response) {
  const auto entry = open_.find(connection);
  if (entry != open_.end()) {
    entry->second.status = response.status;
    entry->second.bytes = response.body.size();
    if (response.status >= 400) entry->second.outcome = "refused";
    End(connection);
  }
  next_.Respond(connection, response);
}

void AccessLog::StartStream(HttpConnectionId connection, std::string_view content_type) {
  if (const auto entry = open_.find(connection); entry != open_.end()) {
    entry->second.status = 200;
    entry->second.first_ns = NowNs();
  }
  next_.StartStream(connection, content_type);
}

void AccessLog::Send(HttpConnectionId connection, std::string_view bytes) {
  if (const auto entry = open_.find(connection); entry != open_.end()) {
    entry->second.bytes += bytes.size();
  }
  next_.Send(connection, bytes);
}

void AccessLog::EndStream(HttpConnectionId connection) {
  End(connection);
  next_.EndStream(connection);
}

void AccessLog::End(HttpConnectionId connection) {
  auto found = open_.extract(connection);
  if (!found) return;
  const Entry& entry = found.mapped();
  std::string line = fmt::format(
      R"({{"time":"{}","request":"{}","method":{},"path":{},"status":{},"outcome":{},"key":{},)"
      R"("duration_ms":{:.3f},"bytes":{})",
      TimeOfDay(), entry.request, JsonString(entry.method), JsonString(entry.path), entry.status,
      JsonString(entry.outcome), entry.key, Milliseconds(NowNs() - entry.began_ns), entry.bytes);
  if (entry.first_ns != 0) {
    line += fmt::format(R"(,"first_ms":{:.3f})", Milliseconds(entry.first_ns - entry.began_ns));
  }
  if (entry.prompt_tokens != 0) {
    line += fmt::format(R"(,"prompt_tokens":{},"completion_tokens":{})", entry.prompt_tokens,
                        entry.completion_tokens);
  }
  if (!entry.trace.empty()) line += fmt::format(R"(,"trace":"{}")", entry.trace);
  write_(line + "}\n");
}

}  // namespace expertflow

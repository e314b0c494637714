#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/process.h"
#include "launch/commands.h"
#include "launch/load/answer_reader.h"
#include "launch/load/http_exchange.h"
#include "launch/load/server_options.h"

namespace expertflow {
namespace {

using Json = nlohmann::ordered_json;

// Lines of standard input; a signal ends the waiting for one.
class LineReader {
 public:
  explicit LineReader(SignalWatcher& signals) : signals_(signals) {}

  // Nothing at the end of the input and after a signal. A backslash at its end joins the next line.
  std::optional<std::string> Next(std::string_view prompt) {
    Show(prompt);
    std::string joined;
    for (;;) {
      const size_t end = waiting_.find('\n');
      if (end != std::string::npos) {
        joined += waiting_.substr(0, end);
        waiting_.erase(0, end + 1);
        if (!joined.ends_with('\\')) return joined;
        joined.back() = '\n';
        Show(". ");
        continue;
      }
      std::array<pollfd, 2> ready = {{{STDIN_FILENO, POLLIN, 0}, {signals_.fd(), POLLIN, 0}}};
      if (::poll(ready.data(), ready.size(), -1) < 0 && errno != EINTR) return std::nullopt;
      if (signals_.Take()) return std::nullopt;
      if (ready[0].revents == 0) continue;
      std::array<char, 4096> buffer;
      const ssize_t count = ::read(STDIN_FILENO, buffer.data(), buffer.size());
      if (count <= 0) {
        joined += std::exchange(waiting_, "");
        if (joined.empty()) return std::nullopt;
        return joined;
      }
      waiting_.append(buffer.data(), static_cast<size_t>(count));
    }
  }

 private:
  static void Show(std::string_view prompt) {
    if (::isatty(STDIN_FILENO) == 0) return;
    fmt::print("{}", prompt);
    std::fflush(stdout);
  }

  SignalWatcher& signals_;
  std::string waiting_;
};

class ChatClient {
 public:
  ChatClient(const Options& options, const ServerTarget& target, SignalWatcher& signals)
      : options_(options), target_(target), signals_(signals) {}

  void SetSystem(const std::string& text) { system_ = text; }
  void Clear() { messages_ = Json::array(); }
  // Prints the answer as it comes. After an error the question is forgotten.
  Status Ask(const std::string& question);

 private:
  std::string Request() const;
  Status FetchAnswer();
  void OnJson(std::string_view json);

  const Options& options_;
  const ServerTarget& target_;
  SignalWatcher& signals_;
  std::string system_;
  Json messages_ = Json::array();
  // Of the answer that comes.
  std::string answer_;
  std::string error_;
};

std::string ChatClient::Request() const {
  Json messages = Json::array();
  if (!system_.empty()) messages.push_back({{"role", "system"}, {"content", system_}});
  for (const Json& message : messages_) messages.push_back(message);
  Json body = {{"messages", std::move(messages)},
               {"temperature", options_.Number("temperature")},
               {"stream", true}};
  if (const std::string name = options_.Text("model-name"); !name.empty()) body["model"] = name;
  if (const int64_t tokens = options_.Integer("max-tokens"); tokens > 0) {
    body["max_tokens"] = tokens;
  }
  const std::string text = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  return target_.url.Head("POST", "/v1/chat/completions", options_.Text("api-key")) +
         fmt::format(
             "Connection: close\r\nContent-Type: application/json\r\n"
             "Content-Length: {}\r\n\r\n{}",
             text.size(), text);
}

void ChatClient::OnJson(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return;
  if (const auto error = json.find("error"); error != json.end()) {
    const bool has_message =
        error->is_object() && error->contains("message") && (*error)["message"].is_string();
    error_ = has_message ? (*error)["message"].get<std::string>() : error->dump();
    return;
  }
  const auto choices = json.find("choices");
  if (choices == json.end() || !choices->is_array() || choices->empty()) return;
  const Json& choice = choices->front();
  if (!choice.is_object() || !choice.contains("delta") || !choice["delta"].is_object()) return;
  const auto content = choice["delta"].find("content");
  if (content == choice["delta"].end() || !content->is_string()) return;
  const auto& piece = content->get_ref<const std::string&>();
  std::fwrite(piece.data(), 1, piece.size(), stdout);
  std::fflush(stdout);
  answer_ += piece;
}

Status ChatClient::FetchAnswer() {
  AnswerReader reader([this](std::string_view json) { OnJson(json); });
  const Status status = Exchange(
      target_, Request(),
      {.silence_ns = options_.DurationNs("answer-timeout"), .signals = &signals_}, &reader);
  if (status.code() == StatusCode::kCancelled) return OkStatus();  // the server sees it, and stops
  RETURN_IF_ERROR(status);
  if (error_.empty() && reader.status() / 100 != 2) {
    error_ = fmt::format("the server answers with status {}", reader.status());
  }
  if (error_.empty()) return OkStatus();
  return Unavailable(fmt::format("{}: {}", target_.url.Text(), error_));
}

Status ChatClient::Ask(const std::string& question) {
  messages_.push_back({{"role", "user"}, {"content", question}});
  answer_.clear();
  error_.clear();
  const Status status = FetchAnswer();
  if (!answer_.empty()) fmt::print("\n");
  std::fflush(stdout);
  if (status.ok()) {
    messages_.push_back({{"role", "assistant"}, {"content", answer_}});
  } else {
    messages_.erase(messages_.size() - 1);
  }
  return status;
}

}  // namespace

int ChatCommand(const Options& options) {
  const Result<ServerTarget> target = ServerTargetFrom(options);
  if (!target.ok()) return Fail(options, target.status());
  Result<SignalWatcher> signals = SignalWatcher::Create();
  if (!signals.ok()) return Fail(options, signals.status(), kExitFailure);
  ChatClient client(options, *target, *signals);
  client.SetSystem(options.Text("system"));
  LineReader lines(*signals);
  constexpr std::string_view kSystem = "/system ";
  int exit_code = kExitOk;
  while (const std::optional<std::string> line = lines.Next("> ")) {
    if (line->find_first_not_of(" \t\r\n") == std::string::npos) continue;
    if (*line == "/exit") break;
    if (*line == "/clear") {
      client.Clear();
    } else if (line->starts_with(kSystem)) {
      client.SetSystem(line->substr(kSystem.size()));
    } else if (line->starts_with('/') && line->find(' ') == std::string::npos) {
      fmt::print(stderr, "there are /clear, /system TEXT and /exit\n");
    } else if (const Status status = client.Ask(*line); !status.ok()) {
      exit_code = Fail(options, status, kExitFailure);
    } else {
      exit_code = kExitOk;
    }
  }
  return exit_code;
}

}  // namespace expertflow

// The OpenAI-compatible API over one job: HTTP requests become requests of the job, and what the
// job says becomes answers. No sockets, no processes, no thread: it is told of every event, and
// talks through HttpReplies and JobPort. One thread, that of the HTTP server.
//
// The folder: http/ (the server), api (routes and running requests), completion_request and
// request_fields (what clients send), model_template and chat_template/ (chats to prompts),
// completion_text, api_error and json_text (what they get), page/ (what a browser shows).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "model/tokenizer/tokenizer.h"
#include "serving/access_log.h"
#include "serving/api_error.h"
#include "serving/completion_request.h"
#include "serving/completion_text.h"
#include "serving/http/http.h"
#include "serving/model_template.h"
#include "serving/rate_limiter.h"
#include "serving/token_logprobs.h"
#include "serving/tool_calls.h"
#include "transport/messages.h"

namespace expertflow {

// The coordinator; never blocks. A job that is gone takes everything and says nothing.
class JobPort {
 public:
  virtual ~JobPort() = default;
  virtual void ToJob(const Message& message) = 0;
};

// What may change while the server runs.
struct ApiKeys {
  std::vector<std::string> keys;   // empty: anybody may use it
  std::vector<std::string> admin;  // may change the configuration, too; empty: nobody may
};

struct ApiOptions {
  std::string model;          // name
  int64_t vocab = 0;          // of the model
  int64_t positions_max = 0;  // prompt and generated tokens of a sequence
  ApiKeys keys = {};
  int64_t requests_per_minute = 0;      // of each key; 0: no limit
  std::string requested_config = "{}";  // JSON: the command's options and where they came from
  std::function<Result<ApiKeys>()> read_keys = {};  // anew, from the files
  std::function<Status()> reload_certificate = {};  // null: no TLS
  // How chats become prompts; an error says why they cannot.
  Status chat_status;
  ModelTemplate chat = {};
};

class Api final : public HttpHandler {
 public:
  // REQUIRES: tokenizer and job outlive it
  Api(ApiOptions options, const Tokenizer& tokenizer, JobPort& job);
  // Where answers go. REQUIRES: called before the first event
  void SetReplies(HttpReplies* replies) { replies_ = replies; }
  // The same, for replies that note every request.
  void SetAccessLog(AccessLog* log) { replies_ = access_log_ = log; }

  void OnRequest(const HttpRequest& request) override;
  void OnGone(HttpConnectionId connection) override;
  HttpResponse Refusal(int status, std::string_view what) const override;

  void OnJobMessage(const Message& message);
  // A few times a second: keep-alive comments, questions that nobody answers.
  void OnTick(int64_t now_ns);
  // From now on new requests are refused.
  void Drain() { draining_ = true; }
  // Ends what still runs with an error.
  void FailAll(const Status& status);
  size_t running() const { return generations_.size(); }

 private:
  struct Choice {
    uint64_t request = 0;    // of the job
    AnswerChoice answer;     // its text only when the answer is not a stream
    int64_t text_bytes = 0;  // generated so far
    uint32_t prompt_tokens = 0;
    std::unique_ptr<TokenLogprobs> logprobs = {};  // null: not asked for
    std::unique_ptr<ToolCallReader> tools = {};    // null: the request has none
    bool streamed = false;                         // a piece of it was sent
    bool done = false;
  };
  // A completion or chat in progress: one for each connection at most.
  struct Generation {
    AnswerHead head;
    std::vector<Choice> choices;
    size_t open = 0;  // choices that are not done
    int32_t choices_per_prompt = 1;
    AnswerUsage usage;
    bool stream = false;
    bool include_usage = false;
    bool prompt_only = false;  // what is generated does not show
    bool stream_started = false;
    int64_t started_ns = 0;
    int64_t sent_ns = 0;
  };
  // A question to the coordinator, which answers in order.
  struct Question {
    HttpConnectionId connection;
    bool health = false;
    bool answered = false;  // without waiting for it
    int64_t asked_ns = 0;
  };

  // The place of the caller's key among `keys`, from 1; 0: it has none of them.
  static size_t KeyOf(const HttpRequest& request, const std::vector<std::string>& keys);
  // False: it was answered.
  bool Admit(const HttpRequest& request);
  std::string NotReady() const;  // why; empty when the job takes requests
  void Fail(HttpConnectionId connection, const ApiError& error);

  struct PathInfo {
    std::string_view path;
    std::string_view methods;  // "GET, PATCH"
  };
  static const PathInfo* Find(std::string_view path);
  void Route(const HttpRequest& request);
  void OnGet(const HttpRequest& request);
  void OnPost(const HttpRequest& request);
  void AnswerConfig(HttpConnectionId connection);
  void ChangeConfig(const HttpRequest& request);
  void AnswerHealth(HttpConnectionId connection, const std::vector<std::string>& reasons);
  void AnswerModels(const HttpRequest& request);
  void AnswerPage(HttpConnectionId connection);
  void AnswerMetrics(const Question& question, const std::string& text);
  void AskJob(const HttpRequest& request, std::deque<Question>* questions, const Message& message);

  void Complete(const HttpRequest& request);
  void AnswerTokenize(const HttpRequest& request);
  void AnswerDetokenize(const HttpRequest& request);
  // False, for these: `error` says why not.
  bool CheckModel(const std::string& model, ApiError* error) const;
  bool CheckTokens(const char* param, const std::vector<int32_t>& ids, ApiError* error) const;
  bool CheckBiases(const SamplingParams& sampling, ApiError* error) const;
  bool Render(const std::string& chat_json, std::string* prompt, ApiError* error) const;
  bool Encode(const char* param, const std::string& text, bool add_special_tokens,
              std::vector<int32_t>* ids, ApiError* error) const;
  bool Tokenize(const CompletionRequest& parsed, std::vector<std::vector<int32_t>>* prompts,
                ApiError* error) const;
  void Start(const HttpRequest& request, const CompletionRequest& parsed,
             const std::vector<std::vector<int32_t>>& prompts);
  std::string EchoOf(const CompletionRequest::Prompt& prompt) const;

  void OnDelta(const TextDelta& delta);
  void OnCapture(const RequestCapture& capture);
  void OnDone(const RequestDone& done);
  // What a text says, with calls taken out of it; with `last`, what was held back, too.
  AnswerChoice PieceOf(Choice* choice, std::string_view text, bool last);
  void StartStream(HttpConnectionId connection, Generation* generation);
  void SendPiece(HttpConnectionId connection, Generation* generation, size_t index,
                 AnswerChoice piece);
  void Finish(HttpConnectionId connection);
  void FailGeneration(HttpConnectionId connection, const ApiError& error);
  // Forgets the generation; what still runs of it is cancelled.
  void Drop(HttpConnectionId connection);

  const ApiOptions options_;
  const Tokenizer& tokenizer_;
  JobPort& job_;
  HttpReplies* replies_ = nullptr;
  AccessLog* access_log_ = nullptr;  // null: none
  ApiKeys keys_;
  RateLimiter limiter_;
  std::mt19937_64 random_;
  std::string id_prefix_;

  JobState state_;
  bool connected_ = false;  // the job said something
  bool draining_ = false;
  int64_t now_ns_ = 0;  // of the last tick

  std::map<HttpConnectionId, Generation> generations_;
  struct Place {
    HttpConnectionId connection;
    size_t choice = 0;
  };
  std::map<uint64_t, Place> requests_;
  uint64_t last_request_ = 0;
  uint64_t last_call_ = 0;
  std::deque<Question> status_questions_;
  std::deque<Question> metrics_questions_;
  std::deque<Question> experts_questions_;
};

}  // namespace expertflow

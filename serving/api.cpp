#include "serving/api.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "common/log.h"
#include "serving/json_text.h"
#include "serving/openapi.h"
#include "serving/page/status_page.h"

namespace expertflow {
namespace {

constexpr int64_t kAnswerNs = 5'000'000'000;      // for the coordinator to answer a question
constexpr int64_t kStreamHeadNs = 1'000'000'000;  // a refusal comes before that
constexpr int64_t kKeepAliveNs = 15'000'000'000;
constexpr int64_t kSecondNs = 1'000'000'000;
constexpr std::string_view kBearer = "Bearer ";

// Takes as long whatever the difference is.
bool SameSecret(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^
                  static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]);
  }
  return difference == 0;
}

// The value of a gauge without labels; 0 when it is not there.
uint64_t GaugeIn(std::string_view metrics, std::string_view name) {
  const size_t at = metrics.find(fmt::format("\n{} ", name));
  if (at == std::string_view::npos) return 0;
  return std::strtoull(metrics.data() + at + name.size() + 2, nullptr, 10);
}

}  // namespace

Api::Api(ApiOptions options, const Tokenizer& tokenizer, JobPort& job)
    : options_(std::move(options)),
      tokenizer_(tokenizer),
      job_(job),
      keys_(options_.keys),
      limiter_(options_.requests_per_minute) {
  std::random_device device;
  random_.seed((uint64_t{device()} << 32) | device());
  id_prefix_ = fmt::format("{:016x}", random_());
}

// --- requests ----------------------------------------------------------------------------------

HttpResponse Api::Refusal(int status, std::string_view what) const {
  if (access_log_ != nullptr) access_log_->Refused(status);
  return ErrorResponse({.http_status = status, .message = std::string(what)});
}

void Api::Fail(HttpConnectionId connection, const ApiError& error) {
  replies_->Respond(connection, ErrorResponse(error));
}

size_t Api::KeyOf(const HttpRequest& request, const std::vector<std::string>& keys) {
  std::string_view given = request.authorization;
  if (!given.starts_with(kBearer)) return 0;
  given.remove_prefix(kBearer.size());
  size_t found = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (SameSecret(given, keys[i])) found = i + 1;
  }
  return found;
}

bool Api::Admit(const HttpRequest& request) {
  const size_t key = KeyOf(request, keys_.keys);
  if (access_log_ != nullptr) access_log_->Begin(request, key);
  // A probe has no key, and learns nothing but whether the server is well; the page asks for one.
  if (request.path == "/" || request.path.starts_with("/health")) return true;
  if (!keys_.keys.empty() && key == 0 && KeyOf(request, keys_.admin) == 0) {
    Fail(request.connection, {.http_status = 401,
                              .message = "a valid API key is missing (Authorization: Bearer KEY)",
                              .code = "invalid_api_key"});
    return false;
  }
  if (request.method != "POST") return true;
  const std::optional<int64_t> wait_ns = limiter_.Take(key, now_ns_);
  if (!wait_ns) return true;
  Fail(request.connection,
       {.http_status = 429,
        .message = fmt::format("more than {} requests in a minute", limiter_.per_minute()),
        .type = "rate_limit_error",
        .code = "rate_limit_exceeded",
        .retry_after_seconds = *wait_ns / kSecondNs + 1});
  return false;
}

void Api::OnRequest(const HttpRequest& request) {
  if (Admit(request)) Route(request);
}

const Api::PathInfo* Api::Find(std::string_view path) {
  static constexpr PathInfo kPaths[] = {{"/", "GET"},
                                        {"/health", "GET"},
                                        {"/health/live", "GET"},
                                        {"/metrics", "GET"},
                                        {"/openapi.json", "GET"},
                                        {"/v1/models", "GET"},
                                        {"/v1/models/", "GET"},  // and a name
                                        {"/v1/expertflow/status", "GET"},
                                        {"/v1/expertflow/experts", "GET"},
                                        {"/v1/expertflow/config", "GET, PATCH"},
                                        {"/v1/completions", "POST"},
                                        {"/v1/chat/completions", "POST"},
                                        {"/tokenize", "POST"},
                                        {"/detokenize", "POST"}};
  for (const PathInfo& info : kPaths) {
    const bool is_it = info.path.size() > 1 && info.path.ends_with('/')
                           ? path.starts_with(info.path)
                           : path == info.path;
    if (is_it) return &info;
  }
  return nullptr;
}

void Api::Route(const HttpRequest& request) {
  const PathInfo* info = Find(request.path);
  if (info == nullptr) {
    Fail(request.connection,
         {.http_status = 404, .message = fmt::format("there is no {}", request.path)});
  } else if (fmt::format(", {}, ", info->methods).find(fmt::format(" {}, ", request.method)) ==
             std::string::npos) {
    HttpResponse response =
        ErrorResponse({.http_status = 405,
                       .message = fmt::format("{} takes {}, not {}", request.path, info->methods,
                                              request.method)});
    const bool get = info->methods.starts_with("GET");
    response.headers.emplace_back("Allow", fmt::format("{}{}", info->methods, get ? ", HEAD" : ""));
    replies_->Respond(request.connection, response);
  } else if (request.method == "GET") {
    OnGet(request);
  } else {
    OnPost(request);
  }
}

void Api::OnGet(const HttpRequest& request) {
  if (request.path == "/") {
    AnswerPage(request.connection);
  } else if (request.path == "/health/live") {
    replies_->Respond(request.connection, {.body = R"({"live":true})"});
  } else if (request.path == "/health") {
    if (const std::string why = NotReady(); !why.empty()) {
      AnswerHealth(request.connection, {why});
    } else {
      AskJob(request, &metrics_questions_, MetricsRequest{});
    }
  } else if (request.path == "/metrics") {
    AskJob(request, &metrics_questions_, MetricsRequest{});
  } else if (request.path == "/v1/expertflow/status") {
    AskJob(request, &status_questions_, StatusRequest{});
  } else if (request.path == "/v1/expertflow/experts") {
    AskJob(request, &experts_questions_, ExpertsRequest{});
  } else if (request.path == "/v1/expertflow/config") {
    AnswerConfig(request.connection);
  } else if (request.path == "/openapi.json") {
    replies_->Respond(request.connection, {.body = std::string(OpenApiJson())});
  } else {
    AnswerModels(request);
  }
}

void Api::OnPost(const HttpRequest& request) {
  // A page of another site can make a browser post a form, but not JSON.
  if (!request.content_type.starts_with("application/json")) {
    Fail(request.connection,
         {.http_status = 415,
          .message = fmt::format("Content-Type: expected application/json, found \"{}\"",
                                 request.content_type)});
    return;
  }
  if (request.method == "PATCH") {
    ChangeConfig(request);
  } else if (request.path == "/tokenize") {
    AnswerTokenize(request);
  } else if (request.path == "/detokenize") {
    AnswerDetokenize(request);
  } else {
    Complete(request);
  }
}

// --- configuration -----------------------------------------------------------------------------

void Api::AnswerConfig(HttpConnectionId connection) {
  replies_->Respond(
      connection,
      {.body = fmt::format(
           R"({{"changeable":{{"rate_limit":{},"keys":{},"admin_keys":{}}},"requested":{}}})",
           limiter_.per_minute(), keys_.keys.size(), keys_.admin.size(),
           options_.requested_config)});
}

void Api::ChangeConfig(const HttpRequest& request) {
  if (KeyOf(request, keys_.admin) == 0) {
    Fail(request.connection, {.http_status = 403,
                              .message = "changing the configuration needs a key of --admin-keys",
                              .code = "forbidden"});
    return;
  }
  ConfigChange change;
  if (const auto error = ParseConfigChange(request.body, &change)) {
    Fail(request.connection, *error);
    return;
  }
  if (change.reload_certificate) {
    const Status reloaded = options_.reload_certificate
                                ? options_.reload_certificate()
                                : FailedPrecondition("the server has no --tls-cert");
    if (!reloaded.ok()) {
      Fail(request.connection, BadParameter("reload_certificate", reloaded.message()));
      return;
    }
    LogInfo("the certificate was read anew");
  }
  if (change.reload_keys && options_.read_keys) {
    Result<ApiKeys> keys = options_.read_keys();
    if (!keys.ok()) {
      Fail(request.connection, BadParameter("reload_keys", keys.status().message()));
      return;
    }
    keys_ = std::move(*keys);
    limiter_.SetRate(limiter_.per_minute());  // callers are known by their keys' places
    LogInfo("the API keys were read anew: {}", keys_.keys.size());
  }
  if (change.rate_limit) {
    limiter_.SetRate(*change.rate_limit);
    LogInfo("rate limit: {} requests a minute", *change.rate_limit);
  }
  AnswerConfig(request.connection);
}

// --- the job's state ---------------------------------------------------------------------------

std::string Api::NotReady() const {
  if (draining_) return "the server is shutting down";
  switch (state_.phase) {
    case JobPhase::kReady: return "";
    case JobPhase::kStarting: return "the job is starting";
    case JobPhase::kLoading:
      return fmt::format("the model is loading: {} of {} bytes", state_.bytes_done,
                         state_.bytes_total);
    case JobPhase::kStopping: return "the job is stopping";
    case JobPhase::kFailed: return "the job has failed: " + state_.message;
  }
  return "";
}

void Api::AnswerHealth(HttpConnectionId connection, const std::vector<std::string>& reasons) {
  std::string list;
  for (const std::string& reason : reasons) {
    list += (list.empty() ? "" : ",") + JsonString(reason);
  }
  replies_->Respond(connection, {.status = reasons.empty() ? 200 : 503,
                                 .body = fmt::format(R"({{"live":true,"ready":{},"reasons":[{}]}})",
                                                     reasons.empty(), list)});
}

void Api::AnswerPage(HttpConnectionId connection) {
  replies_->Respond(connection,
                    {.content_type = "text/html; charset=utf-8",
                     .body = std::string(StatusPageHtml()),
                     .headers = {{"Content-Security-Policy",
                                  "default-src 'none'; script-src 'unsafe-inline'; style-src "
                                  "'unsafe-inline'; img-src data:; connect-src 'self'; "
                                  "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
                                 {"Cache-Control", "no-cache"}}});
}

void Api::AnswerModels(const HttpRequest& request) {
  const std::string model =
      fmt::format(R"({{"id":{},"object":"model","created":0,"owned_by":"expertflow",)"
                  R"("max_model_len":{}}})",
                  JsonString(options_.model), options_.positions_max);
  if (request.path == "/v1/models") {
    replies_->Respond(request.connection,
                      {.body = fmt::format(R"({{"object":"list","data":[{}]}})", model)});
  } else if (request.path == "/v1/models/" + options_.model) {
    replies_->Respond(request.connection, {.body = model});
  } else {
    Fail(request.connection,
         {.http_status = 404,
          .message = fmt::format("this server has the model {}, not {}", options_.model,
                                 request.path.substr(std::string_view("/v1/models/").size())),
          .param = "model",
          .code = "model_not_found"});
  }
}

void Api::AskJob(const HttpRequest& request, std::deque<Question>* questions,
                 const Message& message) {
  if (!connected_) {
    Fail(request.connection, ApiErrorFrom(Unavailable("the job is starting")));
    return;
  }
  questions->push_back(
      {.connection = request.connection, .health = request.path == "/health", .asked_ns = now_ns_});
  job_.ToJob(message);
}

void Api::AnswerMetrics(const Question& question, const std::string& text) {
  if (question.health) {
    const bool works = GaugeIn(text, "expertflow_workers_ready") > 0;
    AnswerHealth(question.connection, works ? std::vector<std::string>()
                                            : std::vector<std::string>{"no worker is ready"});
    return;
  }
  const HttpServerStats stats = replies_->stats();
  std::string own;
  const auto add = [&own](std::string_view name, std::string_view type, uint64_t value) {
    own +=
        fmt::format("# TYPE expertflow_http_{0} {1}\nexpertflow_http_{0} {2}\n", name, type, value);
  };
  add("connections", "gauge", stats.connections);
  add("connections_accepted_total", "counter", stats.accepted);
  add("connections_evicted_total", "counter", stats.evicted);
  add("connections_timed_out_total", "counter", stats.timed_out);
  add("requests_running", "gauge", generations_.size());
  replies_->Respond(question.connection,
                    {.content_type = "text/plain; version=0.0.4", .body = text + own});
}

void Api::OnJobMessage(const Message& message) {
  const auto take = [](std::deque<Question>* questions) {
    Question question;
    question.answered = true;
    if (!questions->empty()) {
      question = questions->front();
      questions->pop_front();
    }
    return question;
  };
  if (const auto* state = std::get_if<JobState>(&message)) {
    state_ = *state;
    connected_ = true;
  } else if (const auto* delta = std::get_if<TextDelta>(&message)) {
    OnDelta(*delta);
  } else if (const auto* capture = std::get_if<RequestCapture>(&message)) {
    OnCapture(*capture);
  } else if (const auto* done = std::get_if<RequestDone>(&message)) {
    OnDone(*done);
  } else if (const auto* status = std::get_if<StatusReply>(&message)) {
    const Question question = take(&status_questions_);
    if (!question.answered) replies_->Respond(question.connection, {.body = status->json});
  } else if (const auto* experts = std::get_if<ExpertsReply>(&message)) {
    const Question question = take(&experts_questions_);
    if (!question.answered) replies_->Respond(question.connection, {.body = experts->json});
  } else if (const auto* metrics = std::get_if<MetricsReply>(&message)) {
    const Question question = take(&metrics_questions_);
    if (!question.answered) AnswerMetrics(question, metrics->text);
  }
}

void Api::OnTick(int64_t now_ns) {
  now_ns_ = now_ns;
  for (std::deque<Question>* questions :
       {&status_questions_, &metrics_questions_, &experts_questions_}) {
    for (Question& question : *questions) {
      if (question.answered || now_ns - question.asked_ns < kAnswerNs) continue;
      question.answered = true;  // its place stays: answers come in order
      if (question.health) {
        AnswerHealth(question.connection, {"the coordinator does not answer"});
      } else {
        Fail(question.connection, ApiErrorFrom(Unavailable("the coordinator does not answer")));
      }
    }
  }
  for (auto& [connection, generation] : generations_) {
    if (!generation.stream) continue;
    if (!generation.stream_started && now_ns - generation.started_ns > kStreamHeadNs) {
      StartStream(connection, &generation);
    } else if (generation.stream_started && now_ns - generation.sent_ns > kKeepAliveNs) {
      replies_->Send(connection, ": keep-alive\n\n");
      generation.sent_ns = now_ns;
    }
  }
}

// --- text and tokens ---------------------------------------------------------------------------

bool Api::CheckModel(const std::string& model, ApiError* error) const {
  if (model.empty() || model == options_.model) return true;
  *error = {.http_status = 404,
            .message = fmt::format("model: this server has {}, not {}", options_.model, model),
            .param = "model",
            .code = "model_not_found"};
  return false;
}

bool Api::CheckTokens(const char* param, const std::vector<int32_t>& ids, ApiError* error) const {
  const auto outside = std::find_if(ids.begin(), ids.end(),
                                    [this](int32_t id) { return id < 0 || id >= options_.vocab; });
  if (outside == ids.end()) return true;
  *error = BadParameter(param, fmt::format("{}: token id {} is outside the vocabulary of {}", param,
                                           *outside, options_.vocab));
  return false;
}

bool Api::CheckBiases(const SamplingParams& sampling, ApiError* error) const {
  std::vector<int32_t> ids;
  for (const LogitBias& bias : sampling.logit_bias) ids.push_back(bias.token);
  return CheckTokens("logit_bias", ids, error);
}

bool Api::Render(const std::string& chat_json, std::string* prompt, ApiError* error) const {
  if (!options_.chat_status.ok()) {
    *error = BadParameter("messages", options_.chat_status.message());
    return false;
  }
  Result<std::string> text = options_.chat.chat->Render(chat_json, std::time(nullptr));
  if (!text.ok() || text->empty()) {
    *error = BadParameter("messages", text.ok() ? "messages: the template makes no text of them"
                                                : text.status().message());
    return false;
  }
  *prompt = std::move(*text);
  return true;
}

bool Api::Encode(const char* param, const std::string& text, bool add_special_tokens,
                 std::vector<int32_t>* ids, ApiError* error) const {
  Result<std::vector<int32_t>> encoded =
      add_special_tokens ? tokenizer_.EncodePrompt(text) : tokenizer_.Encode(text);
  if (!encoded.ok()) {
    *error = BadParameter(param, fmt::format("{}: {}", param, encoded.status().message()));
    return false;
  }
  *ids = std::move(*encoded);
  return true;
}

void Api::AnswerTokenize(const HttpRequest& request) {
  TokenizeRequest parsed;
  if (const auto error =
          ParseTokenizeRequest(request.body, options_.chat.variables_json, &parsed)) {
    Fail(request.connection, *error);
    return;
  }
  ApiError error;
  std::vector<int32_t> ids;
  const bool chat = !parsed.chat_json.empty();
  if (!CheckModel(parsed.model, &error) ||
      (chat && !Render(parsed.chat_json, &parsed.text, &error)) ||
      !Encode(chat ? "messages" : "prompt", parsed.text, parsed.add_special_tokens, &ids, &error)) {
    Fail(request.connection, error);
    return;
  }
  std::string strings = "null";
  if (parsed.return_token_strs) {
    strings.clear();
    for (const int32_t id : ids) {
      strings += (strings.empty() ? "[" : ",") + JsonString(tokenizer_.TokenBytes(id));
    }
    strings += strings.empty() ? "[]" : "]";
  }
  replies_->Respond(
      request.connection,
      {.body = fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[{}],"token_strs":{}}})",
                           ids.size(), options_.positions_max, fmt::join(ids, ","), strings)});
}

void Api::AnswerDetokenize(const HttpRequest& request) {
  DetokenizeRequest parsed;
  if (const auto error = ParseDetokenizeRequest(request.body, &parsed)) {
    Fail(request.connection, *error);
    return;
  }
  ApiError error;
  if (!CheckModel(parsed.model, &error) || !CheckTokens("tokens", parsed.tokens, &error)) {
    Fail(request.connection, error);
    return;
  }
  const std::string text = tokenizer_.Decode(parsed.tokens, /*skip_special=*/false);
  replies_->Respond(request.connection,
                    {.body = fmt::format(R"({{"prompt":{}}})", JsonString(text))});
}

}  // namespace expertflow

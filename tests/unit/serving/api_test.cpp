#include "serving/api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <memory>

namespace expertflow {
namespace {

using ::testing::HasSubstr;

struct Recorder final : HttpReplies, JobPort {
  void Respond(HttpConnectionId id, const HttpResponse& response) override {
    responses[id.value].push_back(response);
  }
  void StartStream(HttpConnectionId id, std::string_view) override { streams[id.value] = ""; }
  void Send(HttpConnectionId id, std::string_view bytes) override { streams[id.value] += bytes; }
  void EndStream(HttpConnectionId id) override { streams[id.value] += "<end>"; }
  HttpServerStats stats() const override { return {}; }
  void ToJob(const Message& message) override { to_job.push_back(message); }

  std::map<uint64_t, std::vector<HttpResponse>> responses;
  std::map<uint64_t, std::string> streams;
  std::vector<Message> to_job;
};

class ApiTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto tokenizer = Tokenizer::Load(EXPERTFLOW_SOURCE_DIR "/models/tiny-moe/tokenizer.json");
    ASSERT_TRUE(tokenizer.ok());
    tokenizer_ = std::move(*tokenizer);
    Make({.model = "tiny", .vocab = 4096, .positions_max = 100});
    api_->OnJobMessage(JobState{.phase = JobPhase::kReady});
  }
  void Make(const ApiOptions& options) {
    api_ = std::make_unique<Api>(options, *tokenizer_, recorder_);
    api_->SetReplies(&recorder_);
  }
  void Get(uint64_t connection, const std::string& path, const std::string& key = "") {
    api_->OnRequest(
        {.connection = {connection}, .method = "GET", .path = path, .authorization = key});
  }
  void Post(uint64_t connection, const std::string& body,
            const std::string& type = "application/json",
            const std::string& path = "/v1/completions") {
    api_->OnRequest({.connection = {connection},
                     .method = "POST",
                     .path = path,
                     .content_type = type,
                     .body = body});
  }
  template <typename T>
  std::vector<T> ToJob() const {
    std::vector<T> found;
    for (const Message& message : recorder_.to_job) {
      if (const T* one = std::get_if<T>(&message)) found.push_back(*one);
    }
    return found;
  }
  const HttpResponse& Response(uint64_t connection) {
    static const HttpResponse kNone{.status = 0};
    const auto& all = recorder_.responses[connection];
    return all.empty() ? kNone : all.back();
  }
  void Say(uint64_t request, const std::string& text) {
    api_->OnJobMessage(TextDelta{.request = request, .text = text});
  }
  void Capture(uint64_t request, uint32_t position, std::vector<TokenLogprob> logprobs) {
    api_->OnJobMessage(RequestCapture{
        .request = request, .captured = {.position = position, .logprobs = std::move(logprobs)}});
  }
  void End(uint64_t request, FinishReason finish = FinishReason::kStop,
           StatusCode code = StatusCode::kOk) {
    api_->OnJobMessage(RequestDone{.request = request,
                                   .finish = finish,
                                   .code = static_cast<uint8_t>(code),
                                   .message = "why",
                                   .prompt_tokens = 3,
                                   .cached_tokens = 2,
                                   .generated_tokens = 2});
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  Recorder recorder_;
  std::unique_ptr<Api> api_;
};

TEST_F(ApiTest, AnswersWholeCompletionsInOrderWithUsage) {
  Post(1, R"({"prompt":[5,6,7],"n":2,"max_tokens":2,"seed":10,"temperature":1})");
  const auto submitted = ToJob<SubmitRequest>();
  ASSERT_EQ(submitted.size(), 2U);
  EXPECT_EQ(submitted[0].tokens, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(submitted[0].sampling.seed, 10U);
  EXPECT_EQ(submitted[1].sampling.seed, 11U);
  Say(submitted[1].request, "second");
  Say(submitted[0].request, "fi\"rst");
  End(submitted[1].request, FinishReason::kLength);
  EXPECT_EQ(Response(1).status, 0);
  End(submitted[0].request);
  EXPECT_EQ(Response(1).status, 200);
  EXPECT_THAT(
      Response(1).body,
      HasSubstr(
          R"({"index":0,"text":"fi\"rst","logprobs":null,"finish_reason":"stop"},{"index":1,"text":"second","logprobs":null,"finish_reason":"length"})"));
  EXPECT_THAT(Response(1).body,
              HasSubstr(R"("prompt_tokens":3,"completion_tokens":4,"total_tokens":7,)"
                        R"("prompt_tokens_details":{"cached_tokens":2}})"));
  EXPECT_EQ(api_->running(), 0U);
}

TEST_F(ApiTest, StreamsPiecesThenFinishThenUsageThenDone) {
  Post(1, R"({"prompt":"Hi","stream":true,"stream_options":{"include_usage":true}})");
  const uint64_t request = ToJob<SubmitRequest>().at(0).request;
  EXPECT_EQ(recorder_.streams.count(1), 0U);
  Say(request, "a\n");
  EXPECT_THAT(recorder_.streams[1],
              HasSubstr(R"("text":"a\n","logprobs":null,"finish_reason":null)"));
  End(request, FinishReason::kLength);
  const std::string& stream = recorder_.streams[1];
  EXPECT_LT(stream.find(R"("finish_reason":"length")"), stream.find(R"("choices":[],"usage")"));
  EXPECT_TRUE(stream.ends_with("data: [DONE]\n\n<end>")) << stream;
}

TEST_F(ApiTest, AChatIsRenderedByTheModelsTemplateAndFillsTheContext) {
  auto chat = LoadModelTemplate(EXPERTFLOW_SOURCE_DIR "/models/tiny-moe", "");
  ASSERT_TRUE(chat.ok()) << chat.status().message();
  Make({.model = "tiny", .vocab = 4096, .positions_max = 100, .chat = *chat});
  api_->OnJobMessage(JobState{.phase = JobPhase::kReady});
  const std::string body = R"({"messages":[{"role":"user","content":"Hello!"}])";
  Post(9, body + "}", "application/json", "/tokenize");
  Post(1, body + "}", "application/json", "/v1/chat/completions");
  const auto submitted = ToJob<SubmitRequest>();
  ASSERT_EQ(submitted.size(), 1U);
  EXPECT_EQ(tokenizer_->Decode(submitted[0].tokens, /*skip_special=*/false),
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
            "Hello!<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_THAT(Response(9).body,
              HasSubstr("\"count\":" + std::to_string(submitted[0].tokens.size())));
  EXPECT_EQ(submitted[0].max_new_tokens, 101 - submitted[0].tokens.size());
  Say(1, "Hi");
  End(1);
  EXPECT_THAT(Response(1).body,
              HasSubstr(R"("message":{"role":"assistant","content":"Hi"},"logprobs":null)"));
  EXPECT_THAT(Response(1).body, HasSubstr(R"("object":"chat.completion")"));

  Post(2, body + R"(,"stream":true})", "application/json", "/v1/chat/completions");
  Say(2, "Hi");
  End(2);
  const std::string& stream = recorder_.streams[2];
  const size_t role = stream.find(R"("delta":{"role":"assistant","content":""})");
  const size_t text = stream.find(R"("delta":{"content":"Hi"})");
  const size_t end = stream.find(R"("delta":{},"logprobs":null,"finish_reason":"stop")");
  EXPECT_TRUE(role < text && text < end && end != std::string::npos) << stream;
}

TEST_F(ApiTest, WithoutATemplateChatsAreRefused) {
  Make({.model = "tiny",
        .vocab = 4096,
        .positions_max = 100,
        .chat_status = NotFound("the model has no chat template")});
  Post(1, R"({"messages":[{"role":"user","content":"a"}]})", "application/json",
       "/v1/chat/completions");
  EXPECT_EQ(Response(1).status, 400);
  EXPECT_THAT(Response(1).body, HasSubstr("no chat template"));
}

TEST_F(ApiTest, TextBecomesTokensAndBack) {
  Make({.model = "tiny", .vocab = 4096, .positions_max = 100});  // the job need not be ready
  const auto json = std::string("application/json");
  Post(1, R"({"prompt":"#if 1\n","return_token_strs":true})", json, "/tokenize");
  ASSERT_EQ(Response(1).status, 200) << Response(1).body;
  const auto ids = *tokenizer_->Encode("#if 1\n");
  std::string list;
  for (const int32_t id : ids) list += (list.empty() ? "" : ",") + std::to_string(id);
  EXPECT_THAT(Response(1).body, HasSubstr("{\"count\":" + std::to_string(ids.size()) +
                                          ",\"max_model_len\":100,\"tokens\":[" + list + "],"));
  EXPECT_THAT(Response(1).body, HasSubstr(R"("token_strs":["#)"));
  Post(2, "{\"tokens\":[" + list + "]}", json, "/detokenize");
  EXPECT_EQ(Response(2).body, R"({"prompt":"#if 1\n"})");
  Post(3, R"({"tokens":[4096]})", json, "/detokenize");
  EXPECT_THAT(Response(3).body, HasSubstr(R"("param":"tokens")"));
  Post(4, R"({"tokens":"a"})", json, "/detokenize");
  EXPECT_THAT(Response(4).body, HasSubstr(R"("param":"tokens")"));
  Post(5, R"({})", json, "/tokenize");
  EXPECT_THAT(Response(5).body, HasSubstr(R"("param":"prompt")"));
  Post(6, R"({"prompt":"a","model":"other"})", json, "/tokenize");
  EXPECT_EQ(Response(6).status, 404);
  Post(7, R"({"prompt":""})", json, "/tokenize");
  EXPECT_THAT(Response(7).body, HasSubstr(R"({"count":0,)"));
}

TEST_F(ApiTest, EchoPutsThePromptFirst) {
  Post(1, R"({"prompt":"Hi ","echo":true})");
  Say(1, "there");
  End(1);
  EXPECT_THAT(Response(1).body, HasSubstr(R"("text":"Hi there")"));
}

TEST_F(ApiTest, LogprobsComeWithTheTextInTheShapeOfTheRequest) {
  const int32_t a = *tokenizer_->TokenToId("a");
  const int32_t b = *tokenizer_->TokenToId("b");
  Post(1, "{\"prompt\":[" + std::to_string(a) + "," + std::to_string(b) +
              R"(],"echo":true,"logprobs":1})");
  const SubmitRequest submitted = ToJob<SubmitRequest>().at(0);
  EXPECT_EQ(submitted.logprobs, 1);
  EXPECT_TRUE(submitted.prompt_logprobs);
  Capture(1, 0, {{b, -0.5F}, {a, -0.25F}});
  Capture(1, 1, {{a, -1}, {a, -1}});
  Say(1, "a");
  Capture(1, 2, {{4093, -std::numeric_limits<float>::infinity()}, {b, 0}});  // the end
  End(1);
  EXPECT_THAT(
      Response(1).body,
      HasSubstr(
          R"("text":"aba","logprobs":{"tokens":["a","b","a","<|endoftext|>"],"token_logprobs":[null,-0.5,-1,-9999],"top_logprobs":[null,{"a":-0.25,"b":-0.5},{"a":-1},{"b":0,"<|endoftext|>":-9999}],"text_offset":[0,1,2,3]},"finish_reason")"));

  // The prompt alone: what is generated, as something has to be, does not show.
  Post(2, "{\"prompt\":[" + std::to_string(a) + "," + std::to_string(b) +
              R"(],"echo":true,"logprobs":0,"max_tokens":0})");
  EXPECT_EQ(ToJob<SubmitRequest>().at(1).max_new_tokens, 1U);
  Capture(2, 0, {{b, -0.5F}});
  Capture(2, 1, {{a, -1}});
  Say(2, "a");
  End(2, FinishReason::kStop);
  EXPECT_THAT(
      Response(2).body,
      HasSubstr(R"("text":"ab","logprobs":{"tokens":["a","b"],"token_logprobs":[null,-0.5],)"
                R"("top_logprobs":[null,{"b":-0.5}],"text_offset":[0,1]},"finish_reason":)"
                R"("length"}],"usage":{"prompt_tokens":3,"completion_tokens":0)"));
}

TEST_F(ApiTest, LogprobsOfAStopStringShowNowhere) {
  const int32_t a = *tokenizer_->TokenToId("a");
  const int32_t b = *tokenizer_->TokenToId("b");
  for (const uint64_t id : {1, 2}) {
    Post(id, std::string(R"({"prompt":"x","logprobs":0,"stop":"bab!","stream":)") +
                 (id == 1 ? "true}" : "false}"));
    EXPECT_FALSE(ToJob<SubmitRequest>().back().prompt_logprobs);
    Capture(id, 0, {{a, -1}});
    Say(id, "a");
    Capture(id, 1, {{b, -2}});  // held back: it may begin the stop string
    Capture(id, 2, {{b, -3}});  // so may this one, so the first one is out
    Say(id, "b");
    Capture(id, 3, {{a, -4}});
    End(id, FinishReason::kStop);
  }
  const std::string& stream = recorder_.streams[1];
  EXPECT_THAT(stream, HasSubstr(R"("text":"a","logprobs":{"tokens":["a"],"token_logprobs":[-1])"));
  EXPECT_THAT(stream, HasSubstr(R"("token_logprobs":[-2])"));
  EXPECT_THAT(stream, HasSubstr(R"("text":"","logprobs":null,"finish_reason":"stop")"));
  EXPECT_THAT(Response(2).body, HasSubstr(R"("token_logprobs":[-1,-2],)"));
}

TEST_F(ApiTest, LogprobsOfAChatHaveBytes) {
  auto chat = LoadModelTemplate(EXPERTFLOW_SOURCE_DIR "/models/tiny-moe", "");
  ASSERT_TRUE(chat.ok()) << chat.status().message();
  Make({.model = "tiny", .vocab = 4096, .positions_max = 100, .chat = *chat});
  api_->OnJobMessage(JobState{.phase = JobPhase::kReady});
  Post(
      1,
      R"({"messages":[{"role":"user","content":"a"}],"logprobs":true,"top_logprobs":1,"max_tokens":1})",
      "application/json", "/v1/chat/completions");
  const uint32_t prompt = static_cast<uint32_t>(ToJob<SubmitRequest>().at(0).tokens.size());
  // Half a character has no text of its own.
  const int32_t half = *tokenizer_->TokenToId("\u00c3");  // how the file spells the byte C3
  Capture(1, prompt - 1, {{half, -1.5F}, {*tokenizer_->TokenToId("a"), -0.5F}});
  End(1, FinishReason::kLength);
  EXPECT_THAT(
      Response(1).body,
      HasSubstr(
          R"("logprobs":{"content":[{"token":"bytes:\\xc3","logprob":-1.5,"bytes":[195],"top_logprobs":[{"token":"a","logprob":-0.5,"bytes":[97]}]}],"refusal":null})"));
}

TEST_F(ApiTest, CallsOfToolsAreTakenOutOfTheText) {
  const std::string body =
      R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f"}}])";
  auto plain = LoadModelTemplate(EXPERTFLOW_SOURCE_DIR "/models/tiny-moe", "");
  ASSERT_TRUE(plain.ok());
  Make({.model = "tiny", .vocab = 4096, .positions_max = 500, .chat = *plain});
  api_->OnJobMessage(JobState{.phase = JobPhase::kReady});
  Post(9, body + "}", "application/json", "/v1/chat/completions");
  EXPECT_THAT(Response(9).body, HasSubstr(R"("param":"tools","code":"unsupported_parameter")"));

  auto chat = LoadModelTemplate(EXPERTFLOW_SOURCE_DIR "/models/tiny-moe",
                                EXPERTFLOW_SOURCE_DIR "/tests/clients/tools_template.jinja");
  ASSERT_TRUE(chat.ok()) << chat.status().message();
  Make({.model = "tiny", .vocab = 4096, .positions_max = 500, .chat = *chat});
  api_->OnJobMessage(JobState{.phase = JobPhase::kReady});
  Post(1, body + R"(,"tool_choice":"required"})", "application/json", "/v1/chat/completions");
  EXPECT_THAT(ToJob<SubmitRequest>().at(0).grammar, HasSubstr("tool_call"));
  const std::string call = R"(<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>)";
  Say(1, call.substr(0, 20));
  Say(1, call.substr(20));
  End(1);
  EXPECT_THAT(
      Response(1).body,
      HasSubstr(R"("message":{"role":"assistant","content":null,"tool_calls":[{"id":"call_)"));
  EXPECT_THAT(Response(1).body, HasSubstr(R"("type":"function","function":{"name":"f",)"
                                          R"("arguments":"{\"a\":1}"}}]},"logprobs":null,)"
                                          R"("finish_reason":"tool_calls")"));

  Post(2, body + R"(,"stream":true})", "application/json", "/v1/chat/completions");
  EXPECT_EQ(ToJob<SubmitRequest>().at(1).grammar, "");
  Say(2, "Well <to");
  Say(2, call.substr(3));
  Say(2, call);
  End(2);
  const std::string& stream = recorder_.streams[2];
  const size_t text = stream.find(R"("delta":{"content":"Well "})");
  const size_t first = stream.find(R"("delta":{"tool_calls":[{"index":0,"id":"call_)");
  const size_t second = stream.find(R"("delta":{"tool_calls":[{"index":1,"id":"call_)");
  const size_t end = stream.find(R"("delta":{},"logprobs":null,"finish_reason":"tool_calls")");
  EXPECT_TRUE(text < first && first < second && second < end && end != std::string::npos) << stream;
}

TEST_F(ApiTest, AGoneClientsChoicesAreCancelled) {
  Post(1, R"({"prompt":"Hi","n":2})");
  End(1);
  api_->OnGone({1});
  const auto cancelled = ToJob<CancelRequest>();
  ASSERT_EQ(cancelled.size(), 1U);
  EXPECT_EQ(cancelled[0].request, 2U);
  End(2, FinishReason::kCancelled);  // comes late
  EXPECT_EQ(Response(1).status, 0);
  EXPECT_EQ(api_->running(), 0U);
}

TEST_F(ApiTest, AFullQueueMeansTryAgainAndTheOtherChoicesAreCancelled) {
  Post(1, R"({"prompt":"Hi","n":2,"stream":true})");
  End(1, FinishReason::kError, StatusCode::kResourceExhausted);
  EXPECT_EQ(Response(1).status, 503);
  EXPECT_THAT(Response(1).body, HasSubstr("overloaded"));
  ASSERT_FALSE(Response(1).headers.empty());
  EXPECT_EQ(Response(1).headers[0].first, "Retry-After");
  EXPECT_EQ(ToJob<CancelRequest>().size(), 1U);
}

TEST_F(ApiTest, AFailureInAStreamIsAnEventOfIt) {
  Post(1, R"({"prompt":"Hi","stream":true})");
  Say(1, "a");
  End(1, FinishReason::kError, StatusCode::kInternal);
  EXPECT_THAT(recorder_.streams[1],
              HasSubstr(R"(data: {"error":{"message":"why","type":"server_error")"));
  EXPECT_TRUE(recorder_.streams[1].ends_with("<end>"));
}

TEST_F(ApiTest, WhatDoesNotFitIsRefusedBeforeTheJobSeesIt) {
  Post(1, R"({"prompt":[1,2,3],"max_tokens":99})");
  EXPECT_EQ(Response(1).status, 400);
  EXPECT_THAT(Response(1).body, HasSubstr("context_length_exceeded"));
  Post(2, R"({"prompt":[1,4096]})");
  EXPECT_THAT(Response(2).body, HasSubstr(R"("param":"prompt")"));
  Post(3, R"({"prompt":"a","model":"other"})");
  EXPECT_EQ(Response(3).status, 404);
  Post(6, R"({"prompt":"a","logit_bias":{"4096":1}})");
  EXPECT_THAT(Response(6).body, HasSubstr(R"("param":"logit_bias")"));
  Post(4, "prompt=a", "application/x-www-form-urlencoded");
  EXPECT_EQ(Response(4).status, 415);
  EXPECT_TRUE(recorder_.to_job.empty());
  Post(5, R"({"prompt":[1,2,3],"max_tokens":98})");
  EXPECT_EQ(ToJob<SubmitRequest>().size(), 1U);
}

TEST_F(ApiTest, HealthNamesWhatIsMissing) {
  Get(1, "/health");
  api_->OnJobMessage(MetricsReply{"# x\nexpertflow_workers_ready 2\n"});
  EXPECT_EQ(Response(1).status, 200);
  Get(2, "/health");
  api_->OnJobMessage(MetricsReply{"# x\nexpertflow_workers_ready 0\n"});
  EXPECT_EQ(Response(2).status, 503);
  EXPECT_THAT(Response(2).body, HasSubstr("no worker is ready"));
  Get(3, "/health");
  api_->OnTick(6'000'000'000);
  EXPECT_THAT(Response(3).body, HasSubstr("does not answer"));
  api_->OnJobMessage(MetricsReply{"# x\nexpertflow_workers_ready 2\n"});  // of the third
  EXPECT_EQ(recorder_.responses[3].size(), 1U);
  api_->Drain();
  Get(4, "/health");
  EXPECT_THAT(Response(4).body, HasSubstr("shutting down"));
  Get(5, "/health/live");
  EXPECT_EQ(Response(5).status, 200);
}

TEST_F(ApiTest, BeforeTheJobIsReadyRequestsAreRefused) {
  Make({.model = "tiny", .vocab = 4096, .positions_max = 100});
  Post(1, R"({"prompt":"Hi"})");
  EXPECT_EQ(Response(1).status, 503);
  EXPECT_TRUE(recorder_.to_job.empty());
}

TEST_F(ApiTest, KeysOpenTheDoor) {
  Make({.model = "tiny",
        .vocab = 4096,
        .positions_max = 100,
        .keys = {.keys = {"secret-1", "secret-22"}}});
  api_->OnJobMessage(JobState{.phase = JobPhase::kReady});
  for (const char* wrong : {"", "Bearer ", "Bearer secret-2", "Bearer secret-1x", "secret-1"}) {
    Get(1, "/v1/models", wrong);
    EXPECT_EQ(Response(1).status, 401) << wrong;
  }
  Get(2, "/v1/models", "Bearer secret-22");
  EXPECT_EQ(Response(2).status, 200);
  Get(3, "/health/live");
  EXPECT_EQ(Response(3).status, 200);
}

TEST_F(ApiTest, EachKeyHasItsRate) {
  Make({.model = "tiny",
        .vocab = 4096,
        .positions_max = 100,
        .keys = {.keys = {"secret-1", "secret-22"}},
        .requests_per_minute = 2});
  const auto ask = [this](uint64_t connection, const std::string& key) {
    api_->OnRequest({.connection = {connection},
                     .method = "POST",
                     .path = "/tokenize",
                     .authorization = "Bearer " + key,
                     .content_type = "application/json",
                     .body = R"({"prompt":"a"})"});
    return Response(connection).status;
  };
  api_->OnTick(1'000'000'000);
  EXPECT_EQ(ask(1, "secret-1"), 200);
  EXPECT_EQ(ask(2, "secret-1"), 200);
  EXPECT_EQ(ask(3, "secret-1"), 429);
  EXPECT_THAT(Response(3).body, HasSubstr(R"("type":"rate_limit_error")"));
  ASSERT_FALSE(Response(3).headers.empty());
  EXPECT_EQ(Response(3).headers[0], (std::pair<std::string, std::string>("Retry-After", "31")));
  EXPECT_EQ(ask(4, "secret-22"), 200);  // the other's
  Get(5, "/v1/models", "Bearer secret-1");
  EXPECT_EQ(Response(5).status, 200);  // costs nothing
  api_->OnTick(30'000'000'000);
  EXPECT_EQ(ask(6, "secret-1"), 429);
  api_->OnTick(31'000'000'000);
  EXPECT_EQ(ask(7, "secret-1"), 200);
  EXPECT_EQ(ask(8, "secret-1"), 429);
}

TEST_F(ApiTest, ThePageNeedsNoKeyAndItsFiguresDo) {
  Make({.model = "tiny", .vocab = 4096, .positions_max = 100, .keys = {.keys = {"secret-1"}}});
  api_->OnJobMessage(JobState{.phase = JobPhase::kReady});
  Get(1, "/");
  EXPECT_EQ(Response(1).status, 200);
  EXPECT_EQ(Response(1).content_type, "text/html; charset=utf-8");
  EXPECT_THAT(Response(1).body, HasSubstr("<title>ExpertFlow</title>"));
  EXPECT_EQ(Response(1).headers.at(0).first, "Content-Security-Policy");
  for (const char* elsewhere : {"http://", "https://", "src=\"/", "@import", "url("}) {
    EXPECT_EQ(Response(1).body.find(elsewhere), std::string::npos) << elsewhere;
  }
  Get(2, "/v1/expertflow/experts");
  EXPECT_EQ(Response(2).status, 401);
  Get(3, "/v1/expertflow/experts", "Bearer secret-1");
  Get(4, "/v1/expertflow/status", "Bearer secret-1");
  ASSERT_EQ(ToJob<ExpertsRequest>().size(), 1U);
  api_->OnJobMessage(StatusReply{.json = "{\"a\":1}"});
  api_->OnJobMessage(ExpertsReply{.json = "{\"b\":2}"});
  EXPECT_EQ(Response(3).body, "{\"b\":2}");
  EXPECT_EQ(Response(4).body, "{\"a\":1}");
  Get(5, "/nothing");
  EXPECT_EQ(Response(5).status, 401);
}

TEST_F(ApiTest, TheConfigurationIsShownToAllAndChangedByItsKeys) {
  ApiKeys next{.keys = {"secret-3"}, .admin = {"the-admin"}};
  Status certificate = InvalidArgument("first.key: no key");
  Make({.model = "tiny",
        .vocab = 4096,
        .positions_max = 100,
        .keys = {.keys = {"secret-1"}, .admin = {"the-admin"}},
        .requested_config = R"({"workers":{"value":"2","source":"default"}})",
        .read_keys = [&next]() -> Result<ApiKeys> { return next; },
        .reload_certificate = [&certificate] { return certificate; }});
  const auto patch = [this](uint64_t connection, const std::string& key, const std::string& body) {
    api_->OnRequest({.connection = {connection},
                     .method = "PATCH",
                     .path = "/v1/expertflow/config",
                     .authorization = "Bearer " + key,
                     .content_type = "application/json",
                     .body = body});
    return Response(connection).status;
  };
  Get(1, "/v1/expertflow/config", "Bearer secret-1");
  EXPECT_EQ(Response(1).body, R"({"changeable":{"rate_limit":0,"keys":1,"admin_keys":1},)"
                              R"("requested":{"workers":{"value":"2","source":"default"}}})");
  EXPECT_EQ(patch(2, "secret-1", R"({"rate_limit":5})"), 403);
  EXPECT_EQ(patch(3, "the-admin", R"({"workers":5})"), 400);
  EXPECT_THAT(Response(3).body, HasSubstr(R"("param":"workers")"));
  EXPECT_EQ(patch(4, "the-admin", R"({"rate_limit":-1})"), 400);
  EXPECT_EQ(patch(5, "the-admin", R"({"rate_limit":5,"reload_keys":true})"), 200);
  EXPECT_EQ(patch(8, "the-admin", R"({"reload_certificate":true})"), 400);
  EXPECT_THAT(Response(8).body, HasSubstr("first.key"));
  certificate = OkStatus();
  EXPECT_EQ(patch(9, "the-admin", R"({"reload_certificate":true})"), 200);
  EXPECT_THAT(Response(5).body, HasSubstr(R"("rate_limit":5)"));
  Get(6, "/v1/models", "Bearer secret-1");
  EXPECT_EQ(Response(6).status, 401);
  Get(7, "/v1/models", "Bearer secret-3");
  EXPECT_EQ(Response(7).status, 200);
}

TEST_F(ApiTest, EveryRequestLeavesOneLineWithoutItsTexts) {
  Make({.model = "tiny",
        .vocab = 4096,
        .positions_max = 100,
        .keys = {.keys = {"secret-1", "secret-22"}}});
  std::vector<std::string> lines;
  AccessLog log(recorder_, [&lines](std::string_view line) { lines.emplace_back(line); });
  api_->SetAccessLog(&log);
  api_->OnJobMessage(JobState{.phase = JobPhase::kReady});
  const auto post = [this](uint64_t connection, const std::string& more) {
    api_->OnRequest({.connection = {connection},
                     .method = "POST",
                     .path = "/v1/completions",
                     .authorization = "Bearer secret-22",
                     .content_type = "application/json",
                     .id = "00000000000000ab",
                     .trace = {.trace_id = "0123456789abcdef0123456789abcdef", .flags = "01"},
                     .body = R"({"prompt":"a private thought")" + more + "}"});
  };
  post(1, "");
  Say(1, "a private answer");
  EXPECT_TRUE(lines.empty());
  End(1);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(ToJob<SubmitRequest>().at(0).trace_id, "0123456789abcdef0123456789abcdef");
  EXPECT_THAT(
      lines[0],
      HasSubstr(
          R"("request":"00000000000000ab","method":"POST","path":"/v1/completions","status":200,)"
          R"("outcome":"done","key":2,"duration_ms":)"));
  EXPECT_THAT(lines[0], HasSubstr(R"("prompt_tokens":3,"completion_tokens":2,)"
                                  R"("trace":"0123456789abcdef0123456789abcdef"})"));
  EXPECT_TRUE(lines[0].ends_with("}\n"));
  post(2, R"(,"stream":true)");
  Say(2, "a private answer");
  End(2);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(lines[1], HasSubstr(R"("first_ms":)"));
  post(3, R"(,"top_p":7)");
  post(4, R"(,"stream":true)");
  api_->OnGone({4});
  post(5, R"(,"stream":true)");
  Say(4, "x");
  End(4, FinishReason::kError, StatusCode::kInternal);
  Get(6, "/v1/models");
  (void)api_->Refusal(431, "too large");
  ASSERT_EQ(lines.size(), 7U);
  EXPECT_THAT(lines[2], HasSubstr(R"("status":400,"outcome":"refused","key":2)"));
  EXPECT_THAT(lines[3], HasSubstr(R"("status":0,"outcome":"client gone")"));
  EXPECT_THAT(lines[4], HasSubstr(R"("status":200,"outcome":"failed")"));
  EXPECT_THAT(lines[5],
              HasSubstr(R"("path":"/v1/models","status":401,"outcome":"refused","key":0)"));
  EXPECT_THAT(lines[6], HasSubstr(R"("status":431)"));
  for (const std::string& line : lines) {
    EXPECT_EQ(line.find("private"), std::string::npos);
    EXPECT_EQ(line.find("secret"), std::string::npos);
  }
}

TEST_F(ApiTest, UnknownPathsAndMethodsHaveTheErrorShape) {
  Get(1, "/nothing");
  EXPECT_EQ(Response(1).status, 404);
  EXPECT_THAT(Response(1).body, HasSubstr(R"({"error":{"message":)"));
  Get(2, "/v1/completions");
  EXPECT_EQ(Response(2).status, 405);
  Get(3, "/v1/models/tiny");
  EXPECT_EQ(Response(3).status, 200);
  Get(4, "/v1/models/x");
  EXPECT_THAT(Response(4).body, HasSubstr("model_not_found"));
}

TEST_F(ApiTest, AQuietStreamIsKeptAlive) {
  Post(1, R"({"prompt":"Hi","stream":true})");
  api_->OnTick(2'000'000'000);
  ASSERT_EQ(recorder_.streams.count(1), 1U);
  EXPECT_EQ(recorder_.streams[1], "");
  api_->OnTick(18'000'000'000);
  EXPECT_EQ(recorder_.streams[1], ": keep-alive\n\n");
}

}  // namespace
}  // namespace expertflow

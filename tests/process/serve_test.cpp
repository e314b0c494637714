// `expertflow serve` as clients meet it: over loopback, with good and bad requests, with clients
// that vanish or stall, with workers that are killed, and at its own end.
#include <gmock/gmock.h>

#include <fstream>
#include <list>

#include "common/json_string.h"
#include "tests/process/http_client.h"
#include "tests/process/program.h"
#include "tests/process/server.h"

namespace expertflow::testing {
namespace {

using ::testing::HasSubstr;

std::string Body(int tokens, const std::string& more = "") {
  return R"({"prompt":"The lighthouse keeper","temperature":0,"ignore_eos":true,"max_tokens":)" +
         std::to_string(tokens) + more + "}";
}

// Slow enough to be disturbed half-way: the emulated link is the bottleneck.
std::vector<std::string> Slow(std::vector<std::string> more) {
  more.insert(more.end(), {"--expert-memory", "20%", "--link", "60MB/s"});
  return more;
}

std::string TextOfRun(int tokens, const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"run",
                                        "--model",
                                        kModel,
                                        "--prompt",
                                        "The lighthouse keeper",
                                        "--max-tokens",
                                        std::to_string(tokens),
                                        "--ignore-eos"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  Program run(arguments);
  EXPECT_EQ(run.Wait(), 0) << run.err();
  std::string text = run.out();
  EXPECT_TRUE(text.ends_with('\n'));
  text.pop_back();
  return text;
}

TEST(ServeTest, SameTextAsRunWholeAndStreamedWithExactUsage) {
  const std::string expected = TextOfRun(60);
  Server server({"--workers", "2"});
  EXPECT_EQ(StatusOf(server.Get("/health")), 200);
  EXPECT_THAT(server.Get("/v1/models"), HasSubstr(R"("id":"tiny-moe")"));
  EXPECT_THAT(server.Get("/v1/expertflow/status"), HasSubstr(R"("phase": "ready")"));

  const std::string whole = server.Post("/v1/completions", Body(60));
  EXPECT_EQ(StatusOf(whole), 200);
  EXPECT_EQ(JoinedStrings(whole, "text"), expected);
  EXPECT_THAT(whole, HasSubstr(R"("completion_tokens":60)"));
  EXPECT_THAT(whole, HasSubstr(R"("finish_reason":"length")"));

  const std::string stream = Unchunked(server.Post(
      "/v1/completions", Body(60, R"(,"stream":true,"stream_options":{"include_usage":true})")));
  EXPECT_EQ(JoinedStrings(stream, "text"), expected);
  EXPECT_THAT(stream, HasSubstr(R"("completion_tokens":60)"));
  EXPECT_TRUE(stream.ends_with("data: [DONE]\n\n")) << stream;

  // The same from the same chat, whichever way its prompt is made.
  const std::string chat = server.Post(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"Hello!"}],"temperature":0,"max_tokens":12})");
  EXPECT_EQ(StatusOf(chat), 200);
  EXPECT_THAT(chat, HasSubstr(R"("object":"chat.completion")"));
  const std::string by_hand = server.Post(
      "/v1/completions",
      R"({"prompt":"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n)"
      R"(Hello!<|im_end|>\n<|im_start|>assistant\n","temperature":0,"max_tokens":12})");
  EXPECT_EQ(JoinedStrings(chat, "content"), JoinedStrings(by_hand, "text"));
  EXPECT_NE(JoinedStrings(chat, "content"), "");

  // A stop string in the middle ends the text before it, and never shows.
  const std::string stop = expected.substr(expected.size() / 2, 3);
  ASSERT_EQ(stop.find_first_of("\"\\\n"), std::string::npos) << "choose other characters";
  for (const std::string& how : {std::string(), std::string(R"(,"stream":true)")}) {
    const std::string stopped =
        server.Post("/v1/completions", Body(60, how + R"(,"stop":[")" + stop + "\"]"));
    const std::string text = JoinedStrings(how.empty() ? stopped : Unchunked(stopped), "text");
    EXPECT_EQ(text, expected.substr(0, expected.find(stop)));
    EXPECT_THAT(stopped, HasSubstr(R"("finish_reason":"stop")"));
  }
  server.ExpectEnds();
}

TEST(ServeTest, BadRequestsNameTheParameterAndHarmNothing) {
  Server server;
  EXPECT_EQ(StatusOf(server.Post("/v1/completions", "{")), 400);
  EXPECT_THAT(server.Post("/v1/completions", Body(5, R"(,"top_p":7)")),
              HasSubstr(R"("param":"top_p")"));
  EXPECT_THAT(server.Post("/v1/completions", Body(5000)), HasSubstr("context_length_exceeded"));
  EXPECT_EQ(StatusOf(server.Post("/v1/nothing", "{}")), 404);
  EXPECT_EQ(StatusOf(server.Post("/v1/completions", std::string(9 << 20, ' '))), 413);
  HttpClient noise(server.port());
  noise.Send("\x16\x03\x01 nonsense\r\n\r\n");
  EXPECT_EQ(StatusOf(noise.ReadAll()), 400);
  EXPECT_EQ(StatusOf(server.Post("/v1/completions", Body(5))), 200);
  server.ExpectEnds();
}

TEST(ServeTest, AWorkerKilledWhileStreamingLeavesNoGapAndNoRepetition) {
  const std::string expected = TextOfRun(120);
  Server server(Slow({"--workers", "2"}));
  HttpClient client(server.port());
  client.Post("/v1/completions", Body(120, R"(,"stream":true)"));
  client.ReadUntil("\"text\"");
  server.program().Kill("expertflow worker");  // the first has the sequence
  const std::string stream = Unchunked(client.ReadAll());
  EXPECT_EQ(JoinedStrings(stream, "text"), expected);
  EXPECT_TRUE(stream.ends_with("data: [DONE]\n\n"));
  EXPECT_TRUE(server.Shows("expertflow_workers_lost_total 1"));
  server.ExpectEnds();
}

constexpr const char* kStory =
    "The lighthouse keeper walked down to the harbour, as he did each morning, and looked for the "
    "boat that had gone out in the night. The sea was calm, and the wind came from the south.";

int64_t CachedTokens(const std::string& answer) {
  const std::string key = "\"cached_tokens\":";
  const size_t at = answer.find(key);
  return at == std::string::npos ? -1 : std::atoll(answer.c_str() + at + key.size());
}

// Texts are those of a server without it, on whichever worker, and after one was killed.
TEST(ServeTest, WhatBeginsAlikeIsReusedAndChangesNoText) {
  const auto body = [](const std::string& end, int n) {
    return R"({"temperature":0.7,"seed":5,"ignore_eos":true,"max_tokens":40,"n":)" +
           std::to_string(n) + R"(,"prompt":")" + kStory + end + "\"}";
  };
  const std::vector<std::pair<std::string, int>> prompts = {
      {" First", 3}, {" First", 1}, {" Second", 1}, {" Third", 1}, {" Third", 1}};
  std::vector<std::string> expected;
  {
    Server plain({"--workers", "1", "--prefix-cache", "off"});
    for (const auto& [end, n] : prompts) {
      const std::string answer = plain.Post("/v1/completions", body(end, n));
      EXPECT_EQ(CachedTokens(answer), 0);
      expected.push_back(JoinedStrings(answer, "text"));
    }
    plain.ExpectEnds();
  }
  Server server({"--workers", "2", "--kv-memory", "4MB"});
  const auto ask = [&](size_t i) {
    const std::string answer =
        server.Post("/v1/completions", body(prompts[i].first, prompts[i].second));
    EXPECT_EQ(JoinedStrings(answer, "text"), expected[i]);
    return CachedTokens(answer);
  };
  EXPECT_EQ(ask(0), 0);  // of the first choice; the others share it
  const int64_t again = ask(1);
  EXPECT_GE(again, 32);
  EXPECT_GE(ask(2), again - 4);
  EXPECT_FALSE(server.Shows("expertflow_cached_prompt_tokens_total 0"));
  server.program().Kill("expertflow worker");
  EXPECT_TRUE(Eventually([&] { return server.Shows("expertflow_workers_ready 2"); }));
  ask(3);
  EXPECT_GE(ask(4), 32);
  server.ExpectEnds();
}

// Room for less than two of them: they take turns, and each has its text.
TEST(ServeTest, AKvCacheThatIsTooSmallForAllCostsTimeOnly) {
  Server server({"--workers", "1", "--kv-memory", "1200KB"});
  const std::string expected = TextOfRun(120);
  std::list<HttpClient> clients;
  for (int i = 0; i < 6; ++i) {
    clients.emplace_back(server.port());
    clients.back().Post("/v1/completions", Body(120, R"(,"priority":)" + std::to_string(i % 3)));
  }
  for (HttpClient& client : clients) EXPECT_EQ(JoinedStrings(client.ReadAll(), "text"), expected);
  EXPECT_FALSE(server.Shows("expertflow_worker_preemptions_total{worker=\"2\"} 0"));
  EXPECT_TRUE(server.Shows("expertflow_worker_kv_blocks_used{worker=\"2\"} 0"));
  server.ExpectEnds();
}

// The numbers of every "token_logprobs":[...], joined.
std::string JoinedLogprobs(const std::string& text) {
  const std::string key = "\"token_logprobs\":[";
  std::string joined;
  for (size_t at = text.find(key); at != std::string::npos; at = text.find(key, at)) {
    at += key.size();
    joined += text.substr(at, text.find(']', at) - at) + ",";
  }
  return joined;
}

// What a penalty counts moves with the sequence, and so do log probabilities.
TEST(ServeTest, AWorkerKilledUnderASampledAndPenalisedText) {
  const std::string expected = TextOfRun(
      120, {"--temperature", "0.8", "--seed", "7", "--min-p", "0.02", "--repetition-penalty", "1.2",
            "--frequency-penalty", "0.5", "--presence-penalty", "0.25"});
  EXPECT_NE(expected, TextOfRun(120, {"--temperature", "0.8", "--seed", "7"}));
  Server server(Slow({"--workers", "2"}));
  const std::string body =
      R"({"prompt":"The lighthouse keeper","ignore_eos":true,"max_tokens":120,"temperature":0.8,)"
      R"("seed":7,"min_p":0.02,"repetition_penalty":1.2,"frequency_penalty":0.5,)"
      R"("presence_penalty":0.25,"logprobs":2,"stream":)";
  const std::string logprobs = JoinedLogprobs(server.Post("/v1/completions", body + "false}"));
  EXPECT_EQ(std::count(logprobs.begin(), logprobs.end(), ','), 120);
  HttpClient client(server.port());
  client.Post("/v1/completions", body + "true}");
  client.ReadUntil("\"text\"");
  server.program().Kill("expertflow worker");
  const std::string stream = Unchunked(client.ReadAll());
  EXPECT_EQ(JoinedStrings(stream, "text"), expected);
  EXPECT_EQ(JoinedLogprobs(stream), logprobs);
  EXPECT_TRUE(server.Shows("expertflow_workers_lost_total 1"));
  server.ExpectEnds();
}

// Where a text is in its grammar moves with the sequence; a worker that has just come learns of the
// vocabulary.
TEST(ServeTest, AWorkerKilledUnderAGrammar) {
  const std::string body =
      R"({"prompt":"The lighthouse keeper","max_tokens":150,"temperature":1.5,"seed":9,)"
      R"("response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{)"
      R"("type":"array","items":{"type":"integer"},"minItems":60}}},"stream":)";
  std::string expected;
  {
    Server quick;
    expected = JoinedStrings(quick.Post("/v1/completions", body + "false}"), "text");
    EXPECT_EQ(expected.substr(0, 1), "[");
    quick.ExpectEnds();
  }
  Server server(Slow({"--workers", "1"}));
  HttpClient client(server.port());
  client.Post("/v1/completions", body + "true}");
  client.ReadUntil("\"text\"");
  server.program().Kill("expertflow worker");
  EXPECT_EQ(JoinedStrings(Unchunked(client.ReadAll()), "text"), expected);
  EXPECT_TRUE(server.Shows("expertflow_workers_lost_total 1"));
  server.ExpectEnds();
}

TEST(ServeTest, ATerminalsChatIsTheServersAndRemembers) {
  Server server;
  const auto answer = [&server](const std::string& messages) {
    return JoinedStrings(
        server.Post("/v1/chat/completions",
                    R"({"messages":[)" + messages + R"(],"temperature":0,"max_tokens":12})"),
        "content");
  };
  const auto said = [](const std::string& role, const std::string& text) {
    return R"({"role":")" + role + R"(","content":)" + JsonQuoted(text) + "}";
  };
  const std::string first = answer(said("user", "Hello!\nYou!"));
  const std::string second = answer(said("user", "Hello!\nYou!") + "," + said("assistant", first) +
                                    "," + said("user", "And then?"));
  const std::string third = answer(said("system", "Be brief.") + "," + said("user", "And then?"));
  const std::string url = "http://127.0.0.1:" + std::to_string(server.port());
  const std::string talk =
      "printf 'Hello!\\\\\nYou!\nAnd then?\n/clear\n/nonsense\n/system Be brief.\nAnd then?' | "
      "exec \"$0\" chat --url " +
      url + " --temperature 0 --max-tokens 12";
  Program chat(Program::Whole(), {"/bin/bash", "-c", talk, EXPERTFLOW_PROGRAM}, {});
  EXPECT_EQ(chat.Wait(), 0) << chat.err();
  EXPECT_EQ(chat.out(), first + "\n" + second + "\n" + third + "\n");
  EXPECT_THAT(chat.err(), HasSubstr("/clear"));
  server.ExpectEnds();
  Program alone(Program::Whole(),
                {"/bin/bash", "-c", "echo a | \"$0\" chat --url " + url, EXPERTFLOW_PROGRAM}, {});
  EXPECT_EQ(alone.Wait(), 1);
  EXPECT_THAT(alone.err(), HasSubstr("is the server running?"));
}

TEST(ServeTest, TopShowsWhatRuns) {
  Server server(Slow({}));
  HttpClient client(server.port());
  client.Post("/v1/completions", Body(1500, R"(,"stream":true)"));
  client.ReadUntil("\"text\"");
  const std::string url = "http://127.0.0.1:" + std::to_string(server.port());
  Program top({"top", "--url", url, "--interval", "2500ms", "--looks", "1"});
  EXPECT_EQ(top.Wait(), 0) << top.err();
  for (const char* figure : {"ready   1 workers, 1 stores", "running 1, queued 0", "first token"}) {
    EXPECT_THAT(top.out(), HasSubstr(figure));
  }
  EXPECT_THAT(top.out(), ::testing::Not(HasSubstr(" 0.0 tokens/s")));
  client.Reset();
  server.ExpectEnds();
  Program alone({"top", "--url", url});
  EXPECT_EQ(alone.Wait(), 1);
}

TEST(ServeTest, ALoadIsMeasured) {
  Server server;
  Program bench({"bench", "serve", "--url", "http://127.0.0.1:" + std::to_string(server.port()),
                 "--requests", "20", "--rate", "100", "--prompt-tokens", "5", "--max-tokens", "8",
                 "--slo-ttft", "100s", "--json", "-"});
  EXPECT_EQ(bench.Wait(), 0) << bench.err();
  for (const char* figure : {"20 of 20 requests done", "first text (TTFT)", "\"done\": 20,",
                             "\"completion_tokens\": 160,", "\"good\": 20,", "\"errors\": {}"}) {
    EXPECT_THAT(bench.out(), HasSubstr(figure));
  }
  server.ExpectEnds();
  Program nobody({"bench", "serve", "--url", "http://127.0.0.1:1", "--requests", "2"});
  EXPECT_EQ(nobody.Wait(), 1);
  EXPECT_THAT(nobody.out(), HasSubstr("2 requests: no answer"));
}

TEST(ServeTest, AClientThatVanishesFreesItsSequence) {
  Server server(Slow({"--sequences-max", "1"}));
  for (const char* how : {"", R"(,"stream":true)"}) {
    HttpClient client(server.port());
    client.Post("/v1/completions", Body(1500, how));
    ASSERT_TRUE(Eventually([&] { return server.Shows("expertflow_requests_running 1"); }));
    client.Reset();
    EXPECT_TRUE(Eventually([&] { return server.Shows("expertflow_requests_running 0"); }, 5'000));
  }
  EXPECT_TRUE(server.Shows("expertflow_requests_total{outcome=\"cancelled\"} 2"));
  EXPECT_EQ(StatusOf(server.Post("/v1/completions", Body(2))), 200);
  server.ExpectEnds();
}

TEST(ServeTest, SlowAndIdleClientsDoNotStopService) {
  Server server({"--connections-max", "50"});
  std::list<HttpClient> slow;
  for (int i = 0; i < 200; ++i) {
    slow.emplace_back(server.port());
    if (i % 2 == 0) slow.back().Send("POST /v1/completions HTTP/1.1\r\nContent-Le");
  }
  EXPECT_EQ(StatusOf(server.Post("/v1/completions", Body(2))), 200);
  EXPECT_EQ(StatusOf(server.Get("/health")), 200);
  server.ExpectEnds();
}

TEST(ServeTest, AFullQueueAsksToTryAgain) {
  Server server(Slow({"--sequences-max", "1", "--queue-max", "1"}));
  std::list<HttpClient> clients;
  for (int i = 0; i < 2; ++i) {
    clients.emplace_back(server.port()).Post("/v1/completions", Body(1500, R"(,"stream":true)"));
    ASSERT_TRUE(Eventually([&] {
      return server.Shows(i == 0 ? "expertflow_requests_running 1"
                                 : "expertflow_requests_queued 1");
    }));
  }
  const std::string refused = server.Post("/v1/completions", Body(5));
  EXPECT_EQ(StatusOf(refused), 503);
  EXPECT_THAT(refused, HasSubstr("Retry-After: "));
  for (HttpClient& client : clients) client.Reset();
  EXPECT_TRUE(Eventually([&] { return StatusOf(server.Post("/v1/completions", Body(2))) == 200; }));
  server.ExpectEnds();
}

TEST(ServeTest, SigtermFinishesWhatRunsAndTakesNothingNew) {
  const std::string expected = TextOfRun(60);
  Server server(Slow({}));
  HttpClient client(server.port());
  client.Post("/v1/completions", Body(60, R"(,"stream":true)"));
  client.ReadUntil("\"text\"");
  ::kill(server.program().pid(), SIGTERM);
  EXPECT_TRUE(Eventually([&] { return StatusOf(server.Get("/health")) == 503; }));
  EXPECT_EQ(StatusOf(server.Post("/v1/completions", Body(5))), 503);
  EXPECT_EQ(JoinedStrings(Unchunked(client.ReadAll()), "text"), expected);
  EXPECT_EQ(server.program().Wait(30'000), 0) << server.program().err();
  server.program().ExpectNothingLeft();
}

TEST(ServeTest, ASecondSignalEndsAtOnce) {
  Server server(Slow({}));
  HttpClient client(server.port());
  client.Post("/v1/completions", Body(1500, R"(,"stream":true)"));
  client.ReadUntil("\"text\"");
  ::kill(server.program().pid(), SIGTERM);
  EXPECT_TRUE(Eventually([&] { return StatusOf(server.Get("/health")) == 503; }));
  ::kill(server.program().pid(), SIGTERM);
  EXPECT_EQ(server.program().Wait(20'000), 128 + SIGTERM);
  server.program().ExpectNothingLeft();
}

TEST(ServeTest, TheDrainHasAnEnd) {
  Server server(Slow({"--drain-timeout", "300ms"}));
  HttpClient client(server.port());
  client.Post("/v1/completions", Body(1500, R"(,"stream":true)"));
  client.ReadUntil("\"text\"");
  server.ExpectEnds();
  EXPECT_THAT(client.ReadAll(), HasSubstr(R"({"error":{"message":"the server ends")"));
}

TEST(ServeTest, WithoutItsJobTheServerEndsAndSaysWhy) {
  Server server(Slow({}));
  HttpClient client(server.port());
  client.Post("/v1/completions", Body(1500));
  ASSERT_TRUE(Eventually([&] { return server.Shows("expertflow_requests_running 1"); }));
  server.program().Kill("expertflow coordinator");
  EXPECT_EQ(StatusOf(client.ReadAll()), 503);
  EXPECT_EQ(server.program().Wait(30'000), 1);
  EXPECT_THAT(server.program().err(), HasSubstr("coordinator"));
  server.program().ExpectNothingLeft();
}

TEST(ServeTest, AClientsTraceIsInTheAnswerAndInTheTimeline) {
  const std::string folder = ::testing::TempDir() + "serve-trace-" + std::to_string(::getpid());
  std::filesystem::create_directory(folder);
  Server server({"--trace", folder + "/t"});
  const std::string trace = "0af7651916cd43dd8448eb211c80319c";
  HttpClient client(server.port());
  client.Post("/v1/completions", Body(5), "traceparent: 00-" + trace + "-b7ad6b7169203331-01\r\n");
  EXPECT_THAT(client.ReadAll(), HasSubstr("traceparent: 00-" + trace + "-"));
  server.ExpectEnds();
  std::vector<std::string> arguments = {"trace", "--perfetto", folder + "/perfetto.json"};
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    arguments.push_back(entry.path().string());
  }
  Program show(arguments);
  EXPECT_EQ(show.Wait(), 0) << show.err();
  EXPECT_THAT(ReadAll(folder + "/perfetto.json"), HasSubstr("\"trace_id\":\"" + trace + "\""));
  std::filesystem::remove_all(folder);
}

TEST(ServeTest, WithKeysOnlyTheirOwnersMayAsk) {
  char file[] = "/tmp/eft-keys-XXXXXX";
  UniqueFd fd(::mkstemp(file));
  ASSERT_TRUE(fd.valid());
  std::ofstream(file) << "# ours\nkey-of-a-friend\n";
  const std::string log = std::string(file) + ".log";
  Server server({"--api-keys", file, "--access-log", log});
  EXPECT_EQ(StatusOf(server.Get("/v1/models")), 401);
  HttpClient client(server.port());
  client.Get("/v1/models", "Authorization: Bearer key-of-a-friend\r\n");
  EXPECT_EQ(StatusOf(client.ReadAll()), 200);
  EXPECT_EQ(StatusOf(server.Get("/health")), 200);
  HttpClient change(server.port());
  change.Send(
      "PATCH /v1/expertflow/config HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Authorization: Bearer key-of-a-friend\r\nConnection: close\r\n"
      "Content-Length: 2\r\n\r\n{}");
  EXPECT_EQ(StatusOf(change.ReadAll()), 403);
  server.ExpectEnds();
  const std::string lines = ReadAll(log);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 4) << lines;
  EXPECT_THAT(lines, HasSubstr(R"("path":"/v1/models","status":401,"outcome":"refused","key":0,)"));
  EXPECT_THAT(lines, HasSubstr(R"("path":"/v1/models","status":200,"outcome":"done","key":1,)"));
  EXPECT_EQ(lines.find("friend"), std::string::npos);
  std::filesystem::remove(log);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace expertflow::testing

#include "serving/completion_request.h"

#include <gtest/gtest.h>

namespace expertflow {
namespace {

TEST(CompletionRequestTest, ReadsWhatOpenAiClientsSend) {
  CompletionRequest request;
  const auto error = ParseCompletionRequest(
      R"({"model":"m","prompt":"Hi","max_tokens":7,"temperature":0.5,"top_p":0.9,"top_k":40,
          "seed":-3,"stop":["a","b"],"n":2,"stream":true,"stream_options":{"include_usage":true},
          "echo":true,"ignore_eos":true,"priority":-5,"user":"someone","unknown":{"a":[1]},"logprobs":null})",
      &request);
  ASSERT_FALSE(error) << error->message;
  EXPECT_EQ(request.model, "m");
  ASSERT_EQ(request.prompts.size(), 1U);
  EXPECT_EQ(std::get<std::string>(request.prompts[0]), "Hi");
  EXPECT_EQ(request.max_tokens, 7U);
  EXPECT_FLOAT_EQ(request.sampling.temperature, 0.5F);
  EXPECT_FLOAT_EQ(request.sampling.top_p, 0.9F);
  EXPECT_EQ(request.sampling.top_k, 40);
  EXPECT_EQ(request.sampling.seed, static_cast<uint64_t>(-3));
  EXPECT_TRUE(request.has_seed);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.priority, -5);
  EXPECT_TRUE(request.stream && request.include_usage && request.echo && request.ignore_eos);
}

TEST(CompletionRequestTest, ReadsSamplingOptions) {
  CompletionRequest request;
  const auto error = ParseCompletionRequest(
      R"({"prompt":"a","min_p":0.25,"repetition_penalty":1.5,"frequency_penalty":-0.5,
          "presence_penalty":2,"logit_bias":{"12":-100,"7":1.5}})",
      &request);
  ASSERT_FALSE(error) << error->message;
  EXPECT_FLOAT_EQ(request.sampling.min_p, 0.25F);
  EXPECT_FLOAT_EQ(request.sampling.repetition_penalty, 1.5F);
  EXPECT_FLOAT_EQ(request.sampling.frequency_penalty, -0.5F);
  EXPECT_FLOAT_EQ(request.sampling.presence_penalty, 2);
  ASSERT_EQ(request.sampling.logit_bias.size(), 2U);
  EXPECT_EQ(request.sampling.logit_bias[0].token, 12);
  EXPECT_FLOAT_EQ(request.sampling.logit_bias[1].bias, 1.5F);
}

TEST(CompletionRequestTest, LogprobsAreANumberOrAFlagAndANumber) {
  CompletionRequest request;
  const auto completion = [&](const char* body) {
    EXPECT_FALSE(ParseCompletionRequest(body, &request)) << body;
    return request.logprobs;
  };
  EXPECT_EQ(completion(R"({"prompt":"a"})"), -1);
  EXPECT_EQ(completion(R"({"prompt":"a","logprobs":0})"), 0);
  EXPECT_EQ(completion(R"({"prompt":"a","logprobs":5,"echo":true,"max_tokens":0})"), 5);
  EXPECT_EQ(request.max_tokens, 0U);
  const auto chat = [&](const std::string& more) {
    const std::string body = R"({"messages":[{"role":"user","content":"a"}])" + more + "}";
    EXPECT_FALSE(ParseChatRequest(body, "{}", &request)) << body;
    return request.logprobs;
  };
  EXPECT_EQ(chat(""), -1);
  EXPECT_EQ(chat(R"(,"logprobs":false,"top_logprobs":0)"), -1);
  EXPECT_EQ(chat(R"(,"logprobs":true)"), 0);
  EXPECT_EQ(chat(R"(,"logprobs":true,"top_logprobs":3)"), 3);
}

TEST(CompletionRequestTest, DefaultsAreOpenAis) {
  CompletionRequest request;
  ASSERT_FALSE(ParseCompletionRequest(R"({"prompt":"Hi","max_tokens":null})", &request));
  EXPECT_EQ(request.max_tokens, std::nullopt);
  EXPECT_FLOAT_EQ(request.sampling.temperature, 1);
  EXPECT_FALSE(request.has_seed || request.stream || request.echo);
  EXPECT_EQ(request.n, 1);
}

TEST(CompletionRequestTest, PromptsAreTextOrIdsOrListsOfEither) {
  CompletionRequest request;
  ASSERT_FALSE(ParseCompletionRequest(R"({"prompt":[1,2]})", &request));
  ASSERT_EQ(request.prompts.size(), 1U);
  EXPECT_EQ(std::get<std::vector<int32_t>>(request.prompts[0]), (std::vector<int32_t>{1, 2}));
  ASSERT_FALSE(ParseCompletionRequest(R"({"prompt":["a","b"]})", &request));
  EXPECT_EQ(request.prompts.size(), 2U);
  ASSERT_FALSE(ParseCompletionRequest(R"({"prompt":[[1],[2,3]]})", &request));
  EXPECT_EQ(std::get<std::vector<int32_t>>(request.prompts[1]), (std::vector<int32_t>{2, 3}));
}

struct BadCase {
  const char* body;
  const char* param;
};

class BadRequestTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadRequestTest, NamesTheParameter) {
  CompletionRequest request;
  const auto error = ParseCompletionRequest(GetParam().body, &request);
  ASSERT_TRUE(error) << GetParam().body;
  EXPECT_EQ(error->http_status, 400);
  EXPECT_EQ(error->param, GetParam().param) << error->message;
  EXPECT_NE(error->message, "");
}

INSTANTIATE_TEST_SUITE_P(
    Bodies, BadRequestTest,
    ::testing::Values(
        BadCase{"", ""}, BadCase{"{", ""}, BadCase{"[]", ""}, BadCase{"7", ""},
        BadCase{"{\"prompt\":\"\xff\"}", ""}, BadCase{R"({"prompt":"a","seed":1e999})", ""},
        BadCase{R"({"prompt":"a","temperature":NaN})", ""}, BadCase{"{}", "prompt"},
        BadCase{R"({"prompt":""})", "prompt"}, BadCase{R"({"prompt":[]})", "prompt"},
        BadCase{R"({"prompt":7})", "prompt"}, BadCase{R"({"prompt":[1,"a"]})", "prompt"},
        BadCase{R"({"prompt":[-1]})", "prompt"}, BadCase{R"({"prompt":[1.5]})", "prompt"},
        BadCase{R"({"prompt":[18446744073709551615]})", "prompt"},
        BadCase{R"({"prompt":[2147483648]})", "prompt"}, BadCase{R"({"prompt":[[]]})", "prompt"},
        BadCase{R"({"prompt":"a","model":7})", "model"},
        BadCase{R"({"prompt":"a","max_tokens":0})", "max_tokens"},
        BadCase{R"({"prompt":"a","max_tokens":-5})", "max_tokens"},
        BadCase{R"({"prompt":"a","max_tokens":"5"})", "max_tokens"},
        BadCase{R"({"prompt":"a","max_tokens":18446744073709551615})", "max_tokens"},
        BadCase{R"({"prompt":"a","temperature":-0.1})", "temperature"},
        BadCase{R"({"prompt":"a","temperature":2.1})", "temperature"},
        BadCase{R"({"prompt":"a","temperature":1e300})", "temperature"},
        BadCase{R"({"prompt":"a","temperature":true})", "temperature"},
        BadCase{R"({"prompt":"a","top_p":1.01})", "top_p"},
        BadCase{R"({"prompt":"a","top_k":-2})", "top_k"},
        BadCase{R"({"prompt":"a","seed":0.5})", "seed"},
        BadCase{R"({"prompt":"a","stop":7})", "stop"},
        BadCase{R"({"prompt":"a","stop":["a",""]})", "stop"},
        BadCase{R"({"prompt":"a","n":0})", "n"}, BadCase{R"({"prompt":"a","n":129})", "n"},
        BadCase{R"({"prompt":["a","b"],"n":65})", "n"},
        BadCase{R"({"prompt":"a","stream":"yes"})", "stream"},
        BadCase{R"({"prompt":"a","stream_options":{}})", "stream_options"},
        BadCase{R"({"prompt":"a","priority":1001})", "priority"},
        BadCase{R"({"prompt":"a","stream":true,"stream_options":{"include_usage":1}})",
                "stream_options.include_usage"},
        BadCase{R"({"prompt":"a","logprobs":21})", "logprobs"},
        BadCase{R"({"prompt":"a","logprobs":-1})", "logprobs"},
        BadCase{R"({"prompt":"a","logprobs":true})", "logprobs"},
        BadCase{R"({"prompt":"a","echo":true,"max_tokens":-1})", "max_tokens"},
        BadCase{R"({"prompt":"a","prompt_logprobs":1})", "prompt_logprobs"},
        BadCase{R"({"prompt":"a","presence_penalty":2.5})", "presence_penalty"},
        BadCase{R"({"prompt":"a","frequency_penalty":-2.1})", "frequency_penalty"},
        BadCase{R"({"prompt":"a","repetition_penalty":0})", "repetition_penalty"},
        BadCase{R"({"prompt":"a","min_p":1.5})", "min_p"},
        BadCase{R"({"prompt":"a","min_p":"0.1"})", "min_p"},
        BadCase{R"({"prompt":"a","logit_bias":[1]})", "logit_bias"},
        BadCase{R"({"prompt":"a","logit_bias":{"5":101}})", "logit_bias"},
        BadCase{R"({"prompt":"a","logit_bias":{"5":"1"}})", "logit_bias"},
        BadCase{R"({"prompt":"a","logit_bias":{"-5":1}})", "logit_bias"},
        BadCase{R"({"prompt":"a","logit_bias":{"5x":1}})", "logit_bias"},
        BadCase{R"({"prompt":"a","logit_bias":{"":1}})", "logit_bias"},
        BadCase{R"({"prompt":"a","logit_bias":{"99999999999":1}})", "logit_bias"},
        BadCase{R"({"prompt":"a","response_format":{"type":"xml"}})", "response_format"},
        BadCase{R"({"prompt":"a","response_format":"json_object"})", "response_format"},
        BadCase{R"({"prompt":"a","response_format":{"type":"json_schema"}})", "response_format"},
        BadCase{R"({"prompt":"a","response_format":{"type":"json_schema","json_schema":7}})",
                "response_format"},
        BadCase{R"({"prompt":"a","response_format":{"type":"json_schema","json_schema":{"schema":
                {"type":"string","pattern":"(?=a)b"}}}})",
                "response_format"},
        BadCase{R"({"prompt":"a","response_format":{"type":"json_object"},"ignore_eos":true})",
                "ignore_eos"},
        BadCase{R"({"prompt":"a","tools":[{}]})", "tools"},
        BadCase{R"({"prompt":"a","best_of":3})", "best_of"}));

TEST(CompletionRequestTest, HarmlessValuesOfUnsupportedParametersAreTaken) {
  CompletionRequest request;
  const auto error = ParseCompletionRequest(
      R"({"prompt":"a","n":2,"best_of":2,"logprobs":false,"presence_penalty":0.0,"logit_bias":{},
          "response_format":{"type":"text"},"tools":[],"min_p":0,"repetition_penalty":1.0})",
      &request);
  EXPECT_FALSE(error) << error->message;
}

TEST(CompletionRequestTest, AChatsMessagesBecomeVariablesOfTheTemplate) {
  CompletionRequest request;
  const auto error = ParseChatRequest(
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],
          "name":"x"},{"role":"assistant","tool_calls":[{"z":1,"a":2}]}],"max_completion_tokens":4,
          "chat_template_kwargs":{"enable_thinking":false}})",
      R"({"bos_token":"<s>"})", &request);
  ASSERT_FALSE(error) << error->message;
  EXPECT_EQ(request.chat_json,
            R"({"bos_token":"<s>","messages":[{"role":"user","content":"a\nb","name":"x"},)"
            R"({"role":"assistant","tool_calls":[{"z":1,"a":2}]}],"add_generation_prompt":true,)"
            R"("enable_thinking":false})");
  EXPECT_EQ(request.max_tokens, 4U);
}

TEST(CompletionRequestTest, ToolsGoToTheTemplateAndADemandedCallIsAGrammar) {
  const std::string body =
      R"({"messages":[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f",
          "arguments":"{\"a\": 1}"}}]},{"role":"tool","content":"2"}],
          "tools":[{"type":"function","function":{"name":"f"}},
                   {"type":"function","function":{"name":"g"}}],"tool_choice":)";
  CompletionRequest request;
  const auto parse = [&](const std::string& choice) {
    const auto error = ParseChatRequest(body + choice + "}", "{}", &request);
    EXPECT_FALSE(error) << error->message;
  };
  parse("\"auto\"");
  EXPECT_TRUE(request.has_tools);
  EXPECT_EQ(request.grammar, "");
  EXPECT_NE(request.chat_json.find(R"("tools":[{"type":"function","function":{"name":"f"}},)"),
            std::string::npos);
  // As an object, whatever the client sends.
  EXPECT_NE(request.chat_json.find(R"("arguments":{"a":1})"), std::string::npos);
  parse("\"none\"");
  EXPECT_FALSE(request.has_tools);
  EXPECT_EQ(request.chat_json.find("\"tools\""), std::string::npos);
  parse("\"required\"");
  EXPECT_NE(request.grammar.find(R"(\"f\")"), std::string::npos);
  EXPECT_NE(request.grammar.find(R"(\"g\")"), std::string::npos);
  parse(R"({"type":"function","function":{"name":"g"}})");
  EXPECT_EQ(request.grammar.find(R"(\"f\")"), std::string::npos);
  EXPECT_NE(request.grammar.find(R"(\"g\")"), std::string::npos);
}

// As JSON schemas have it, 5.0 is an integer.
TEST(CompletionRequestTest, WholeNumbersMayHaveAPoint) {
  CompletionRequest request;
  ASSERT_FALSE(
      ParseCompletionRequest(R"({"prompt":[7.0,8],"max_tokens":5.0,"seed":-1e3})", &request));
  EXPECT_EQ(std::get<std::vector<int32_t>>(request.prompts.at(0)), (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(request.max_tokens, 5U);
  for (const char* bad : {R"({"prompt":[7.5]})", R"({"prompt":[1e10]})", R"({"prompt":[-1.0]})",
                          R"({"prompt":"a","max_tokens":5.5})", R"({"prompt":"a","seed":1e300})",
                          R"({"prompt":"a","seed":18446744073709551615})"}) {
    EXPECT_TRUE(ParseCompletionRequest(bad, &request)) << bad;
  }
}

TEST(CompletionRequestTest, AResponseFormatIsAGrammar) {
  CompletionRequest request;
  ASSERT_FALSE(ParseCompletionRequest(R"({"prompt":"a","response_format":{"type":"json_object"}})",
                                      &request));
  EXPECT_EQ(request.grammar, R"({"alternatives":[{"schema":{"type":"object"}}]})");
  ASSERT_FALSE(ParseCompletionRequest(
      R"({"prompt":"a","response_format":{"type":"json_schema","json_schema":{"name":"x",
          "strict":true,"schema":{"type":"boolean"}}}})",
      &request));
  EXPECT_EQ(request.grammar, R"({"alternatives":[{"schema":{"type":"boolean"}}]})");
}

TEST(CompletionRequestTest, BadMessagesAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "messages"},
      {R"({"messages":"a"})", "messages"},
      {R"({"messages":[]})", "messages"},
      {R"({"messages":["a"]})", "messages[0]"},
      {R"({"messages":[{"content":"a"}]})", "messages[0]"},
      {R"({"messages":[{"role":1,"content":"a"}]})", "messages[0]"},
      {R"({"messages":[{"role":"user"}]})", "messages[0]"},
      {R"({"messages":[{"role":"user","content":"a"},{"role":"user","content":5}]})",
       "messages[1].content"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":[]})",
       "chat_template_kwargs"},
      {R"({"messages":[{"role":"user","content":"a"}],"logprobs":5})", "logprobs"},
      {R"({"messages":[{"role":"user","content":"a"}],"top_logprobs":2})", "top_logprobs"},
      {R"({"messages":[{"role":"user","content":"a"}],"logprobs":true,"top_logprobs":21})",
       "top_logprobs"},
      {R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function"}]})", "tools[0]"},
      {R"({"messages":[{"role":"user","content":"a"}],"tools":7})", "tools"},
      {R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"a b"}}]})",
       "tools[0]"},
      {R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f","parameters":[]}}]})",
       "tools[0]"},
      {R"({"messages":[{"role":"user","content":"a"}],"tool_choice":"required"})", "tool_choice"},
      {R"({"messages":[{"role":"user","content":"a"}],"tool_choice":"perhaps","tools":[{"type":"function","function":{"name":"f"}}]})",
       "tool_choice"},
      {R"({"messages":[{"role":"user","content":"a"}],"tool_choice":{"type":"function","function":{"name":"g"}},"tools":[{"type":"function","function":{"name":"f"}}]})",
       "tool_choice"},
      {R"({"messages":[{"role":"user","content":"a"}],"parallel_tool_calls":false,"tools":[{"type":"function","function":{"name":"f"}}]})",
       "parallel_tool_calls"},
      {R"({"messages":[{"role":"user","content":"a"}],"tool_choice":"required","tools":[{"type":"function","function":{"name":"f","parameters":{"oneOf":[]}}}]})",
       "tools"}};
  for (const auto& [body, param] : cases) {
    CompletionRequest request;
    const auto error = ParseChatRequest(body, "{}", &request);
    ASSERT_TRUE(error) << body;
    EXPECT_EQ(error->param, param) << error->message;
  }
}

TEST(CompletionRequestTest, DeepNestingIsRefusedNotFollowed) {
  CompletionRequest request;
  const std::string deep(1 << 20, '[');
  const auto error = ParseCompletionRequest("{\"prompt\":" + deep, &request);
  ASSERT_TRUE(error);
  EXPECT_NE(error->message.find("nested"), std::string::npos) << error->message;
}

}  // namespace
}  // namespace expertflow

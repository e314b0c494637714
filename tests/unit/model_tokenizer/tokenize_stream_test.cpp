#include "model/tokenizer/tokenize_stream.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "tests/unit/model_tokenizer/small_tokenizer.h"

namespace expertflow {
namespace {

class TokenizeStreamTest : public testing::Test {
 protected:
  void SetUp() override {
    auto tokenizer = Tokenizer::Parse(SmallTokenizerJson().dump(), "small.json");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    tokenizer_ = std::move(*tokenizer);
  }

  std::string ErrorOf(const std::string& lines) {
    std::istringstream in(lines);
    std::ostringstream out;
    const Status status = TokenizeStream(*tokenizer_, in, out);
    return status.ok() ? "accepted" : status.message();
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(TokenizeStreamTest, ThereAndBack) {
  std::istringstream in(
      "{\"text\": \" the<|end|>\"}\n"
      "{\"ids\": [34, 92, 10, 0, 258, 300]}\n"
      "{\"text\": \"\"}\n"
      "{\"ids\": []}\n"
      "{\"ids\": [228, 184]}");
  std::ostringstream out;
  const Status status = TokenizeStream(*tokenizer_, in, out);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(out.str(),
            "{\"ids\":[258,300]}\n"
            "{\"text\":\"\\\"\\\\\\n\\u0000 the<|end|>\"}\n"
            "{\"ids\":[]}\n"
            "{\"text\":\"\"}\n"
            "{\"text\":\"\uFFFD\"}\n");
}

TEST_F(TokenizeStreamTest, ABadLineIsNamed) {
  const std::string good = "{\"text\": \"a\"}\n";
  EXPECT_EQ(ErrorOf(good), "accepted");
  EXPECT_EQ(ErrorOf(good + "text"), "line 2: not valid JSON");
  EXPECT_EQ(ErrorOf(good + "\n"), "line 2: not valid JSON");
  EXPECT_EQ(ErrorOf("[]"), "line 1: expected {\"text\": \"...\"} or {\"ids\": [...]}");
  EXPECT_EQ(ErrorOf("{\"txt\": 1}"), "line 1: expected \"text\" or \"ids\" as the only key");
  EXPECT_EQ(ErrorOf("{\"text\": 1}"), "line 1: \"text\" must be a string");
  EXPECT_EQ(ErrorOf("{\"ids\": 1}"), "line 1: \"ids\" must be an array of token ids");
  for (const std::string id : {"-1", "301", "1.5", "\"a\"", "18446744073709551615"}) {
    EXPECT_EQ(ErrorOf("{\"ids\": [1, " + id + "]}"),
              "line 1: \"ids\" has " + id + ", token ids are integers from 0 to 300");
  }
}

}  // namespace
}  // namespace expertflow

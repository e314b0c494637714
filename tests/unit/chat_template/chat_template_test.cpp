#include "serving/chat_template/chat_template.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace expertflow {
namespace {

constexpr int64_t kNow = 1'700'000'000;

// Each line of a file that make_vectors.py has written. A refusal has other words than Jinja's,
// unless they are the template's own.
int CheckVectors(const std::string& path) {
  std::ifstream file(path);
  int count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const auto vector = nlohmann::ordered_json::parse(line);
    SCOPED_TRACE(vector["name"].get<std::string>());
    const auto chat = ChatTemplate::Parse(vector["template"].get<std::string>(), "t");
    EXPECT_TRUE(chat.ok()) << chat.status().message();
    if (!chat.ok()) continue;
    const auto rendered = chat->Render(vector["variables"].dump(), kNow);
    if (vector.contains("rendered")) {
      EXPECT_TRUE(rendered.ok()) << rendered.status().message();
      EXPECT_EQ(rendered.ok() ? *rendered : "", vector["rendered"].get<std::string>());
    } else {
      EXPECT_FALSE(rendered.ok()) << "rendered: " << *rendered;
    }
  }
  return count;
}

TEST(ChatTemplateTest, RendersAsJinjaDoes) {
  ::setenv("TZ", "UTC", 1);
  EXPECT_GE(CheckVectors(EXPERTFLOW_SOURCE_DIR "/tests/unit/chat_template/vectors.jsonl"), 15);
}

// Of real models, when make_vectors.py was run over a folder of them.
TEST(ChatTemplateTest, RendersRealTemplatesAsJinjaDoes) {
  const char* file = std::getenv("EXPERTFLOW_TEMPLATE_VECTORS");
  if (file == nullptr) GTEST_SKIP() << "EXPERTFLOW_TEMPLATE_VECTORS names no file";
  ::setenv("TZ", "UTC", 1);
  EXPECT_GT(CheckVectors(file), 0);
}

std::string ErrorOf(const std::string& source, const std::string& variables = "{}") {
  const auto chat = ChatTemplate::Parse(source, "t");
  if (!chat.ok()) return chat.status().message();
  const auto rendered = chat->Render(variables, kNow);
  return rendered.ok() ? "" : rendered.status().message();
}

TEST(ChatTemplateTest, ErrorsNameTheLine) {
  EXPECT_EQ(ErrorOf("a\n{% if x %}"), "t:2: {% endif %} is missing");
  EXPECT_EQ(ErrorOf("a\n\n{{ x.y }}"), "t:3: 'x' is undefined");
  EXPECT_EQ(ErrorOf("{% include 'x' %}"), "t:1: {% include %} is not supported");
  EXPECT_EQ(ErrorOf("\n{{ 1 | nothing }}"), "t:2: the filter nothing is not supported");
  EXPECT_EQ(ErrorOf("\n{{ raise_exception('No!') }}"), "t:2: No!");
  EXPECT_EQ(ErrorOf("{{ 'a }}"), "t:1: a string does not end");
  EXPECT_EQ(ErrorOf("{{ 1 + }}"), "t:1: expected a name, found the end of the tag");
  EXPECT_EQ(ErrorOf("{% endfor %}"), "t:1: {% endfor %} has nothing to end");
  EXPECT_EQ(ErrorOf("{{ 1 // 0 }}"), "t:1: division by zero");
  EXPECT_EQ(ErrorOf("{{ 9223372036854775807 + 1 }}"), "t:1: a number grows too large");
}

TEST(ChatTemplateTest, NothingRunsForEverOrGrowsWithoutBound) {
  const std::string many = "{% for i in range(100000) %}";
  EXPECT_NE(ErrorOf(many + many + "{% endfor %}{% endfor %}").find("too long"), std::string::npos);
  EXPECT_NE(ErrorOf("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").find("too deep"),
            std::string::npos);
  EXPECT_NE(ErrorOf("{{ 'aaaaaaaa' * 9000000 * 9000 }}").find("too large"), std::string::npos);
  EXPECT_NE(ErrorOf("{{ " + std::string(100'000, '(') + " }}").find("too deep"), std::string::npos);
  EXPECT_NE(ErrorOf("{{ " + std::string(100'000, '[') + " }}").find("too deep"), std::string::npos);
  std::string sum = "{{ 1";
  for (int i = 0; i < 100'000; ++i) sum += "+1";
  EXPECT_NE(ErrorOf(sum + " }}").find("too long"), std::string::npos);
  std::string blocks;
  for (int i = 0; i < 10'000; ++i) blocks += "{% if 1 %}";
  EXPECT_NE(ErrorOf(blocks).find("too deep"), std::string::npos);
  EXPECT_NE(ErrorOf("{{ x }}", "{\"x\":" + std::string(1000, '[') + std::string(1000, ']') + "}"),
            "");
}

TEST(ChatTemplateTest, ANamespaceCannotHoldItself) {
  EXPECT_NE(ErrorOf("{% set n = namespace() %}{% set n.n = n %}").find("namespace"),
            std::string::npos);
}

}  // namespace
}  // namespace expertflow

// Importing routing, and picking sequences of it.
#include "launch/trace/trace_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/trace/trace_reader.h"
#include "launch/commands.h"
#include "launch/trace/trace_export.h"
#include "launch/trace/trace_tools.h"
#include "tests/unit/launch/launch_testing.h"

namespace expertflow {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kHeader =
    R"({"format":"expertflow-routing","version":1,"model":"m","experts":[4,5],"top_k":2})";

// Two sequences that were decoded side by side.
std::string Interleaved() {
  return std::string(kHeader) + "\n" +
         R"({"sequence":7,"step":0,"prompt_tokens":3,"label":"a",)"
         R"("experts":[[0,1],[2,3]],"weights":[[0.75,0.25],[0.5,0.5]]})"
         "\n"
         R"({"sequence":9,"step":0,"experts":[[3,1],[4,0]]})"
         "\n"
         R"({"sequence":7,"step":1,"experts":[[1,2],[0,1]]})"
         "\n"
         R"({"sequence":9,"step":1,"prompt":true,"experts":[[0,2],[1,2]]})"
         "\n";
}

TEST(TraceSourceTest, RowsAreGatheredBySequenceAndPromptsLeftOut) {
  const ScratchFolder folder;
  const auto trace = LoadTrace(folder.Write("t.jsonl", Interleaved()), 0);
  ASSERT_TRUE(trace.ok()) << trace.status().ToString();
  EXPECT_EQ(trace->prompt_rows, 1u);
  ASSERT_EQ(trace->routing.sequences.size(), 2u);
  EXPECT_EQ(trace->routing.sequences[0].rows, 2u);
  EXPECT_EQ(trace->routing.sequences[1].rows, 1u);
  EXPECT_THAT(trace->routing.ChosenAt(1, 0), ElementsAre(1, 2));
  EXPECT_THAT(trace->routing.ChosenAt(2, 1), ElementsAre(4, 0));
  EXPECT_THAT(trace->routing.WeightsAt(0, 0), ElementsAre(0.75f, 0.25f));
  EXPECT_THAT(trace->routing.WeightsAt(2, 0), ElementsAre(0.5f, 0.5f));  // none given: even
}

Options TraceOptions(const std::vector<std::string>& words) {
  auto options = LoadOptions(Command::kTrace, words);
  EXPECT_TRUE(options.ok()) << options.status().ToString();
  return std::move(options).value();
}

Status RunTrace(const std::vector<std::string>& words) {
  const Options options = TraceOptions(words);
  const std::vector<std::string> list = options.TextList("timeline");
  return RunTraceAction(options, list[0], std::span(list).subspan(1));
}

TEST(TraceToolsTest, ImportCutMergeAndExportKeepTheRows) {
  const ScratchFolder folder;
  const std::string lines = folder.Write("t.jsonl", Interleaved());
  const std::string whole = folder.path() + "/whole.eft";
  const std::string first = folder.path() + "/first.eft";
  const std::string second = folder.path() + "/second.eft";
  const std::string merged = folder.path() + "/merged.eft";
  const std::string again = folder.path() + "/again.jsonl";
  ASSERT_TRUE(RunTrace({"import", lines, "-o", whole}).ok());
  ASSERT_TRUE(RunTrace({"cut", whole, "-o", first, "--sequences", "0:1"}).ok());
  ASSERT_TRUE(RunTrace({"cut", whole, "-o", second, "--sequences", "1:"}).ok());
  ASSERT_TRUE(RunTrace({"merge", first, second, "-o", merged}).ok());
  ASSERT_TRUE(RunTrace({"export", merged, "-o", again}).ok());
  const auto a = LoadTrace(whole, 0);
  const auto b = LoadTrace(again, 0);
  ASSERT_TRUE(a.ok() && b.ok()) << b.status().ToString();
  EXPECT_EQ(a->routing.chosen, b->routing.chosen);
  EXPECT_EQ(a->routing.weights, b->routing.weights);
  EXPECT_EQ(a->sequence_hashes, b->sequence_hashes);
  const auto reader = TraceReader::Open(merged);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(reader->sequences()[0].label, "a");
  EXPECT_EQ(reader->rows(), 4u);
  EXPECT_THAT(RunTrace({"cut", whole, "-o", whole}).message(), HasSubstr("is also an input"));
  EXPECT_THAT(RunTrace({"import", whole, "-o", first}).message(), HasSubstr(".jsonl"));
  EXPECT_THAT(RunTrace({"export", whole, "-o", folder.path() + "/x.txt"}).message(),
              HasSubstr(".csv"));
}

TEST(TraceToolsTest, SizesOfExpertsComeAlong) {
  const ScratchFolder folder;
  const std::string sizes =
      R"({"format":"expertflow-routing","version":1,"model":"m","experts":[2,2],"top_k":1,)"
      R"("expert_bytes":9,"block_bytes":[9,7,7,9]})"
      "\n";
  const std::string row = R"({"sequence":0,"experts":[[0],[1]]})";
  const std::string lines = folder.Write("t.jsonl", sizes + row);
  const std::string whole = folder.path() + "/whole.eft";
  const std::string merged = folder.path() + "/merged.eft";
  const std::string again = folder.path() + "/again.jsonl";
  ASSERT_TRUE(RunTrace({"import", lines, "-o", whole}).ok());
  ASSERT_TRUE(RunTrace({"merge", whole, whole, "-o", merged}).ok());
  ASSERT_TRUE(RunTrace({"export", merged, "-o", again}).ok());
  for (const std::string& file : {lines, whole, merged, again}) {
    const auto trace = LoadTrace(file, 0);
    ASSERT_TRUE(trace.ok()) << trace.status().ToString();
    EXPECT_THAT(trace->shape.block_bytes, ElementsAre(9, 7, 7, 9)) << file;
    // Told that all are alike.
    const auto alike = LoadTrace(file, 5);
    ASSERT_TRUE(alike.ok());
    EXPECT_EQ(alike->shape.expert_bytes, 5u);
    EXPECT_TRUE(alike->shape.block_bytes.empty());
  }
  const std::string plain = folder.Write("plain.jsonl", Interleaved());
  EXPECT_THAT(RunTrace({"merge", whole, plain, "-o", merged}).message(), HasSubstr("sizes"));
  for (const char* bad : {"[9,7,7]", "[9,7,7,0]", "[9,7,7,-9]", "{\"a\":9}", "\"9\"", "[]"}) {
    std::string text = sizes;
    text.replace(text.find("[9,7,7,9]"), 9, bad);
    EXPECT_FALSE(LoadTrace(folder.Write("bad.jsonl", text + row), 0).ok()) << bad;
  }
}

TEST(TraceSourceTest, BadLinesAreNamed) {
  const ScratchFolder folder;
  const auto error = [&](const std::string& text) {
    return LoadTrace(folder.Write("bad.jsonl", text), 0).status().message();
  };
  const std::string header = std::string(kHeader) + "\n";
  EXPECT_THAT(error(""), HasSubstr("empty"));
  EXPECT_THAT(error("{}\n"), HasSubstr("line 1"));
  EXPECT_THAT(error(header + "{"), HasSubstr("line 2"));
  EXPECT_THAT(error(header + R"({"sequence":0,"experts":[[0,1]]})"), HasSubstr("2 lists of 2"));
  EXPECT_THAT(error(header + R"({"sequence":0,"experts":[[0,4],[0,1]]})"), HasSubstr("layer 0"));
  EXPECT_THAT(error(header + R"({"sequence":-1,"experts":[[0,1],[0,1]]})"), HasSubstr("sequence"));
  EXPECT_THAT(error(header + R"({"sequence":0,"step":5,"experts":[[0,1],[0,1]]})"
                             "\n"
                             R"({"sequence":0,"step":4,"experts":[[0,1],[0,1]]})"),
              HasSubstr("goes back"));
  EXPECT_THAT(error(header), HasSubstr("nothing to replay"));
}

TEST(TraceSourceTest, SequenceLists) {
  const auto list = [](const std::string& text) {
    return ParseSequenceList(text, 10, "--sequences");
  };
  EXPECT_EQ(list("")->size(), 10u);
  EXPECT_THAT(*list("2:5"), ElementsAre(2, 3, 4));
  EXPECT_THAT(*list("8:,0:2,1:3"), ElementsAre(0, 1, 2, 8, 9));
  EXPECT_THAT(*list("1::4"), ElementsAre(1, 5, 9));
  for (const char* bad : {"3", "a:b", "0:11", "0:5:0", "1:2:3:4", "-1:3", "5:5"}) {
    EXPECT_THAT(list(bad).status().message(), HasSubstr("--sequences")) << bad;
  }
}

}  // namespace
}  // namespace expertflow

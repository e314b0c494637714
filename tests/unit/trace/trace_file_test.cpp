// The trace file: what goes in comes out, what a crash cuts off is at most the last block, and
// damage is named, not believed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common/half.h"
#include "common/mapped_file.h"
#include "common/trace/trace_codec.h"
#include "common/trace/trace_reader.h"
#include "common/trace/trace_writer.h"

namespace expertflow {
namespace {

using testing::HasSubstr;

std::string TemporaryPath(const std::string& name) {
  const char* folder = std::getenv("TMPDIR");
  return std::string(folder != nullptr ? folder : "/tmp") + "/" + std::to_string(::getpid()) + "_" +
         name;
}

TraceShape SmallShape(uint32_t columns) {
  TraceShape shape;
  shape.experts = {5, 300, 8};
  shape.layer_ids = {1, 2, 4};
  shape.top_k = 2;
  shape.hidden = columns == 0 ? 0 : 3;
  shape.columns = columns;
  shape.expert_bytes = 12345;
  shape.fingerprint[3] = 7;
  shape.model = "small";
  shape.config = "{\"workers\": 2}";
  return shape;
}

TraceRows RandomRows(const TraceShape& shape, size_t count, uint32_t sequences, uint32_t first_step,
                     std::mt19937* random) {
  TraceRows rows;
  const auto below = [&](size_t limit) { return static_cast<uint32_t>((*random)() % limit); };
  for (size_t r = 0; r < count; ++r) {
    rows.step.push_back(first_step + static_cast<uint32_t>(r) / 2);
    rows.sequence.push_back(below(sequences));
    rows.position.push_back(below(1u << 20));
    rows.token.push_back(static_cast<int32_t>(below(1000)) - 1);
    rows.flags.push_back(static_cast<uint8_t>(below(4)));
    for (const int32_t experts : shape.experts) {
      for (int32_t j = 0; j < shape.top_k; ++j) {
        rows.experts.push_back(static_cast<uint16_t>(below(static_cast<size_t>(experts))));
        rows.weights.push_back(static_cast<uint16_t>(below(65536)));
      }
    }
  }
  const auto fill = [&](TraceColumn column, size_t width, std::vector<uint16_t>* to) {
    if ((shape.columns & column) == 0) return;
    for (size_t i = 0; i < count * width; ++i) to->push_back(static_cast<uint16_t>(below(65536)));
  };
  const size_t states = shape.experts.size() * static_cast<size_t>(shape.hidden);
  fill(kTraceRouterScores, static_cast<size_t>(shape.experts_total()), &rows.scores);
  fill(kTraceRouterHidden, states, &rows.router_hidden);
  fill(kTraceExpertResidual, states, &rows.expert_residual);
  return rows;
}

// A file of `blocks` blocks with 8 rows each; returns its bytes and what was written.
std::string WriteSmall(const TraceShape& shape, size_t blocks, std::vector<TraceRows>* written) {
  const std::string path = TemporaryPath("small.eft");
  std::mt19937 random(3);
  auto writer = TraceWriter::Create(path, shape, {.block_bytes = 1});
  EXPECT_TRUE(writer.ok()) << writer.status().ToString();
  for (size_t block = 0; block < blocks; ++block) {
    const TraceSequence sequence{.id = 100 + block, .prompt_tokens = 4, .label = "a label"};
    EXPECT_EQ(writer->AddSequence(sequence), block);
    written->push_back(RandomRows(shape, 8, static_cast<uint32_t>(block) + 1,
                                  static_cast<uint32_t>(block) * 10, &random));
    EXPECT_TRUE(writer->Append(written->back()).ok());
  }
  const TraceSpan span{.begin_ns = 5, .end_ns = 9, .kind = TraceSpanKind::kStall};
  EXPECT_TRUE(writer->Append(std::span(&span, 1)).ok());
  EXPECT_TRUE(writer->Close().ok());
  const auto bytes = ReadFileToString(path, 1u << 24);
  EXPECT_TRUE(bytes.ok());
  ::unlink(path.c_str());
  return *bytes;
}

std::span<const uint8_t> Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

TEST(TraceFileTest, GivesBackWhatWasWritten) {
  for (const uint32_t columns : {0u, uint32_t{kTraceRouterScores}, uint32_t{kTraceColumnsKnown}}) {
    const TraceShape shape = SmallShape(columns);
    std::vector<TraceRows> written;
    const std::string bytes = WriteSmall(shape, 3, &written);
    const auto reader = TraceReader::Parse(Bytes(bytes), "small.eft");
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    EXPECT_EQ(reader->shape(), shape);
    EXPECT_FALSE(reader->truncated());
    ASSERT_EQ(reader->sequences().size(), 3u);
    EXPECT_EQ(reader->sequences()[2].id, 102u);
    EXPECT_EQ(reader->sequences()[2].label, "a label");
    ASSERT_EQ(reader->row_blocks(), 3u);
    EXPECT_EQ(reader->rows(), 24u);
    for (size_t block = 0; block < 3; ++block) {
      const auto rows = reader->ReadRows(block);
      ASSERT_TRUE(rows.ok()) << rows.status().ToString();
      EXPECT_EQ(*rows, written[block]) << "columns " << columns << ", block " << block;
    }
    const auto spans = reader->ReadSpans(0);
    ASSERT_TRUE(spans.ok());
    EXPECT_EQ(spans->at(0).end_ns, 9);
  }
}

TraceShape ShapeOfTwoSizes() {
  TraceShape shape = SmallShape(0);
  for (int32_t e = 0; e < shape.experts_total(); ++e) {
    shape.block_bytes.push_back(e % 2 == 0 ? 12345 : 6789);
  }
  return shape;
}

TEST(TraceFileTest, TheSizeOfEachExpertIsKept) {
  const TraceShape shape = ShapeOfTwoSizes();
  std::vector<TraceRows> written;
  const std::string bytes = WriteSmall(shape, 1, &written);
  EXPECT_EQ(bytes[8], 2);  // the version
  const auto reader = TraceReader::Parse(Bytes(bytes), "small.eft");
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  EXPECT_EQ(reader->shape(), shape);
  // As before there were sizes: what reads version 1 alone reads these, too.
  EXPECT_EQ(WriteSmall(SmallShape(0), 1, &written)[8], 1);
}

TEST(TraceFileTest, SizesThatCannotBeAreRefused) {
  const auto refused = [](const auto& change) {
    TraceShape shape = ShapeOfTwoSizes();
    change(&shape);
    return CheckTraceShape(shape).message();
  };
  EXPECT_THAT(refused([](TraceShape* s) { s->block_bytes.pop_back(); }),
              HasSubstr("sizes of 312 blocks for 313 experts"));
  EXPECT_THAT(refused([](TraceShape* s) { s->block_bytes[3] = 0; }), HasSubstr("blocks of 0 to"));
  EXPECT_THAT(refused([](TraceShape* s) { s->expert_bytes = 5; }), HasSubstr("said to have 5"));
}

// The sizes are what is left of a description; numbers of experts are looked at before they add up.
TEST(TraceFileTest, DescriptionsOfVersion2AreHostile) {
  TraceShape shape = ShapeOfTwoSizes();
  for (int32_t& experts : shape.experts) experts = std::numeric_limits<int32_t>::max();
  EXPECT_THAT(trace_codec::DecodeShape(trace_codec::EncodeShape(shape), 2).status().message(),
              HasSubstr("experts; expected 1 to"));
  EXPECT_THAT(
      trace_codec::DecodeShape(trace_codec::EncodeShape(SmallShape(0)), 2).status().message(),
      HasSubstr("wrong size"));
}

TEST(TraceFileTest, AnyCutLosesAtMostTheBlockItFallsInto) {
  std::vector<TraceRows> written;
  const std::string bytes = WriteSmall(SmallShape(0), 4, &written);
  size_t blocks_before = 0;
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::string cut = bytes.substr(0, size);
    const auto reader = TraceReader::Parse(Bytes(cut), "cut.eft");
    if (!reader.ok()) {
      EXPECT_EQ(blocks_before, 0u) << "unreadable again at " << size;
      continue;
    }
    EXPECT_TRUE(reader->truncated()) << size;
    EXPECT_GE(reader->row_blocks(), blocks_before) << size;
    blocks_before = reader->row_blocks();
    for (size_t block = 0; block < reader->row_blocks(); ++block) {
      const auto rows = reader->ReadRows(block);
      ASSERT_TRUE(rows.ok()) << rows.status().ToString();
      EXPECT_EQ(*rows, written[block]);
    }
  }
  EXPECT_EQ(blocks_before, 4u);
}

TEST(TraceFileTest, AChangedByteIsFoundOrChangesNothing) {
  std::vector<TraceRows> written;
  const std::string bytes = WriteSmall(SmallShape(0), 2, &written);
  size_t refused = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 0x41);
    const auto reader = TraceReader::Parse(Bytes(changed), "changed.eft");
    if (!reader.ok()) {
      EXPECT_THAT(reader.status().message(), HasSubstr("changed.eft"));
      ++refused;
      continue;
    }
    for (size_t block = 0; block < reader->row_blocks(); ++block) {
      const auto rows = reader->ReadRows(block);
      if (!rows.ok()) {
        ++refused;
        continue;
      }
      EXPECT_EQ(*rows, written[block]) << "byte " << at;
    }
  }
  EXPECT_GT(refused, 0u);
}

TEST(TraceFileTest, RowsThatDoNotFitTheShapeAreRefused) {
  const TraceShape shape = SmallShape(0);
  std::mt19937 random(1);
  const TraceRows good = RandomRows(shape, 4, 2, 0, &random);
  EXPECT_TRUE(CheckTraceRows(shape, 2, good).ok());
  EXPECT_THAT(CheckTraceRows(shape, 0, good).message(), HasSubstr("of sequence"));
  TraceRows bad = good;
  bad.experts[0] = 5;  // the first layer has 5 experts
  EXPECT_THAT(CheckTraceRows(shape, 2, bad).message(), HasSubstr("expert 5 of 5"));
  bad = good;
  bad.weights.pop_back();
  EXPECT_THAT(CheckTraceRows(shape, 2, bad).message(), HasSubstr("length"));
  bad = good;
  bad.step.back() = 0;
  EXPECT_THAT(CheckTraceRows(shape, 2, bad).message(), HasSubstr("goes back"));
  bad = good;
  bad.flags[1] = 0x80;
  EXPECT_THAT(CheckTraceRows(shape, 2, bad).message(), HasSubstr("flags"));
}

TEST(TraceFileTest, ShapesOutOfRangeAreRefused) {
  const auto refusal = [](auto change) {
    TraceShape shape = SmallShape(kTraceColumnsKnown);
    change(&shape);
    return CheckTraceShape(shape).message();
  };
  EXPECT_EQ(refusal([](TraceShape*) {}), "");
  EXPECT_THAT(refusal([](TraceShape* s) { s->experts[1] = 0; }), HasSubstr("layer 1"));
  EXPECT_THAT(refusal([](TraceShape* s) { s->layer_ids[2] = 2; }), HasSubstr("after 2"));
  EXPECT_THAT(refusal([](TraceShape* s) { s->top_k = 65; }), HasSubstr("top_k"));
  EXPECT_THAT(refusal([](TraceShape* s) { s->columns = 1u << 9; }), HasSubstr("columns"));
  EXPECT_THAT(refusal([](TraceShape* s) { s->hidden = 0; }), HasSubstr("hidden"));
}

TEST(TraceFileTest, HalfFloatsRoundToNearestEven) {
  for (uint32_t half = 0; half < 65536; ++half) {
    const auto bits = static_cast<uint16_t>(half);
    const float value = FloatFromHalf(bits);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(FloatFromHalf(HalfFromFloat(value))));
    } else {
      EXPECT_EQ(HalfFromFloat(value), bits);
    }
  }
  EXPECT_EQ(HalfFromFloat(1.0f + 0x1p-11f), HalfFromFloat(1.0f));              // tie to even
  EXPECT_EQ(HalfFromFloat(1.0f + 0x1.8p-10f), HalfFromFloat(1.0f + 0x1p-9f));  // tie to even
  EXPECT_EQ(HalfFromFloat(65519.0f), 0x7bff);
  EXPECT_EQ(HalfFromFloat(65520.0f), 0x7c00);
  EXPECT_EQ(HalfFromFloat(0x1p-25f), 0);
  EXPECT_EQ(HalfFromFloat(0x1.000002p-25f), 1);
  EXPECT_EQ(HalfFromFloat(-std::numeric_limits<float>::infinity()), 0xfc00);
}

}  // namespace
}  // namespace expertflow

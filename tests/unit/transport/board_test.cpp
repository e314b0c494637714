// The notice board: what readers see of a writer that may be in the middle of something, or gone.
#include "transport/board.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace expertflow {
namespace {

std::vector<uint8_t> Bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

Result<BoardReader> Open(const BoardWriter& writer) {
  return BoardReader::Open(writer.place());
}

TEST(BoardTest, ReadersSeeTheLatestMessageOnce) {
  auto writer = BoardWriter::Create(100);
  ASSERT_TRUE(writer.ok()) << writer.status().ToString();
  auto reader = Open(*writer);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  EXPECT_EQ(reader->Read(), std::nullopt);
  EXPECT_EQ(reader->word(), 0u);
  ASSERT_TRUE(writer->Write(Bytes("one")).ok());
  ASSERT_TRUE(writer->Write(Bytes("another")).ok());
  EXPECT_EQ(reader->Read(), Bytes("another"));
  EXPECT_EQ(reader->Read(), std::nullopt);
  ASSERT_TRUE(writer->Write({}).ok());
  EXPECT_EQ(reader->Read(), std::vector<uint8_t>());
  writer->SetWord(77);
  EXPECT_EQ(reader->word(), 77u);
  // One that comes later has the latest at once.
  ASSERT_TRUE(writer->Write(Bytes("third")).ok());
  auto late = Open(*writer);
  ASSERT_TRUE(late.ok());
  EXPECT_EQ(late->Read(), Bytes("third"));
}

TEST(BoardTest, AMessageThatIsTooLongIsRefusedAndTheOneBeforeStays) {
  auto writer = BoardWriter::Create(4096);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->Write(Bytes("short")).ok());
  EXPECT_EQ(writer->Write(std::vector<uint8_t>(4097)).code(), StatusCode::kResourceExhausted);
  auto reader = Open(*writer);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(reader->Read(), Bytes("short"));
}

TEST(BoardTest, WhatIsNotTheBoardIsNotOpened) {
  auto writer = BoardWriter::Create(100);
  ASSERT_TRUE(writer.ok());
  BoardPlace place = writer->place();
  ++place.id;
  EXPECT_EQ(BoardReader::Open(place).status().code(), StatusCode::kUnavailable);
  place = writer->place();
  place.descriptor = 0;
  EXPECT_EQ(BoardReader::Open(place).status().code(), StatusCode::kUnavailable);
  place.descriptor = 1 << 20;
  EXPECT_EQ(BoardReader::Open(place).status().code(), StatusCode::kUnavailable);
  place.pid = INT64_MAX;
  EXPECT_EQ(BoardReader::Open(place).status().code(), StatusCode::kUnavailable);
}

// A reader keeps what it has mapped, and nothing has a name that could stay.
TEST(BoardTest, TheBoardLivesAsLongAsSomebodyHasIt) {
  std::optional<BoardReader> reader;
  {
    auto writer = BoardWriter::Create(100);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->Write(Bytes("last words")).ok());
    auto opened = Open(*writer);
    ASSERT_TRUE(opened.ok());
    reader.emplace(std::move(opened).value());
  }
  EXPECT_EQ(reader->Read(), Bytes("last words"));
}

// Readers that are quicker or slower than the writer never see a mixture.
TEST(BoardTest, NoReaderSeesTwoMessagesMixed) {
  constexpr size_t kBytes = 20'000;
  auto writer = BoardWriter::Create(kBytes);
  ASSERT_TRUE(writer.ok());
  std::atomic<bool> ends{false};
  std::atomic<int> seen{0};
  std::atomic<int> mixed{0};
  std::vector<std::thread> readers;
  for (int r = 0; r < 2; ++r) {
    readers.emplace_back([&] {
      auto reader = Open(*writer);
      ASSERT_TRUE(reader.ok());
      while (!ends) {
        const auto message = reader->Read();
        if (!message) continue;
        ++seen;
        for (const uint8_t byte : *message) mixed += byte != (*message)[0] ? 1 : 0;
      }
    });
  }
  for (int i = 0; i < 200'000 && (i < 2000 || seen < 50); ++i) {
    const std::vector<uint8_t> message(1 + static_cast<size_t>(i * 37) % kBytes,
                                       static_cast<uint8_t>(i));
    ASSERT_TRUE(writer->Write(message).ok());
  }
  ends = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(mixed, 0);
  EXPECT_GE(seen, 50);
}

}  // namespace
}  // namespace expertflow

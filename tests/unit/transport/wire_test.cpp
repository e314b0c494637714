#include "transport/wire.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/unit/transport/random_message.h"

namespace expertflow {
namespace {

constexpr size_t kTypes = std::variant_size_v<Message::Any>;
constexpr size_t kHeaderBytes = 12;

TEST(Wire, EveryTypeKeepsEveryField) {
  MessageGenerator generator(1);
  for (size_t type = 0; type < kTypes; ++type) {
    for (int round = 0; round < 50; ++round) {
      const Message message = generator.Make(type);
      const std::vector<uint8_t> bytes = EncodeMessage(message);
      const auto decoded = DecodeMessage(bytes);
      ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
      ASSERT_EQ(decoded->index(), type);
      EXPECT_EQ(EncodeMessage(*decoded), bytes) << MessageName(message);
    }
  }
}

// The bytes themselves: a change here is a change of protocol and needs a new kProtocolVersion.
TEST(Wire, LayoutIsFixed) {
  TokenEvent token{SequenceId{0x0102}, 7, -1, FinishReason::kLength};
  const std::vector<uint8_t> bytes = EncodeMessage(StepReport{5, {token}});
  const std::vector<uint8_t> expected = {
      'E',  'F',  'F',  'M',  5, 0, 8, 0, 33, 0, 0, 0,  // header: version 5, type 8, 33 bytes
      5,    0,    0,    0,    0, 0, 0, 0,               // step
      1,    0,    0,    0,                              // count of tokens
      2,    1,    0,    0,    0, 0, 0, 0,               // sequence
      7,    0,    0,    0,                              // position
      0xff, 0xff, 0xff, 0xff,                           // token
      2,                                                // finish
      0,    0,    0,    0};                             // count of prompts
  EXPECT_EQ(bytes, expected);
  const auto decoded = DecodeMessage(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(MessageName(*decoded), "StepReport");
  const auto& report = std::get<StepReport>(*decoded);
  EXPECT_EQ(report.tokens[0].token, -1);
  EXPECT_EQ(report.tokens[0].finish, FinishReason::kLength);
}

TEST(Wire, EveryTruncationIsRefused) {
  MessageGenerator generator(2);
  for (size_t type = 0; type < kTypes; ++type) {
    const std::vector<uint8_t> bytes = EncodeMessage(generator.Make(type));
    for (size_t size = 0; size < bytes.size(); ++size) {
      std::vector<uint8_t> cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
      EXPECT_FALSE(DecodeMessage(cut).ok());
      if (size < kHeaderBytes) continue;
      // Also when the header agrees with what is there.
      const auto payload = static_cast<uint32_t>(size - kHeaderBytes);
      std::memcpy(cut.data() + 8, &payload, sizeof(payload));
      EXPECT_EQ(DecodeMessage(cut).status().code(), StatusCode::kInvalidArgument);
    }
  }
}

TEST(Wire, TrailingBytesAreRefused) {
  MessageGenerator generator(3);
  for (size_t type = 0; type < kTypes; ++type) {
    std::vector<uint8_t> bytes = EncodeMessage(generator.Make(type));
    bytes.push_back(0);
    EXPECT_FALSE(DecodeMessage(bytes).ok());
    ++bytes[8];
    if (bytes[8] == 0) continue;
    EXPECT_FALSE(DecodeMessage(bytes).ok());
  }
}

TEST(Wire, EverySingleByteChangeIsRefusedOrAValidMessage) {
  MessageGenerator generator(4);
  for (size_t type = 0; type < kTypes; ++type) {
    const std::vector<uint8_t> bytes = EncodeMessage(generator.Make(type));
    for (size_t i = 0; i < bytes.size(); ++i) {
      for (const int flip : {0x01, 0x80, 0xff, 0x55}) {
        std::vector<uint8_t> changed = bytes;
        changed[i] = static_cast<uint8_t>(changed[i] ^ flip);
        const auto decoded = DecodeMessage(changed);
        if (decoded.ok()) {
          EXPECT_EQ(EncodeMessage(*decoded), changed);
        }
      }
    }
  }
}

TEST(Wire, CountsAreCheckedAgainstTheBytesBeforeAllocating) {
  std::vector<uint8_t> bytes = EncodeMessage(StepReport{});
  const uint32_t huge = 0xffffffff;
  std::memcpy(bytes.data() + kHeaderBytes + 8, &huge, sizeof(huge));
  const auto decoded = DecodeMessage(bytes);
  EXPECT_EQ(decoded.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(decoded.status().message().find("StepReport"), std::string::npos);
}

TEST(Wire, EnumsFlagsAndCodesOutOfRangeAreRefused) {
  std::vector<uint8_t> bytes = EncodeMessage(Heartbeat{1, true});
  bytes.back() = 2;
  EXPECT_FALSE(DecodeMessage(bytes).ok());
  bytes = EncodeMessage(JobState{});
  bytes[kHeaderBytes] = 5;
  EXPECT_FALSE(DecodeMessage(bytes).ok());
  bytes = EncodeMessage(FatalError{static_cast<uint8_t>(StatusCode::kInternal), ""});
  EXPECT_TRUE(DecodeMessage(bytes).ok());
  ++bytes[kHeaderBytes];
  EXPECT_FALSE(DecodeMessage(bytes).ok());
}

TEST(Wire, AnotherProtocolVersionIsNamed) {
  std::vector<uint8_t> bytes = EncodeMessage(Heartbeat{});
  bytes[4] = 7;
  const auto decoded = DecodeMessage(bytes);
  EXPECT_EQ(decoded.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(decoded.status().message().find("peer speaks protocol 7, this is 5"),
            std::string::npos);
}

TEST(FrameSplitter, FindsMessagesInAnyCutOfTheStream) {
  MessageGenerator generator(5);
  std::vector<std::vector<uint8_t>> sent;
  std::vector<uint8_t> stream;
  for (size_t type = 0; type < kTypes; ++type) {
    sent.push_back(EncodeMessage(generator.Make(type)));
    stream.insert(stream.end(), sent.back().begin(), sent.back().end());
  }
  for (const size_t step : {size_t{1}, size_t{7}, size_t{64}, stream.size()}) {
    FrameSplitter splitter(1 << 20);
    std::vector<std::vector<uint8_t>> got;
    for (size_t begin = 0; begin < stream.size(); begin += step) {
      splitter.Append(std::span(stream).subspan(begin, std::min(step, stream.size() - begin)));
      while (true) {
        const auto frame = splitter.Next();
        ASSERT_TRUE(frame.ok());
        if (frame->empty()) break;
        got.emplace_back(frame->begin(), frame->end());
      }
    }
    EXPECT_EQ(got, sent);
    EXPECT_EQ(splitter.pending_bytes(), 0u);
  }
}

TEST(FrameSplitter, RefusesGarbageAndFramesThatAreTooLong) {
  FrameSplitter garbage(1 << 20);
  garbage.Append(std::vector<uint8_t>(12, 'G'));
  EXPECT_EQ(garbage.Next().status().code(), StatusCode::kInvalidArgument);
  FrameSplitter bounded(100);
  bounded.Append(EncodeMessage(TextDelta{1, std::string(200, 'x'), {}}));
  EXPECT_EQ(bounded.Next().status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace expertflow

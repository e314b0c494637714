#include "model/tokenizer/stream_decoder.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "model/tokenizer/utf8.h"
#include "tests/unit/model_tokenizer/small_tokenizer.h"

namespace expertflow {
namespace {

class StreamDecoderTest : public testing::Test {
 protected:
  void SetUp() override {
    auto tokenizer = Tokenizer::Parse(SmallTokenizerJson().dump(), "small.json");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    tokenizer_ = std::move(*tokenizer);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(StreamDecoderTest, ACharacterComesWithItsLastByte) {
  StreamDecoder decoder(*tokenizer_, false);
  EXPECT_EQ(decoder.Push('a'), "a");
  EXPECT_EQ(decoder.Push(0xF0), "");
  EXPECT_EQ(decoder.Push(0x9F), "");
  EXPECT_EQ(decoder.Push(0x98), "");
  EXPECT_EQ(decoder.Push(0x80), "😀");
  EXPECT_EQ(decoder.Push(258), " the");
  EXPECT_EQ(decoder.Flush(), "");
}

TEST_F(StreamDecoderTest, AnUnfinishedCharacterIsFlushedAsOneReplacement) {
  StreamDecoder decoder(*tokenizer_, false);
  EXPECT_EQ(decoder.Push(0xE4), "");
  EXPECT_EQ(decoder.Push(0xB8), "");
  EXPECT_EQ(decoder.Flush(), "\uFFFD");
  EXPECT_EQ(decoder.Flush(), "");
  EXPECT_EQ(decoder.Push('b'), "b");
}

TEST_F(StreamDecoderTest, ABrokenCharacterDoesNotWait) {
  StreamDecoder decoder(*tokenizer_, false);
  EXPECT_EQ(decoder.Push(0xE4), "");
  EXPECT_EQ(decoder.Push('a'), "\uFFFDa");
  EXPECT_EQ(decoder.Push(0x80), "\uFFFD");
}

TEST_F(StreamDecoderTest, SpecialTokensCanBeLeftOut) {
  StreamDecoder with(*tokenizer_, false);
  StreamDecoder without(*tokenizer_, true);
  EXPECT_EQ(with.Push(300), "<|end|>");
  EXPECT_EQ(without.Push(300), "");
}

TEST_F(StreamDecoderTest, AnyIdsJoinToWhatDecodeGives) {
  std::mt19937 random(1);
  const int interesting[] = {'a',  0x80, 0xBF, 0xC2, 0xE0, 0xA0, 0xED, 0x9F, 0xF0,
                             0x90, 0xF4, 0x8F, 0xFF, 258,  300,  299,  -1};
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> ids;
    for (int i = 0; i < 12; ++i) ids.push_back(interesting[random() % std::size(interesting)]);
    for (const bool skip_special : {false, true}) {
      StreamDecoder decoder(*tokenizer_, skip_special);
      std::string joined;
      for (const int32_t id : ids) {
        const std::string text = decoder.Push(id);
        EXPECT_TRUE(IsValidUtf8(text));
        joined += text;
      }
      joined += decoder.Flush();
      EXPECT_EQ(joined, tokenizer_->Decode(ids, skip_special));
    }
  }
}

TEST(StreamDecoderOfBundledModelTest, EmojiAndCjkAcrossTokens) {
  const auto tokenizer = Tokenizer::Load(EXPERTFLOW_SOURCE_DIR "/models/tiny-moe/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const std::string text = "Größe 世界、こんにちは 👩‍👩‍👧 🇩🇪 fin";
  const auto ids = (*tokenizer)->Encode(text);
  ASSERT_TRUE(ids.ok()) << ids.status().message();
  StreamDecoder decoder(**tokenizer, false);
  std::string joined;
  for (const int32_t id : *ids) {
    const std::string part = decoder.Push(id);
    EXPECT_TRUE(IsValidUtf8(part));
    joined += part;
  }
  EXPECT_EQ(joined, text);
  EXPECT_EQ(decoder.Flush(), "");
}

}  // namespace
}  // namespace expertflow

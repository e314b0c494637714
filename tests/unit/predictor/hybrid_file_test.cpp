// The predictor's file: what goes in comes out, damage and other models are refused by name.
#include "predictor/hybrid_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "predictor/fitted_to.h"
#include "tests/unit/predictor/hybrid_testing.h"

namespace expertflow {
namespace {

using testing::FittedFile;
using ::testing::HasSubstr;

TEST(HybridFileTest, GivesBackWhatWasWritten) {
  const HybridFile& file = FittedFile();
  const std::string bytes = EncodeHybrid(file);
  const auto read = DecodeHybrid(bytes, "small.efp");
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->identity, file.identity);
  EXPECT_EQ(read->trained_on, file.trained_on);
  EXPECT_EQ(read->trained_tokens, file.trained_tokens);
  EXPECT_EQ(read->model.tokens, file.model.tokens);
  EXPECT_EQ(read->model.probe_fit[1][2].slope, file.model.probe_fit[1][2].slope);
  EXPECT_EQ(EncodeHybrid(*read), bytes);
}

TEST(HybridFileTest, AnyChangedOrMissingByteIsRefused) {
  const std::string bytes = EncodeHybrid(FittedFile());
  size_t accepted = 0;
  // All of the header, then now and then.
  for (size_t at = 0; at < bytes.size(); at += at < 100 ? 1 : 251) {
    EXPECT_FALSE(DecodeHybrid(bytes.substr(0, at), "cut.efp").ok()) << at;
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    const auto read = DecodeHybrid(changed, "changed.efp");
    if (read.ok()) {
      ++accepted;  // the identity, the number of tokens, a zero; top-k is only read
    } else {
      EXPECT_THAT(read.status().message(), HasSubstr("changed.efp"));
    }
  }
  EXPECT_LE(accepted, 16u + 8u + 4u + 1u);
  EXPECT_THAT(DecodeHybrid(bytes + "x", "long.efp").status().message(), HasSubstr("damaged"));
}

TEST(HybridFileTest, AnotherModelIsRefused) {
  const HybridFile& file = FittedFile();
  EXPECT_TRUE(
      CheckFittedTo(file.identity, file.model.experts, file.identity, file.model.experts, "a.efp")
          .ok());
  std::vector<int32_t> wider = file.model.experts;
  ++wider[0];
  EXPECT_THAT(
      CheckFittedTo(file.identity, file.model.experts, file.identity, wider, "a.efp").message(),
      HasSubstr("a.efp"));
  auto other = file.identity;
  other[15] = 1;
  EXPECT_THAT(CheckFittedTo(file.identity, file.model.experts, other, file.model.experts, "a.efp")
                  .message(),
              HasSubstr("fitted to model 07"));
}

TEST(HybridModelTest, PartsThatDoNotFitAreNamed) {
  const auto wrong = [](const std::function<void(HybridModel&)>& change) {
    HybridModel model = FittedFile().model;
    change(model);
    return CheckHybridModel(model).message();
  };
  EXPECT_TRUE(CheckHybridModel(FittedFile().model).ok());
  EXPECT_THAT(wrong([](HybridModel& m) { m.probe[1][2].outputs -= 1; }), HasSubstr("probe"));
  EXPECT_THAT(wrong([](HybridModel& m) { m.base.pop_back(); }), HasSubstr("base"));
  EXPECT_THAT(wrong([](HybridModel& m) { m.coactivation[3][0].clear(); }),
              HasSubstr("co-activation"));
  EXPECT_THAT(wrong([](HybridModel& m) { m.forest[0].feature[0] = 30; }), HasSubstr("feature"));
  EXPECT_THAT(wrong([](HybridModel& m) { std::swap(m.tokens[0], m.tokens[1]); }),
              HasSubstr("ascend"));
  EXPECT_THAT(wrong([](HybridModel& m) { m.pre_gate_fit[0][0].slope = NAN; }),
              HasSubstr("calibration"));
}

}  // namespace
}  // namespace expertflow

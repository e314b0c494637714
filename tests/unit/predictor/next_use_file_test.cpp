// The forecaster's file: what goes in comes out, damage and other models are refused by name.
#include "predictor/next_use_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "predictor/fitted_to.h"
#include "tests/unit/predictor/random_forecaster.h"

namespace expertflow {
namespace {

using ::testing::HasSubstr;

NextUseFile SmallFile() {
  NextUseFile file;
  file.identity[0] = 9;
  file.trained_on = {3, 5};
  file.trained_rows = 77;
  file.model = testing::RandomForecaster({2, 3}, 2, 1);
  return file;
}

TEST(NextUseFileTest, GivesBackWhatWasWritten) {
  const NextUseFile file = SmallFile();
  const auto read = DecodeNextUse(EncodeNextUse(file), "small.efn");
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->identity, file.identity);
  EXPECT_EQ(read->trained_on, file.trained_on);
  EXPECT_EQ(read->trained_rows, 77u);
  EXPECT_EQ(read->model.state_out, file.model.state_out);
  EXPECT_EQ(read->model.gain_out, file.model.gain_out);
}

TEST(NextUseFileTest, AnyChangedOrMissingByteIsRefused) {
  const std::string bytes = EncodeNextUse(SmallFile());
  size_t accepted = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    EXPECT_FALSE(DecodeNextUse(bytes.substr(0, at), "cut.efn").ok()) << at;
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    const auto read = DecodeNextUse(changed, "changed.efn");
    if (read.ok()) {
      ++accepted;  // the identity, the number of tokens, a zero
    } else {
      EXPECT_THAT(read.status().message(), HasSubstr("changed.efn"));
    }
  }
  EXPECT_LE(accepted, 16u + 8u + 1u);
}

TEST(NextUseFileTest, AnotherModelIsRefused) {
  NextUseFile file = SmallFile();
  EXPECT_TRUE(
      CheckFittedTo(file.identity, file.model.experts, file.identity, file.model.experts, "a.efn")
          .ok());
  const std::vector<int32_t> wider = {2, 4};
  EXPECT_THAT(
      CheckFittedTo(file.identity, file.model.experts, file.identity, wider, "a.efn").message(),
      HasSubstr("a.efn"));
  auto other = file.identity;
  other[15] = 1;
  EXPECT_THAT(CheckFittedTo(file.identity, file.model.experts, other, file.model.experts, "a.efn")
                  .message(),
              HasSubstr("fitted to model 09"));
}

}  // namespace
}  // namespace expertflow

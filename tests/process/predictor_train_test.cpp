// A predictor from a recording, in the tens of seconds that fitting takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/process/predictor_run.h"

namespace expertflow {
namespace {

using ::testing::HasSubstr;
using testing::PredictorTest;
using testing::Program;
using testing::RecallAt;

TEST_F(PredictorTest, IsFittedToWhatWasRecorded) {
  Record(Path("a.eft"), {"--max-tokens", "270"});
  Program train({"train", Path("a.eft"), "-o", Path("a.efp")});
  ASSERT_EQ(train.Wait(), 0) << train.err();
  EXPECT_THAT(train.out(), HasSubstr("4 sequences"));
  nlohmann::json json = Judge(Path("a.eft"), Path("a.efp"));
  EXPECT_EQ(json["trained_sequences"], 4);
  EXPECT_GT(RecallAt(json, 1)["forest + probe"], 0.6);
}

}  // namespace
}  // namespace expertflow

#include "expert_store/synth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "store_fixture.h"

namespace expertflow {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryFolder;

float Element(const TensorInfo& info, size_t i) {
  if (info.type == ElementType::kF32) {
    float value = 0;
    std::memcpy(&value, info.data.data() + 4 * i, 4);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, info.data.data() + 2 * i, 2);
  if (info.type == ElementType::kBF16) return std::bit_cast<float>(uint32_t{bits} << 16);
  const int exponent = (bits >> 10) & 31;
  const float fraction = static_cast<float>(bits & 1023) / 1024.0f;
  const float magnitude =
      exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

class SynthTest : public testing::StoreFixture {
 protected:
  Checkpoint MustOpen(const std::string& folder) {
    auto checkpoint = Checkpoint::Open(folder);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    return std::move(checkpoint).value();
  }
  TemporaryFolder folder_;
};

TEST_F(SynthTest, EachTypeIsSaneAndMatchesThePlan) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    SCOPED_TRACE(DTypeName(dtype));
    const std::string folder = folder_.File(std::string(DTypeName(dtype)));
    const Status written =
        WriteSyntheticCheckpoint(plan_, config_, folder, {.dtype = dtype, .seed = 1});
    ASSERT_TRUE(written.ok()) << written.ToString();
    const Checkpoint checkpoint = MustOpen(folder);
    EXPECT_TRUE(ModelTensors::Resolve(plan_, checkpoint).ok());
    EXPECT_EQ(*ReadFileToString(folder + "/config.json", 1 << 20), config_);

    const TensorInfo& gate = *checkpoint.Find("model.layers.0.mlp.experts.0.gate_proj.weight");
    const size_t count = gate.bytes / ElementTypeBytes(gate.type);
    double sum = 0;
    double squares = 0;
    for (size_t i = 0; i < count; ++i) {
      const double value = Element(gate, i);
      sum += value;
      squares += value * value;
    }
    const double n = static_cast<double>(count);
    EXPECT_NEAR(sum / n, 0, 0.02);
    EXPECT_NEAR(squares / n * 56, 1, 0.15);  // variance 1 / inputs
    const TensorInfo& norm = *checkpoint.Find("model.norm.weight");
    for (size_t i = 0; i < 56; ++i) EXPECT_NEAR(Element(norm, i), 1, 0.11);
  }
}

TEST_F(SynthTest, EqualSeedsGiveEqualBytesWhateverTheShards) {
  SyntheticOptions options{.seed = 7};
  ASSERT_TRUE(WriteSyntheticCheckpoint(plan_, config_, folder_.File("one"), options).ok());
  options.shard_bytes = 50'000;
  ASSERT_TRUE(WriteSyntheticCheckpoint(plan_, config_, folder_.File("shards"), options).ok());
  options.seed = 8;
  ASSERT_TRUE(WriteSyntheticCheckpoint(plan_, config_, folder_.File("other"), options).ok());
  const Checkpoint one = MustOpen(folder_.File("one"));
  const Checkpoint shards = MustOpen(folder_.File("shards"));
  const Checkpoint other = MustOpen(folder_.File("other"));
  EXPECT_TRUE(std::filesystem::exists(folder_.File("shards/model.safetensors.index.json")));
  ASSERT_TRUE(ModelTensors::Resolve(plan_, shards).ok());
  for (const TensorInfo* info : one.tensors()) {
    const TensorInfo& same = *shards.Find(info->name);
    EXPECT_EQ(std::memcmp(info->data.data(), same.data.data(), info->bytes), 0) << info->name;
    EXPECT_NE(std::memcmp(info->data.data(), other.Find(info->name)->data.data(), info->bytes), 0);
  }
}

TEST_F(SynthTest, AnExistingCheckpointIsNotOverwritten) {
  EXPECT_THAT(WriteSyntheticCheckpoint(plan_, config_, testing::kCheckpointFolder, {}).message(),
              HasSubstr("checkpoint already"));
}

}  // namespace
}  // namespace expertflow

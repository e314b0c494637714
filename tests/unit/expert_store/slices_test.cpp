// Experts that lie together in one tensor, transposed and alternating, and their biases: each comes
// out as a block like any other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "expert_store/store_view.h"
#include "model/checkpoint/safetensors_writer.h"
#include "store_fixture.h"

namespace expertflow {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryFolder;

constexpr int64_t kExperts = 3, kHidden = 70, kWide = 66;  // more than one tile each way

// Element i of a tensor is `base` + i, so that each place tells where it came from.
float Value(int64_t base, int64_t i) {
  return static_cast<float>(base + i);
}

WeightPlan FusedPlan() {
  WeightPlan plan;
  plan.layers = 1;
  plan.experts_per_layer = kExperts;
  const int64_t both = 2 * kWide;
  for (int64_t e = 0; e < kExperts; ++e) {
    const auto gate_up = [&](int64_t part) {
      return TensorSlice{
          "gate_up", {kExperts, kHidden, both}, e * kHidden * both + part, {2, both}};
    };
    const auto gate_up_bias = [&](int64_t part) {
      return TensorSlice{"gate_up_bias", {kExperts, both}, e * both + part, {2}};
    };
    ExpertSpec spec;
    spec.key = {LayerId(0), ExpertId(static_cast<int32_t>(e))};
    spec.gate = {"gate", {kWide, kHidden}, gate_up(0)};
    spec.up = {"up", {kWide, kHidden}, gate_up(1)};
    spec.down = {
        "down",
        {kHidden, kWide},
        TensorSlice{"down", {kExperts, kWide, kHidden}, e * kWide * kHidden, {1, kHidden}}};
    spec.has_biases = true;
    spec.gate_bias = {"gate_bias", {kWide}, gate_up_bias(0)};
    spec.up_bias = {"up_bias", {kWide}, gate_up_bias(1)};
    spec.down_bias = {
        "down_bias", {kHidden}, TensorSlice{"down_bias", {kExperts, kHidden}, e * kHidden, {1}}};
    plan.experts.push_back(spec);
  }
  return plan;
}

class SlicesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::vector<TensorDeclaration> tensors = {
        {"gate_up", ElementType::kF32, {kExperts, kHidden, 2 * kWide}},
        {"gate_up_bias", ElementType::kF32, {kExperts, 2 * kWide}},
        {"down", ElementType::kF32, {kExperts, kWide, kHidden}},
        {"down_bias", ElementType::kF32, {kExperts, kHidden}}};
    auto writer = SafetensorsWriter::Create(folder_.File("model.safetensors"), tensors);
    ASSERT_TRUE(writer.ok()) << writer.status().ToString();
    int64_t base = 0;
    for (const TensorDeclaration& tensor : tensors) {
      int64_t count = 1;
      for (const int64_t size : tensor.shape) count *= size;
      std::vector<float> values;
      for (int64_t i = 0; i < count; ++i) values.push_back(Value(base, i));
      const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
      ASSERT_TRUE(writer->Append({bytes, values.size() * sizeof(float)}).ok());
      base += 1'000'000;
    }
    ASSERT_TRUE(writer->Finish().ok());
    auto opened = Checkpoint::Open(folder_.path());
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    checkpoint_.emplace(std::move(opened).value());
  }

  TemporaryFolder folder_;
  std::optional<Checkpoint> checkpoint_;
};

TEST_F(SlicesTest, EveryElementComesToItsPlace) {
  const WeightPlan plan = FusedPlan();
  const auto layout = StoreLayout::Make(plan, *checkpoint_, "{}");
  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  const std::string path = folder_.File("model.efstore");
  ASSERT_TRUE(PackStore(*layout, path, {.threads = 2}).ok());
  const auto view = StoreView::OpenFile(path);
  ASSERT_TRUE(view.ok()) << view.status().ToString();
  EXPECT_TRUE(view->VerifyAll().ok());
  EXPECT_TRUE(view->Matches(plan).ok());
  for (int64_t e = 0; e < kExperts; ++e) {
    const ExpertBlock block = view->Expert({LayerId(0), ExpertId(static_cast<int32_t>(e))});
    ASSERT_EQ(block.bias_dtype, DType::kF32);
    EXPECT_EQ(block.bytes, block.down_bias_offset + kHidden * sizeof(float));
    const auto at = [&](uint64_t offset, int64_t i) {
      float value = 0;
      std::memcpy(&value, block.data + offset + static_cast<uint64_t>(i) * 4, 4);
      return value;
    };
    for (int64_t w = 0; w < kWide; ++w) {
      for (int64_t h = 0; h < kHidden; ++h) {
        const int64_t gate = (e * kHidden + h) * 2 * kWide + 2 * w;
        ASSERT_EQ(at(block.gate_offset, w * kHidden + h), Value(0, gate));
        ASSERT_EQ(at(block.up_offset, w * kHidden + h), Value(0, gate + 1));
        ASSERT_EQ(at(block.down_offset, h * kWide + w),
                  Value(2'000'000, (e * kWide + w) * kHidden + h));
      }
      ASSERT_EQ(at(block.gate_bias_offset, w), Value(1'000'000, (e * kWide + w) * 2));
      ASSERT_EQ(at(block.up_bias_offset, w), Value(1'000'000, (e * kWide + w) * 2 + 1));
    }
    for (int64_t h = 0; h < kHidden; ++h) {
      ASSERT_EQ(at(block.down_bias_offset, h), Value(3'000'000, e * kHidden + h));
    }
  }
  WeightPlan without = plan;
  for (ExpertSpec& spec : without.experts) spec.has_biases = false;
  EXPECT_THAT(view->Matches(without).message(), HasSubstr("layer 0 expert 0 has biases"));
}

TEST_F(SlicesTest, BadSlicesAreNamed) {
  const auto refused = [&](const WeightPlan& plan) {
    return StoreLayout::Make(plan, *checkpoint_, "{}").status().message();
  };
  WeightPlan plan = FusedPlan();
  plan.experts[2].down.slice->offset += 1;
  EXPECT_THAT(refused(plan), HasSubstr("'down' of shape [70, 66] does not lie in tensor 'down'"));
  plan = FusedPlan();
  plan.experts[1].up.slice->shape = {kExperts, kHidden, kWide};
  EXPECT_THAT(refused(plan), HasSubstr("expected shape [3, 70, 66], found [3, 70, 132]"));
  plan = FusedPlan();
  for (ExpertSpec& spec : plan.experts) spec.has_biases = false;
  EXPECT_THAT(refused(plan), HasSubstr("down_bias"));
  plan = FusedPlan();
  plan.experts[0].gate_bias.slice->tensor = "no_such";
  EXPECT_THAT(refused(plan), HasSubstr("'no_such' of shape [3, 132] is missing"));
  plan = FusedPlan();
  plan.experts[0].up_bias.shape = {kWide - 1};
  EXPECT_THAT(refused(plan), HasSubstr("layer 0 expert 0"));
}

}  // namespace
}  // namespace expertflow

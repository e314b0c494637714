// Stores whose experts are quantised: every weight within half a step of what it was, exact counts
// of bytes, and refusals that name the expert or the tensor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>

#include "common/half.h"
#include "expert_store/pack_file.h"
#include "expert_store/quantise.h"
#include "expert_store/store_view.h"
#include "model/checkpoint/safetensors_writer.h"
#include "store_fixture.h"
#include "tests/golden/quantised_values.h"

namespace expertflow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

constexpr DType kQuantisedTypes[] = {DType::kInt8, DType::kInt4, DType::kUInt4, DType::kMxfp4,
                                     DType::kFp8};

// Half of the widest step of a group, by its smallest and largest value with zero among them.
float HalfStep(DType dtype, float low, float high) {
  const float largest = std::max(-low, high);
  switch (dtype) {
    case DType::kInt8: return largest / 127 / 2;
    case DType::kInt4: return largest / 7 / 2;
    case DType::kUInt4: return (high - low) / 15;  // the zero point is rounded as well
    case DType::kMxfp4: return largest / 4;        // what is next to 8 becomes 6
    default: return largest / 14 / 2;              // 448 is 14 steps of the widest
  }
}

TEST(Quantise, EveryWeightIsWithinHalfAStep) {
  std::vector<float> values(320);
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t group = i / 32;
    values[i] =
        std::sin(static_cast<float>(i * i)) * std::pow(10.0f, static_cast<float>(group) - 6);
  }
  std::fill(values.begin() + 64, values.begin() + 96, 0.0f);
  std::fill(values.begin() + 96, values.begin() + 128, 2.5f);  // zero must have a code
  const uint64_t sizes[] = {320 + 40, 192 + 40, 192 + 40 + 10, 192 + 10, 320 + 40};
  for (size_t type = 0; type < std::size(kQuantisedTypes); ++type) {
    const DType dtype = kQuantisedTypes[type];
    std::vector<uint8_t> bytes(MatrixBytes(dtype, values.size()));
    EXPECT_EQ(bytes.size(), sizes[type]);
    QuantisationError error;
    ASSERT_TRUE(QuantiseGroups(values, dtype, bytes, &error).ok());
    double squares = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const auto group = std::span(values).subspan(i / 32 * 32, 32);
      const float low = std::min(0.0f, *std::min_element(group.begin(), group.end()));
      const float high = std::max(0.0f, *std::max_element(group.begin(), group.end()));
      const double off =
          static_cast<double>(QuantisedValue(bytes.data(), dtype, 320, i)) - values[i];
      EXPECT_LE(std::fabs(off), HalfStep(dtype, low, high) * 1.00001) << DTypeName(dtype) << i;
      squares += off * off;
    }
    EXPECT_NEAR(error.error_squares, squares, squares * 1e-9);
    EXPECT_GT(error.relative(), 0);
  }
  values[7] = NAN;
  QuantisationError error;
  std::vector<uint8_t> bytes(MatrixBytes(DType::kInt8, values.size()));
  EXPECT_THAT(QuantiseGroups(values, DType::kInt8, bytes, &error).message(), HasSubstr("nan"));
}

// The scale of MXFP4 is the better of two.
TEST(Quantise, Mxfp4TakesTheScaleThatLosesLess) {
  std::vector<float> values(32, 1.0f);
  const auto error_of = [&](float largest) {
    values[0] = largest;
    std::vector<uint8_t> bytes(MatrixBytes(DType::kMxfp4, 32));
    QuantisationError error;
    EXPECT_TRUE(QuantiseGroups(values, DType::kMxfp4, bytes, &error).ok());
    return std::sqrt(error.error_squares);
  };
  EXPECT_EQ(error_of(6), 0);
  EXPECT_NEAR(error_of(7), 1, 1e-6);       // 1 is exact with a scale of 1 or 2; 7 becomes 6 or 8
  EXPECT_NEAR(error_of(7.9f), 0.1, 1e-6);  // as 8, in steps of 2
}

class QuantisedStore : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = Checkpoint::Open(EXPERTFLOW_SOURCE_DIR "/models/tiny-moe");
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    checkpoint_.emplace(std::move(opened).value());
    plan_ = testing::PlanFromNames(*checkpoint_);
  }
  TemporaryFolder folder_;
  std::optional<Checkpoint> checkpoint_;
  WeightPlan plan_;
};

TEST_F(QuantisedStore, HoldsTheCheckpointsExperts) {
  for (const DType dtype : kQuantisedTypes) {
    const auto layout = StoreLayout::Make(plan_, *checkpoint_, "{}", {.experts = dtype});
    ASSERT_TRUE(layout.ok()) << layout.status().ToString();
    EXPECT_THAT(layout->expert_dtypes(), ::testing::ElementsAre(dtype));
    const std::string path = folder_.File(std::string(DTypeName(dtype)));
    size_t matrices = 0;
    double worst = 0;
    StoreFillOptions options;
    options.threads = 3;
    options.quantised = [&](const TensorInfo&, const QuantisationError& error) {
      ++matrices;
      worst = std::max(worst, error.relative());
    };
    ASSERT_TRUE(PackStore(*layout, path, options).ok());
    EXPECT_EQ(matrices, 3 * plan_.experts.size());
    EXPECT_LT(worst, dtype == DType::kInt8 ? 0.01 : dtype == DType::kFp8 ? 0.04 : 0.17);
    const auto view = StoreView::OpenFile(path);
    ASSERT_TRUE(view.ok()) << view.status().ToString();
    EXPECT_TRUE(view->VerifyAll().ok());
    EXPECT_TRUE(view->Matches(plan_).ok());
    const ExpertSpec& spec = plan_.experts[100];
    const ExpertBlock block = view->Expert(spec.key);
    EXPECT_EQ(block.types, ExpertTypes::All(dtype));
    const uint64_t elements = static_cast<uint64_t>(block.hidden * block.intermediate);
    EXPECT_EQ(block.up_offset, (MatrixBytes(dtype, elements) + 63) / 64 * 64);
    const TensorInfo& down = *checkpoint_->Find(spec.down.name);
    for (uint64_t i = 0; i < elements; ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, down.data.data() + 2 * i, 2);
      const float found = QuantisedValue(block.data + block.down_offset, dtype, elements, i);
      ASSERT_NEAR(found, FloatFromBFloat16(bits), dtype == DType::kInt8 ? 2e-3 : 1e-1) << i;
    }
  }
}

// Experts of two types in another order: each block holds what a store of its type alone holds.
TEST_F(QuantisedStore, ExpertsMayHaveTypesOfTheirOwnAndAnyOrder) {
  StoreSettings settings;
  for (size_t i = 0; i < plan_.experts.size(); ++i) {
    settings.each_expert.push_back(i % 3 == 0 ? DType::kInt8 : DType::kInt4);
    settings.expert_order.push_back(plan_.experts.size() - 1 - i);
  }
  const auto store = [&](const std::string& name, const StoreSettings& with) {
    const auto layout = StoreLayout::Make(plan_, *checkpoint_, "{}", with);
    EXPECT_TRUE(layout.ok()) << layout.status().ToString();
    EXPECT_TRUE(PackStore(*layout, folder_.File(name), {}).ok());
    auto view = StoreView::OpenFile(folder_.File(name));
    EXPECT_TRUE(view.ok()) << view.status().ToString();
    return std::move(view).value();
  };
  const StoreView mixed = store("mixed", settings);
  const StoreView int8 = store("int8", {.experts = DType::kInt8});
  const StoreView int4 = store("int4", {.experts = DType::kInt4});
  EXPECT_TRUE(mixed.VerifyAll().ok());
  EXPECT_TRUE(mixed.Matches(plan_).ok());
  EXPECT_THAT(mixed.expert_dtypes(), ::testing::ElementsAre(DType::kInt8, DType::kInt4));
  EXPECT_EQ(mixed.expert_block_bytes(), int8.expert_block_bytes());
  const uint8_t* last = nullptr;
  for (size_t i = 0; i < plan_.experts.size(); ++i) {
    const ExpertKey key = plan_.experts[i].key;
    const ExpertBlock found = mixed.Expert(key), expected = (i % 3 == 0 ? int8 : int4).Expert(key);
    ASSERT_EQ(found.types, expected.types);
    ASSERT_EQ(found.bytes, expected.bytes);
    ASSERT_EQ(std::memcmp(found.data, expected.data, found.bytes), 0);
    EXPECT_TRUE(last == nullptr || found.data < last);
    last = found.data;
  }
  EXPECT_NE(mixed.fingerprint(), int8.fingerprint());
  // The order alone makes no other model.
  EXPECT_EQ(store("ordered", {.experts = DType::kInt4, .expert_order = settings.expert_order})
                .fingerprint(),
            int4.fingerprint());
}

// Of a large matrix some rows at a time; codes and scales are those of all at once.
TEST_F(QuantisedStore, DenseMatricesAreQuantisedByRows) {
  constexpr int64_t kRows = 3001, kCols = 992;  // several parts, and padding before the scales
  std::vector<float> values(kRows * kCols);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(static_cast<float>(i % 100'003)) * static_cast<float>(i / 32 % 17);
  }
  auto writer = SafetensorsWriter::Create(
      folder_.File("model.safetensors"),
      {{"m", ElementType::kF32, {kRows, kCols}}, {"router", ElementType::kF32, {kRows, kCols}}});
  ASSERT_TRUE(writer.ok());
  const std::span bytes(reinterpret_cast<const uint8_t*>(values.data()), values.size() * 4);
  ASSERT_TRUE(writer->Append(bytes).ok());
  ASSERT_TRUE(writer->Append(bytes).ok());
  ASSERT_TRUE(writer->Finish().ok());
  const auto checkpoint = Checkpoint::Open(folder_.path());
  ASSERT_TRUE(checkpoint.ok());
  WeightPlan plan;
  plan.dense = {{.name = "m", .shape = {kRows, kCols}, .quantisable = true},
                {.name = "router", .shape = {kRows, kCols}}};
  for (const DType dtype : kQuantisedTypes) {
    const auto layout = StoreLayout::Make(plan, *checkpoint, "{}", {.dense = dtype});
    ASSERT_TRUE(layout.ok()) << layout.status().ToString();
    size_t calls = 0;
    StoreFillOptions options;
    options.quantised = [&](const TensorInfo& tensor, const QuantisationError& error) {
      ++calls;
      EXPECT_EQ(tensor.name, "m");
      EXPECT_GT(error.relative(), 0);
    };
    ASSERT_TRUE(PackStore(*layout, folder_.File("x.efstore"), options).ok());
    EXPECT_EQ(calls, 1u);
    const auto view = StoreView::OpenFile(folder_.File("x.efstore"));
    ASSERT_TRUE(view.ok()) << view.status().ToString();
    EXPECT_TRUE(view->VerifyAll().ok());
    EXPECT_TRUE(view->Matches(plan).ok());
    EXPECT_EQ(view->FindDense("router")->dtype, DType::kF32);
    const DenseTensor& found = *view->FindDense("m");
    EXPECT_EQ(found.dtype, dtype);
    std::vector<uint8_t> expected(MatrixBytes(dtype, values.size()));
    QuantisationError error;
    ASSERT_TRUE(QuantiseGroups(values, dtype, expected, &error).ok());
    ASSERT_EQ(found.bytes, expected.size());
    EXPECT_EQ(std::memcmp(found.data, expected.data(), expected.size()), 0) << DTypeName(dtype);
  }
}

// kill -9 in the middle: the next run goes on, and the file is that of a run without a break.
TEST_F(QuantisedStore, APackThatWasKilledGoesOn) {
  const auto layout = StoreLayout::Make(plan_, *checkpoint_, "{}", {.experts = DType::kInt4});
  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  const auto pack = [&](const std::string& path, size_t kill_after) {
    size_t calls = 0;
    StoreFillOptions options;
    options.threads = 2;
    options.quantised = [&](const TensorInfo&, const QuantisationError&) {
      if (++calls == kill_after) ::raise(SIGKILL);
    };
    EXPECT_TRUE(PackStore(*layout, path, options).ok());
    return calls;
  };
  const auto killed_after = [&](const std::string& path, size_t calls) {
    const pid_t child = ::fork();
    if (child == 0) {
      pack(path, calls);
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  };
  const std::string whole = folder_.File("whole"), broken = folder_.File("broken");
  const size_t all = pack(whole, 0);
  const auto content = [](const std::string& path) {
    return ReadFileToString(path, size_t{1} << 30).value();
  };
  killed_after(broken, all / 3);
  killed_after(broken, all / 3);
  EXPECT_FALSE(std::filesystem::exists(broken));
  // A unit that is not what the list says is written again; a torn entry counts for nothing.
  std::fstream part(broken + ".part", std::ios::in | std::ios::out | std::ios::binary);
  part.seekp(static_cast<std::streamoff>(layout->units().front().offset));
  part.put('x');
  part.close();
  std::ofstream(broken + ".part.done", std::ios::app | std::ios::binary) << "torn";
  const size_t left = pack(broken, 0);
  EXPECT_LT(left, all / 2);
  EXPECT_GT(left, all / 4);
  EXPECT_TRUE(content(broken) == content(whole));
  EXPECT_FALSE(std::filesystem::exists(broken + ".part"));
  EXPECT_FALSE(std::filesystem::exists(broken + ".part.done"));

  // Other settings begin anew.
  killed_after(broken, all / 2);
  const auto other = StoreLayout::Make(plan_, *checkpoint_, "{}", {.experts = DType::kInt8});
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(PackStore(*other, broken, {}).ok());
  EXPECT_TRUE(StoreView::OpenFile(broken)->VerifyAll().ok());
}

TEST_F(QuantisedStore, TwoProcessesDoNotWriteOneFile) {
  const auto layout = StoreLayout::Make(plan_, *checkpoint_, "{}");
  ASSERT_TRUE(layout.ok());
  const auto first = PackFile::Open(folder_.File("out"), *layout);
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  EXPECT_THAT(PackStore(*layout, folder_.File("out"), {}).message(),
              HasSubstr("another process is packing"));
}

TEST_F(QuantisedStore, RefusalsNameTheExpertOrTheTensor) {
  auto odd = Checkpoint::Open(testing::kCheckpointFolder);
  ASSERT_TRUE(odd.ok());
  const auto layout =
      StoreLayout::Make(testing::PlanFromNames(*odd), *odd, "{}", {.experts = DType::kInt8});
  EXPECT_THAT(layout.status().message(),
              HasSubstr("layer 0 expert 0: INT8: groups of 32 do not divide the sizes 56 and 26"));

  WeightPlan dense = testing::PlanFromNames(*odd);
  dense.dense.front().quantisable = true;
  EXPECT_THAT(StoreLayout::Make(dense, *odd, "{}", {.dense = DType::kInt8}).status().message(),
              AllOf(HasSubstr("'" + dense.dense.front().name + "'"),
                    HasSubstr("INT8: groups of 32 do not divide its rows")));

  WeightPlan plan;
  plan.layers = plan.experts_per_layer = 1;
  plan.experts = {{.key = {LayerId(0), ExpertId(0)},
                   .gate = {"gate", {32, 32}},
                   .up = {"up", {32, 32}},
                   .down = {"down", {32, 32}}}};
  auto writer = SafetensorsWriter::Create(folder_.File("model.safetensors"),
                                          {{"gate", ElementType::kF32, {32, 32}},
                                           {"up", ElementType::kF32, {32, 32}},
                                           {"down", ElementType::kF32, {32, 32}}});
  ASSERT_TRUE(writer.ok());
  std::vector<float> values(3 * 1024, 1.0f);
  values[1500] = INFINITY;
  ASSERT_TRUE(
      writer->Append({reinterpret_cast<const uint8_t*>(values.data()), values.size() * 4}).ok());
  ASSERT_TRUE(writer->Finish().ok());
  const auto checkpoint = Checkpoint::Open(folder_.path());
  ASSERT_TRUE(checkpoint.ok());
  const auto bad = StoreLayout::Make(plan, *checkpoint, "{}", {.experts = DType::kInt4});
  ASSERT_TRUE(bad.ok());
  const Status packed = PackStore(*bad, folder_.File("x.efstore"), {});
  EXPECT_THAT(packed.message(), HasSubstr("'up'"));
  EXPECT_THAT(packed.message(), HasSubstr("inf cannot be quantised"));
}

}  // namespace
}  // namespace expertflow

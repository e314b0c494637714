#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "expert_store/store_view.h"
#include "store_fixture.h"

namespace expertflow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::InSmallTmpfs;
using testing::TemporaryFolder;

class StoreTest : public testing::StoreFixture {
 protected:
  StoreView PackAndOpen(const std::string& path, const StoreFillOptions& options = {}) {
    const Status packed = PackStore(*layout_, path, options);
    EXPECT_TRUE(packed.ok()) << packed.ToString();
    auto view = StoreView::OpenFile(path);
    EXPECT_TRUE(view.ok()) << view.status().ToString();
    return std::move(view).value();
  }

  TemporaryFolder folder_;
};

void FlipByte(const std::string& path, uint64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const auto byte = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 1));
}

size_t FilesIn(const std::string& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder),
                                           std::filesystem::directory_iterator()));
}

TEST_F(StoreTest, EveryByteComesBack) {
  const StoreView view = PackAndOpen(folder_.File("model.efstore"));
  EXPECT_EQ(view.config_json(), config_);
  EXPECT_EQ(view.layers(), 3);
  EXPECT_EQ(view.experts_per_layer(), 9);
  EXPECT_EQ(view.ExpertsIn(LayerId(2)), 9);
  EXPECT_EQ(view.ExpertsIn(LayerId(3)), 0);
  EXPECT_EQ(view.ExpertsIn(LayerId()), 0);
  EXPECT_EQ(view.total_bytes(), layout_->total_bytes());
  EXPECT_EQ(view.total_expert_bytes(), layout_->expert_bytes());
  EXPECT_EQ(view.total_dense_bytes(), layout_->dense_bytes());
  EXPECT_EQ(view.expert_block_bytes(), layout_->expert_block_bytes());

  for (const TensorSpec& spec : plan_.dense) {
    SCOPED_TRACE(spec.name);
    const DenseTensor* stored = view.FindDense(spec.name);
    ASSERT_NE(stored, nullptr);
    const TensorInfo& source = *checkpoint_->Find(spec.name);
    EXPECT_EQ(stored->shape, source.shape);
    EXPECT_EQ(stored->dtype, DType::kBF16);
    ASSERT_EQ(stored->bytes, source.bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(stored->data) % kTensorAlignment, 0u);
    EXPECT_EQ(std::memcmp(stored->data, source.data.data(), stored->bytes), 0);
  }
  for (const ExpertSpec& spec : plan_.experts) {
    const ExpertBlock block = view.Expert(spec.key);
    EXPECT_EQ(block.hidden, 56);
    EXPECT_EQ(block.intermediate, 26);
    EXPECT_EQ(block.types, ExpertTypes::All(DType::kBF16));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data) % kStorePageBytes, 0u);
    const auto same = [&](const TensorSpec& tensor, uint64_t offset) {
      const TensorInfo& source = *checkpoint_->Find(tensor.name);
      return offset % kTensorAlignment == 0 && offset + source.bytes <= block.bytes &&
             std::memcmp(block.data + offset, source.data.data(), source.bytes) == 0;
    };
    EXPECT_TRUE(same(spec.gate, block.gate_offset));
    EXPECT_TRUE(same(spec.up, block.up_offset));
    EXPECT_TRUE(same(spec.down, block.down_offset));
    EXPECT_EQ(block.bytes, block.down_offset + 26 * 56 * 2);
  }
  EXPECT_EQ(view.FindDense("none"), nullptr);
  EXPECT_FALSE(view.HasExpert({LayerId(0), ExpertId(9)}));
  EXPECT_TRUE(view.VerifyAll().ok());
  EXPECT_TRUE(view.Matches(plan_).ok());
}

TEST_F(StoreTest, ThreadsDoNotChangeTheFile) {
  const StoreView one = PackAndOpen(folder_.File("one"), {.threads = 1});
  const StoreView many = PackAndOpen(folder_.File("many"), {.threads = 7});
  const auto a = MappedFile::Open(folder_.File("one"));
  const auto b = MappedFile::Open(folder_.File("many"));
  EXPECT_TRUE(
      std::equal(a->bytes().begin(), a->bytes().end(), b->bytes().begin(), b->bytes().end()));
  EXPECT_EQ(one.fingerprint(), many.fingerprint());
}

TEST_F(StoreTest, TheFingerprintTellsModelsApart) {
  const StoreView first = PackAndOpen(folder_.File("first"));
  auto layout = StoreLayout::Make(plan_, *checkpoint_, config_ + " ");
  ASSERT_TRUE(layout.ok());
  layout_.emplace(std::move(layout).value());
  const StoreView second = PackAndOpen(folder_.File("second"));
  EXPECT_NE(first.fingerprint(), second.fingerprint());

  StoreDescriptor wrong = first.descriptor();
  wrong.fingerprint = second.fingerprint();
  EXPECT_TRUE(StoreView::Attach(first.descriptor()).ok());
  EXPECT_THAT(StoreView::Attach(wrong).status().message(),
              AllOf(HasSubstr("first"), HasSubstr("another model")));
}

TEST_F(StoreTest, ADamagedBlockIsFoundByItsChecksum) {
  const std::string path = folder_.File("model.efstore");
  const ExpertKey hit{LayerId(1), ExpertId(4)};
  PackAndOpen(path);
  for (const StoreUnit& unit : layout_->units()) {
    if (unit.expert && unit.entry == 1 * 9 + 4) FlipByte(path, unit.offset + unit.bytes - 1);
  }
  const auto view = StoreView::OpenFile(path);
  ASSERT_TRUE(view.ok()) << view.status().ToString();
  EXPECT_THAT(view->VerifyExpert(hit).message(), HasSubstr("layer 1 expert 4"));
  EXPECT_FALSE(view->VerifyAll().ok());
  EXPECT_TRUE(view->VerifyExpert({LayerId(1), ExpertId(3)}).ok());
  EXPECT_EQ(view->VerifyExpert({LayerId(7), ExpertId(3)}).code(), StatusCode::kNotFound);
}

TEST_F(StoreTest, ADamagedDenseTensorIsFoundByItsChecksum) {
  const std::string path = folder_.File("model.efstore");
  PackAndOpen(path);
  for (const StoreUnit& unit : layout_->units()) {
    if (!unit.expert && unit.entry == 0) FlipByte(path, unit.offset);
  }
  const auto view = StoreView::OpenFile(path);
  ASSERT_TRUE(view.ok());
  EXPECT_FALSE(view->VerifyDense(view->dense()[0]).ok());
  EXPECT_TRUE(view->VerifyDense(view->dense()[1]).ok());
}

TEST_F(StoreTest, FIELD_63_DamagedOrTruncatedFilesAreRefused) {
  const std::string path = folder_.File("model.efstore");
  const auto refused = [&](const std::string& what) {
    const auto view = StoreView::OpenFile(path);
    EXPECT_EQ(view.status().code(), StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(view.status().message(), HasSubstr("model.efstore")) << what;
  };
  for (const uint64_t offset : {uint64_t{0}, uint64_t{8}, uint64_t{24}, uint64_t{40}, uint64_t{56},
                                kStoreHeaderBytes, layout_->metadata().size() - 1}) {
    PackAndOpen(path);
    FlipByte(path, offset);
    refused("byte " + std::to_string(offset));
  }
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{100}, kStoreHeaderBytes,
                               layout_->total_bytes() - 1, layout_->total_bytes() + 4096}) {
    PackAndOpen(path);
    std::filesystem::resize_file(path, bytes);
    refused(std::to_string(bytes) + " bytes");
  }
}

TEST_F(StoreTest, APlanOfAnotherModelIsRefused) {
  const StoreView view = PackAndOpen(folder_.File("model.efstore"));
  WeightPlan plan = plan_;
  plan.dense[0].shape[0] += 1;
  EXPECT_THAT(view.Matches(plan).message(), HasSubstr(plan.dense[0].name));
  plan = plan_;
  plan.dense[0].name = "x";
  EXPECT_THAT(view.Matches(plan).message(), HasSubstr("'x' is missing"));
  plan = plan_;
  plan.experts[5].gate.shape = {1, 2};
  EXPECT_THAT(view.Matches(plan).message(), HasSubstr("layer 0 expert 5"));
  plan = plan_;
  plan.layers = 4;
  EXPECT_FALSE(view.Matches(plan).ok());
}

TEST_F(StoreTest, PlansThatTheIndexCannotHoldAreRefused) {
  const auto error_of = [&](const WeightPlan& plan) {
    return StoreLayout::Make(plan, *checkpoint_, config_).status().message();
  };
  WeightPlan plan = plan_;
  std::swap(plan.experts[0], plan.experts[1]);
  EXPECT_THAT(error_of(plan), HasSubstr("not in its place"));
  plan = plan_;
  plan.experts.pop_back();
  EXPECT_FALSE(error_of(plan).empty());
  plan = plan_;
  plan.experts[2].up.shape = {1, 1};
  EXPECT_THAT(error_of(plan), HasSubstr("layer 0 expert 2"));
  plan = plan_;
  plan.layers = 1 << 20;
  EXPECT_FALSE(error_of(plan).empty());
  plan = plan_;
  plan.dense[0].shape = {1, 1, 1, 1, 1};
  EXPECT_THAT(error_of(plan), HasSubstr("5 dimensions"));
}

TEST_F(StoreTest, FIELD_63_AFileThatShrinksWhileItIsReadIsAnError) {
  const std::string copy = folder_.File("model.safetensors");
  std::filesystem::copy_file(std::string(testing::kCheckpointFolder) + "/model.safetensors", copy);
  const auto checkpoint = Checkpoint::Open(folder_.path());
  ASSERT_TRUE(checkpoint.ok());
  const auto layout = StoreLayout::Make(plan_, *checkpoint, config_);
  ASSERT_TRUE(layout.ok());
  std::filesystem::resize_file(copy, std::filesystem::file_size(copy) / 2);
  EXPECT_THAT(PackStore(*layout, folder_.File("out"), {}).message(),
              AllOf(HasSubstr("became shorter"), HasSubstr(copy)));
  EXPECT_EQ(FilesIn(folder_.path()), 1u);
}

TEST_F(StoreTest, CancellingLeavesNothing) {
  const std::atomic<bool> cancelled = true;
  // The fill may be done before the flag is looked at; both ends are clean.
  const Status status = PackStore(*layout_, folder_.File("out"), {.cancelled = &cancelled});
  EXPECT_EQ(FilesIn(folder_.path()), status.ok() ? 1u : 0u);
}

TEST_F(StoreTest, ProgressEndsAtAllBytes) {
  uint64_t done = 0;
  uint64_t total = 1;
  const auto progress = [&](uint64_t done_bytes, uint64_t total_bytes) {
    done = done_bytes;
    total = total_bytes;
  };
  PackAndOpen(folder_.File("out"), {.progress = progress});
  EXPECT_EQ(done, total);
  EXPECT_EQ(total, layout_->dense_bytes() + layout_->expert_bytes());
}

TEST_F(StoreTest, AFullDiskIsNamedAndLeavesNothing) {
  const int result = InSmallTmpfs(folder_.path(), 64 << 10, [&] {
    const Status status = PackStore(*layout_, folder_.File("model.efstore"), {});
    if (status.code() != StatusCode::kResourceExhausted) return 1;
    if (status.message().find("model.efstore") == std::string::npos) return 2;
    return FilesIn(folder_.path()) == 0 ? 0 : 3;
  });
  if (result < 0) GTEST_SKIP() << "this user may not mount a small tmpfs";
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace expertflow

#include "expert_store/store_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "store_fixture.h"

namespace expertflow {
namespace {

using ::testing::HasSubstr;

// A store in memory whose index entries can be changed with the hashes set right again, so that
// the checks behind the hashes are reached.
class StoreIndexTest : public testing::StoreFixture {
 protected:
  void SetUp() override {
    StoreFixture::SetUp();
    pages_.resize(layout_->total_bytes() / kStorePageBytes);
    const testing::TemporaryFolder folder;
    ASSERT_TRUE(PackStore(*layout_, folder.File("s"), {}).ok());
    const auto file = MappedFile::Open(folder.File("s"));
    ASSERT_EQ(file->bytes().size(), Bytes().size());
    std::memcpy(Bytes().data(), file->bytes().data(), Bytes().size());
    ASSERT_TRUE(ParseStore(Bytes(), "s").ok());
  }

  std::span<uint8_t> Bytes() { return {pages_[0].bytes, pages_.size() * kStorePageBytes}; }
  StoreHeader& Header() { return *reinterpret_cast<StoreHeader*>(pages_[0].bytes); }

  // The error that parsing gives after `change`; the store is restored.
  std::string ErrorAfter(const std::function<void()>& change) {
    const std::vector<Page> saved = pages_;
    change();
    SealHeader(pages_[0].bytes);
    const auto index = ParseStore(Bytes(), "s");
    EXPECT_EQ(index.status().code(), StatusCode::kInvalidArgument);
    pages_ = saved;
    return index.status().message();
  }
  std::string ErrorAfterDense(const std::function<void(DenseEntry*)>& change) {
    return ErrorAfter([&] {
      change(reinterpret_cast<DenseEntry*>(pages_[0].bytes + Header().dense_index.offset));
    });
  }
  std::string ErrorAfterExpert(const std::function<void(ExpertEntry*)>& change) {
    return ErrorAfter([&] {
      change(reinterpret_cast<ExpertEntry*>(pages_[0].bytes + Header().expert_index.offset));
    });
  }

  struct alignas(kStorePageBytes) Page {
    uint8_t bytes[kStorePageBytes] = {};
  };
  std::vector<Page> pages_;
};

TEST_F(StoreIndexTest, FIELD_64_HeaderFieldsAreBounded) {
  EXPECT_THAT(ErrorAfter([&] { Header().version = kStoreVersion + 1; }),
              HasSubstr("pack the checkpoint again"));
  EXPECT_THAT(ErrorAfter([&] { Header().layout_hash ^= 1; }), HasSubstr("store format"));
  EXPECT_THAT(ErrorAfter([&] { Header().total_bytes += kStorePageBytes; }), HasSubstr("truncated"));
  EXPECT_THAT(ErrorAfter([&] { Header().layers = -1; }), HasSubstr("-1 layers"));
  EXPECT_THAT(ErrorAfter([&] { Header().layers = 1 << 30; }), HasSubstr("layers"));
  EXPECT_THAT(ErrorAfter([&] { Header().experts_per_layer = 1 << 30; }), HasSubstr("experts"));
  EXPECT_FALSE(ErrorAfter([&] { Header().experts_per_layer = 0; }).empty());
  EXPECT_FALSE(ErrorAfter([&] { Header().experts_per_layer = 10; }).empty());
  EXPECT_FALSE(ErrorAfter([&] { Header().layers = 2; }).empty());
  EXPECT_THAT(ErrorAfter([&] { Header().names.bytes = UINT64_MAX - 7; }), HasSubstr("section"));
  EXPECT_THAT(ErrorAfter([&] { Header().names.offset += 8; }), HasSubstr("sections"));
}

TEST_F(StoreIndexTest, FIELD_64_DenseEntriesAreBounded) {
  EXPECT_FALSE(ErrorAfterDense([](DenseEntry* e) { e->offset = UINT64_MAX - 63; }).empty());
  EXPECT_FALSE(ErrorAfterDense([](DenseEntry* e) { e->offset += 1; }).empty());
  EXPECT_FALSE(ErrorAfterDense([](DenseEntry* e) { e->offset = 0; }).empty());
  EXPECT_FALSE(ErrorAfterDense([](DenseEntry* e) { e->bytes += 64; }).empty());
  EXPECT_FALSE(ErrorAfterDense([](DenseEntry* e) { e->name_offset = UINT64_MAX; }).empty());
  EXPECT_FALSE(ErrorAfterDense([](DenseEntry* e) { e->name_bytes = UINT32_MAX; }).empty());
  EXPECT_FALSE(ErrorAfterDense([](DenseEntry* e) { e->dtype = 3; }).empty());
  EXPECT_FALSE(ErrorAfterDense([](DenseEntry* e) { e->rank = 5; }).empty());
  EXPECT_FALSE(ErrorAfterDense([](DenseEntry* e) { e->shape[0] = -1; }).empty());
  EXPECT_FALSE(ErrorAfterDense([](DenseEntry* e) { e->shape[0] = INT64_MAX; }).empty());
  EXPECT_THAT(ErrorAfterDense([](DenseEntry* e) { std::swap(e[0], e[1]); }), HasSubstr("order"));
  EXPECT_THAT(ErrorAfterDense([](DenseEntry* e) { e[0].offset = e[1].offset; }),
              HasSubstr("overlap"));
}

TEST_F(StoreIndexTest, FIELD_64_ExpertEntriesAreBounded) {
  EXPECT_FALSE(ErrorAfterExpert([](ExpertEntry* e) { e->offset += 64; }).empty());
  EXPECT_FALSE(ErrorAfterExpert([](ExpertEntry* e) {
                 e->offset = UINT64_MAX - kStorePageBytes + 1;
               }).empty());
  EXPECT_FALSE(ErrorAfterExpert([](ExpertEntry* e) { e->bytes -= 1; }).empty());
  EXPECT_FALSE(ErrorAfterExpert([](ExpertEntry* e) { e->hidden = INT64_MAX; }).empty());
  EXPECT_FALSE(ErrorAfterExpert([](ExpertEntry* e) { e->intermediate = -26; }).empty());
  EXPECT_THAT(ErrorAfterExpert([](ExpertEntry* e) { e->gate_dtype = 77; }), HasSubstr("types 77"));
  EXPECT_THAT(ErrorAfterExpert([](ExpertEntry* e) { e->up_dtype = 77; }), HasSubstr("types"));
  EXPECT_THAT(ErrorAfterExpert([](ExpertEntry* e) { e->down_dtype = 77; }), HasSubstr("types"));
  EXPECT_THAT(ErrorAfterExpert([](ExpertEntry* e) { e->bias = 4; }), HasSubstr("of biases 4"));
  EXPECT_THAT(ErrorAfterExpert([](ExpertEntry* e) { e->bias = UINT8_MAX; }), HasSubstr("biases"));
  EXPECT_THAT(ErrorAfterExpert([](ExpertEntry* e) { e->bias = 1; }), HasSubstr("for a block of"));
  EXPECT_THAT(ErrorAfterExpert([](ExpertEntry* e) { e->expert = 1; }), HasSubstr("order"));
  EXPECT_THAT(ErrorAfterExpert([](ExpertEntry* e) { e->layer = -1; }), HasSubstr("order"));
  EXPECT_THAT(ErrorAfterExpert([](ExpertEntry* e) { e[18].layer = 1; }), HasSubstr("order"));
  EXPECT_THAT(ErrorAfterExpert([](ExpertEntry* e) { e[1].offset = e[0].offset; }),
              HasSubstr("overlap"));
}

}  // namespace
}  // namespace expertflow

#include "common/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>

namespace expertflow {
namespace {

TEST(Status, CarriesCodeMessageAndContext) {
  EXPECT_TRUE(OkStatus().ok());
  EXPECT_EQ(OkStatus().ToString(), "ok");
  EXPECT_TRUE(OkStatus().WithContext("file").ok());
  const Status status = NotFound("no tensor 'x'").WithContext("model.safetensors");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.ToString(), "not found: model.safetensors: no tensor 'x'");
}

TEST(Status, FromErrnoKeepsWhatCanBeActedOn) {
  EXPECT_EQ(FromErrno(ENOSPC, "x").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(FromErrno(ENOMEM, "x").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(FromErrno(ENOENT, "x").code(), StatusCode::kNotFound);
  EXPECT_EQ(FromErrno(EIO, "cannot read f").message(), "cannot read f: Input/output error");
}

Result<int> Half(int value) {
  if (value % 2 != 0) return InvalidArgument("odd");
  return value / 2;
}

Result<int> Quarter(int value) {
  ASSIGN_OR_RETURN(const int half, Half(value));
  ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

Status Check(int value) {
  RETURN_IF_ERROR(Quarter(value).status());
  return OkStatus();
}

TEST(Result, HoldsAValueOrAnError) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Check(8).ok());
  EXPECT_FALSE(Check(7).ok());
  Result<std::unique_ptr<int>> owner(std::make_unique<int>(3));
  const std::unique_ptr<int> taken = *std::move(owner);
  EXPECT_EQ(*taken, 3);
}

}  // namespace
}  // namespace expertflow

#include "model/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "checkpoint_files.h"

namespace expertflow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::SafetensorsContent;
using testing::TemporaryFolder;

Result<std::vector<SafetensorsEntry>> Parse(const std::string& content) {
  return ParseSafetensors({reinterpret_cast<const uint8_t*>(content.data()), content.size()},
                          "f.safetensors");
}

// The message of the error; fails when there is none.
std::string ErrorOf(const std::string& content) {
  const auto entries = Parse(content);
  EXPECT_FALSE(entries.ok());
  EXPECT_EQ(entries.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(entries.status().message(), HasSubstr("f.safetensors"));
  return entries.status().message();
}

std::string Tensor(const std::string& name, const std::string& type, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + type + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

TEST(Safetensors, ReadsEveryFieldAndSortsByName) {
  const std::string header = "{\"__metadata__\":{\"format\":\"pt\"}," +
                             Tensor("b", "BF16", "[2,3]", "[0,12]") + "," +
                             Tensor("a", "I32", "[]", "[12,16]") + "}   ";
  const auto entries = Parse(SafetensorsContent(header, 16));
  ASSERT_TRUE(entries.ok()) << entries.status().ToString();
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].name, "a");
  EXPECT_EQ((*entries)[0].type, ElementType::kI32);
  EXPECT_TRUE((*entries)[0].shape.empty());
  EXPECT_EQ((*entries)[0].file_offset, 8 + header.size() + 12);
  EXPECT_EQ((*entries)[0].bytes, 4u);
  EXPECT_EQ((*entries)[1].type, ElementType::kBF16);
  EXPECT_EQ((*entries)[1].shape, (std::vector<int64_t>{2, 3}));
}

TEST(Safetensors, EmptyTensorsAndAnEmptyFileAreFine) {
  const std::string header =
      "{" + Tensor("a", "F32", "[0,5]", "[0,0]") + "," + Tensor("b", "F32", "[1]", "[0,4]") + "}";
  EXPECT_TRUE(Parse(SafetensorsContent(header, 4)).ok());
  EXPECT_TRUE(Parse(SafetensorsContent("{}", 0)).ok());
}

TEST(Safetensors, FIELD_63_TruncatedFileIsRefused) {
  const std::string header = "{" + Tensor("a", "F32", "[4]", "[0,16]") + "}";
  const std::string whole = SafetensorsContent(header, 16);
  ASSERT_TRUE(Parse(whole).ok());
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) ErrorOf(whole.substr(0, bytes));
  EXPECT_THAT(ErrorOf(whole.substr(0, whole.size() - 1)),
              AllOf(HasSubstr("'a'"), HasSubstr("trunc")));
}

TEST(Safetensors, FIELD_63_HeaderLengthPastTheFileIsRefused) {
  std::string content = SafetensorsContent("{}", 4);
  content[0] = 100;
  EXPECT_THAT(ErrorOf(content), HasSubstr("past the end of the file"));
  content[7] = '\xff';
  EXPECT_THAT(ErrorOf(content), HasSubstr("limit"));
}

TEST(Safetensors, FIELD_64_ExtentsThatWrapAroundAreRefused) {
  for (const char* offsets :
       {"[8,4]", "[0,20]", "[16,32]", "[18446744073709551608,18446744073709551616]", "[-8,8]",
        "[0,9223372036854775807]", "[9223372036854775800,9223372036854775807]", "[0]", "[0,8,16]",
        "[0.0,16.0]", "\"x\"", "[[0],16]"}) {
    SCOPED_TRACE(offsets);
    EXPECT_THAT(ErrorOf(SafetensorsContent("{" + Tensor("a", "F32", "[4]", offsets) + "}", 16)),
                HasSubstr("'a'"));
  }
}

TEST(Safetensors, FIELD_65_ShapesThatOverflowAreRefused) {
  for (const char* shape :
       {"[4294967296,4294967296]", "[9223372036854775807,9223372036854775807,9223372036854775807]",
        "[4611686018427387904]", "[-4]", "[4.0]", "[\"4\"]", "4",
        "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,4]"}) {
    SCOPED_TRACE(shape);
    EXPECT_THAT(ErrorOf(SafetensorsContent("{" + Tensor("a", "F32", shape, "[0,16]") + "}", 16)),
                HasSubstr("'a'"));
  }
}

TEST(Safetensors, ExtentsMustFitShapeAndType) {
  EXPECT_THAT(ErrorOf(SafetensorsContent("{" + Tensor("a", "BF16", "[4]", "[0,16]") + "}", 16)),
              HasSubstr("BF16 of shape [4] takes 8 bytes, but its extent has 16"));
}

TEST(Safetensors, OverlapsAndGapsAreRefused) {
  const auto two = [](const char* second) {
    return "{" + Tensor("a", "F32", "[2]", "[0,8]") + "," + Tensor("b", "F32", "[2]", second) + "}";
  };
  EXPECT_TRUE(Parse(SafetensorsContent(two("[8,16]"), 16)).ok());
  EXPECT_THAT(ErrorOf(SafetensorsContent(two("[4,12]"), 12)), HasSubstr("overlap"));
  EXPECT_THAT(ErrorOf(SafetensorsContent(two("[0,8]"), 8)), HasSubstr("overlap"));
  EXPECT_THAT(ErrorOf(SafetensorsContent(two("[12,20]"), 20)), HasSubstr("gap"));
  EXPECT_THAT(ErrorOf(SafetensorsContent(two("[8,16]"), 17)), HasSubstr("17 bytes of data"));
}

TEST(Safetensors, DuplicatesAreRefused) {
  EXPECT_THAT(ErrorOf(SafetensorsContent("{" + Tensor("a", "F32", "[1]", "[0,4]") + "," +
                                             Tensor("a", "F32", "[1]", "[4,8]") + "}",
                                         8)),
              HasSubstr("'a' is described twice"));
  EXPECT_THAT(ErrorOf(SafetensorsContent(R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],)"
                                         R"("data_offsets":[0,4]}})",
                                         4)),
              HasSubstr("'a'"));
}

TEST(Safetensors, MissingAndUnknownFieldsAreRefused) {
  for (const char* fields :
       {R"("shape":[1],"data_offsets":[0,4])", R"("dtype":"F32","data_offsets":[0,4])",
        R"("dtype":"F32","shape":[1])", R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1)",
        R"("dtype":"F31","shape":[1],"data_offsets":[0,4])",
        R"("dtype":3,"shape":[1],"data_offsets":[0,4])"}) {
    SCOPED_TRACE(fields);
    EXPECT_THAT(ErrorOf(SafetensorsContent(std::string("{\"a\":{") + fields + "}}", 4)),
                HasSubstr("'a'"));
  }
  for (const char* header : {"", "[]", "5", "{", "{}x", "{\"a\":1}", "{\"__metadata__\":{\"x\":1}}",
                             "{\"__metadata__\":5}", "{\"a\":{}}{}", "nul"}) {
    SCOPED_TRACE(header);
    ErrorOf(SafetensorsContent(header, 0));
  }
}

TEST(Safetensors, FIELD_66_JsonBombIsRefusedAtOnce) {
  const std::string deep(50'000'000, '[');
  EXPECT_THAT(ErrorOf(SafetensorsContent(deep, 0)), HasSubstr("unexpected an array"));
  EXPECT_THAT(ErrorOf(SafetensorsContent("{\"a\":{\"shape\":" + deep, 0)), HasSubstr("'a'"));
}

TEST(Safetensors, LfsPointerIsCalledByItsName) {
  EXPECT_THAT(ErrorOf("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
              HasSubstr("git lfs pull"));
}

TEST(Safetensors, OpensTheReferenceFileWithIntegers) {
  const auto file = SafetensorsFile::Open(
      EXPERTFLOW_SOURCE_DIR "/tests/golden/checkpoints/qwen2_moe/reference.safetensors");
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const TensorInfo* ids = file->Find("p1.input_ids");
  ASSERT_NE(ids, nullptr);
  EXPECT_EQ(ids->type, ElementType::kI32);
  EXPECT_EQ(ids->shape, (std::vector<int64_t>{7}));
  EXPECT_EQ(ids->data.size(), 28u);
  EXPECT_EQ(file->Find("p9.input_ids"), nullptr);
  EXPECT_FALSE(ToDType(ids->type).ok());
}

TEST(Safetensors, AMissingFileIsNamed) {
  const TemporaryFolder folder;
  const auto file = SafetensorsFile::Open(folder.File("none.safetensors"));
  EXPECT_EQ(file.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(file.status().message(), HasSubstr("none.safetensors"));
}

}  // namespace
}  // namespace expertflow

#include "common/small_floats.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/golden/quantised_values.h"

namespace expertflow {
namespace {

TEST(SmallFloats, E4m3HasTheValuesOfItsDefinition) {
  for (int code = 0; code < 256; ++code) {
    const auto bits = static_cast<uint8_t>(code);
    if (code % 128 == 127) {
      EXPECT_TRUE(std::isnan(FloatFromE4m3(bits))) << code;
      continue;
    }
    EXPECT_EQ(FloatFromE4m3(bits), ValueOfE4m3(code)) << code;
    EXPECT_EQ(E4m3FromFloat(FloatFromE4m3(bits)), bits) << code;
  }
}

// Of all values, and ties go to the even code.
template <typename Value, typename Encode>
void ExpectNearest(int codes, Value value, Encode encode) {
  for (int code = 0; code + 1 < codes; ++code) {
    const float low = value(code), high = value(code + 1), middle = (low + high) / 2;
    EXPECT_EQ(encode(std::nextafter(middle, low)), code);
    EXPECT_EQ(encode(std::nextafter(middle, high)), code + 1);
    EXPECT_EQ(encode(middle), code % 2 == 0 ? code : code + 1);
  }
  EXPECT_EQ(encode(value(codes - 1) * 4), codes - 1);
  EXPECT_EQ(encode(0), 0);
}

TEST(SmallFloats, RoundToTheNearest) {
  ExpectNearest(127, ValueOfE4m3, E4m3FromFloat);
  ExpectNearest(8, ValueOfE2m1, E2m1FromFloat);
  for (int code = 0; code < 16; ++code) {
    EXPECT_EQ(kE2m1[code], ValueOfE2m1(code));
    EXPECT_EQ(E2m1FromFloat(kE2m1[code]), code);
  }
  EXPECT_EQ(E4m3FromFloat(-448), 0xfe);
}

TEST(SmallFloats, ACommonTypeHoldsTheIntegersOfBoth) {
  constexpr DType kAscending[] = {DType::kInt4, DType::kUInt4, DType::kInt8};
  for (size_t a = 0; a < 3; ++a) {
    for (size_t b = 0; b < 3; ++b) {
      EXPECT_EQ(CommonQuantisedType(kAscending[a], kAscending[b]), kAscending[std::max(a, b)]);
    }
    EXPECT_EQ(CommonQuantisedType(kAscending[a], DType::kFp8), std::nullopt);
    EXPECT_EQ(CommonQuantisedType(DType::kMxfp4, kAscending[a]), std::nullopt);
  }
  EXPECT_EQ(CommonQuantisedType(DType::kMxfp4, DType::kMxfp4), DType::kMxfp4);
}

}  // namespace
}  // namespace expertflow

#include "common/units.h"

#include <gtest/gtest.h>

namespace expertflow {
namespace {

TEST(Units, ParsesBytes) {
  const std::pair<const char*, uint64_t> cases[] = {
      {"0", 0},
      {"512", 512},
      {"512B", 512},
      {"64KB", 64'000},
      {"64kb", 64'000},
      {"64KiB", 65'536},
      {"2g", uint64_t{2} << 30},
      {"1.5GiB", uint64_t{3} << 29},
      {" 10 MB ", 10'000'000},
      {"1TB", 1'000'000'000'000},
  };
  for (const auto& [text, expected] : cases) {
    const auto bytes = ParseBytes(text);
    ASSERT_TRUE(bytes.ok()) << text;
    EXPECT_EQ(*bytes, expected) << text;
  }
}

TEST(Units, RefusesWhatIsNotBytesAndNamesIt) {
  for (const char* text : {"", "MB", "-1", "1.2.3", "12XB", "1e3", "nan", "inf", "10000000TB",
                           "99999999999999999999", "1GBs", "0x10"}) {
    const auto bytes = ParseBytes(text);
    EXPECT_EQ(bytes.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(bytes.status().message().find("'" + std::string(text) + "'"), std::string::npos);
  }
}

TEST(Units, ParsesRatesAndDurations) {
  EXPECT_EQ(*ParseBytesPerSecond("12GB/s"), 12'000'000'000u);
  EXPECT_EQ(*ParseBytesPerSecond("1 GiB/s"), uint64_t{1} << 30);
  EXPECT_FALSE(ParseBytesPerSecond("12GB").ok());
  EXPECT_FALSE(ParseBytesPerSecond("/s").ok());
  EXPECT_EQ(*ParseDurationNs("500ns"), 500);
  EXPECT_EQ(*ParseDurationNs("10us"), 10'000);
  EXPECT_EQ(*ParseDurationNs("1.5ms"), 1'500'000);
  EXPECT_EQ(*ParseDurationNs("2s"), 2'000'000'000);
  for (const char* text : {"", "10", "-1s", "10 days", "99999999999s"}) {
    EXPECT_FALSE(ParseDurationNs(text).ok()) << text;
  }
}

TEST(Units, ParsesBudgets) {
  const auto share = ParseByteBudget("30%");
  ASSERT_TRUE(share.ok());
  EXPECT_TRUE(share->is_percent);
  EXPECT_EQ(share->Resolve(1000), 300u);
  const auto bytes = ParseByteBudget("2GB");
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(bytes->Resolve(1000), 2'000'000'000u);
  for (const char* text : {"101%", "-1%", "%", "x%", "many"}) {
    EXPECT_FALSE(ParseByteBudget(text).ok()) << text;
  }
}

TEST(Units, Formats) {
  EXPECT_EQ(FormatBytes(999), "999 B");
  EXPECT_EQ(FormatBytes(1000), "1.00 kB");
  EXPECT_EQ(FormatBytes(27'400'000), "27.4 MB");
  EXPECT_EQ(FormatBytes(999'999), "1.00 MB");
  EXPECT_EQ(FormatBytes(UINT64_MAX), "18.4 EB");
  EXPECT_EQ(FormatBytesPerSecond(12e9), "12.0 GB/s");
  EXPECT_EQ(FormatBytesPerSecond(0), "0 B/s");
  EXPECT_EQ(FormatDurationNs(512), "512 ns");
  EXPECT_EQ(FormatDurationNs(12'300), "12.3 us");
  EXPECT_EQ(FormatDurationNs(4'560'000), "4.56 ms");
  EXPECT_EQ(FormatDurationNs(1'230'000'000), "1.23 s");
}

}  // namespace
}  // namespace expertflow

// What every device's ops must compute (device/ops.h): each against double precision, and each row
// to the same bits whatever else is in the call. A backend joins by adding itself to the list at
// the end.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <tuple>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "tests/conformance/device_harness.h"

namespace expertflow {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

double Silu(double x) {
  return x / (1 + std::exp(-x));
}

class OpsConformance : public testing::TestWithParam<DeviceUnderTest> {
 protected:
  void SetUp() override {
    auto device = GetParam().create();
    if (!device.ok()) GTEST_SKIP() << device.status().ToString();
    device_ = std::move(device).value();
  }
  Ops& ops() { return device_->ops(); }
  template <typename T>
  DeviceArray<T> Upload(const std::vector<T>& values) {
    return DeviceArray<T>(*device_, values);
  }
  DeviceArray<float> Output(size_t size) {
    return DeviceArray<float>(*device_, std::vector<float>(size, NAN));
  }
  std::vector<float> RunLinear(const TestWeights& w, const TestWeights* bias, int32_t rows,
                               int32_t cols, const std::vector<float>& x);
  std::vector<float> RunMlp(const TestWeights (&w)[3], int32_t hidden, int32_t intermediate,
                            const std::vector<float>& x);

  std::unique_ptr<Device> device_;
};

// Whether `got` is within float32 summation error of `want`, where `scale` is the sum of the
// magnitudes that were added.
void ExpectClose(float got, double want, double scale) {
  EXPECT_NEAR(got, want, 2e-6 * scale + 1e-12);
}

std::vector<float> OpsConformance::RunLinear(const TestWeights& w, const TestWeights* bias,
                                             int32_t rows, int32_t cols,
                                             const std::vector<float>& x) {
  const auto m = static_cast<int32_t>(x.size() / static_cast<size_t>(cols));
  const auto weight = Upload(w.stored);
  const auto bias_array = Upload(bias == nullptr ? std::vector<uint8_t>(1) : bias->stored);
  const auto x_array = Upload(x);
  const auto out = Output(static_cast<size_t>(m) * static_cast<size_t>(rows));
  LinearJob job;
  job.weight = {weight.data(), w.dtype, rows, cols};
  if (bias != nullptr) job.bias = {bias_array.data(), bias->dtype, rows};
  job.x = x_array.data();
  job.out = out.data();
  ops().Linear({&job, 1}, m);
  return out.Read();
}

TEST_P(OpsConformance, LinearMatchesDoublePrecision) {
  constexpr std::tuple<int32_t, int32_t> kShapes[] = {{56, 26}, {26, 56}, {1, 14},    {44, 192},
                                                      {7, 1},   {17, 15}, {33, 2048}, {5, 1100}};
  uint32_t seed = 1;
  for (DType dtype : kDTypes) {
    for (const auto& [rows, cols] : kShapes) {
      const TestWeights w =
          RandomWeights(dtype, static_cast<size_t>(rows) * static_cast<size_t>(cols), ++seed);
      const TestWeights bias = RandomWeights(dtype, static_cast<size_t>(rows), ++seed);
      for (int32_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 21}) {
        const auto x = RandomFloats(static_cast<size_t>(m * cols), ++seed);
        const auto out = RunLinear(w, m % 2 == 0 ? &bias : nullptr, rows, cols, x);
        for (int32_t i = 0; i < m; ++i) {
          for (int32_t r = 0; r < rows; ++r) {
            double sum = m % 2 == 0 ? bias.values[static_cast<size_t>(r)] : 0;
            double scale = std::abs(sum);
            for (int32_t k = 0; k < cols; ++k) {
              const double term = double{x[static_cast<size_t>(i * cols + k)]} *
                                  double{w.values[static_cast<size_t>(r * cols + k)]};
              sum += term;
              scale += std::abs(term);
            }
            ExpectClose(out[static_cast<size_t>(i * rows + r)], sum, scale);
          }
        }
        ASSERT_FALSE(HasFailure())
            << DTypeName(dtype) << " rows " << rows << " cols " << cols << " m " << m;
      }
    }
  }
}

TEST_P(OpsConformance, FIELD_16_LinearRowHasTheSameBitsInEveryBatch) {
  for (DType dtype : kDTypes) {
    for (const auto& [rows, cols] : {std::pair{56, 26}, {44, 192}, {31, 2056}}) {
      const TestWeights w =
          RandomWeights(dtype, static_cast<size_t>(rows) * static_cast<size_t>(cols), 3);
      const auto x = RandomFloats(static_cast<size_t>(300 * cols), 4);
      const auto all = RunLinear(w, &w, rows, cols, x);
      const auto width = static_cast<size_t>(cols), out_width = static_cast<size_t>(rows);
      for (size_t m : {1, 2, 3, 5, 6, 7, 9, 64}) {
        const size_t first = 300 - m;  // other rows before it than in the full batch
        const std::vector<float> part(x.begin() + static_cast<ptrdiff_t>(first * width), x.end());
        const auto out = RunLinear(w, &w, rows, cols, part);
        const std::vector<float> want(all.begin() + static_cast<ptrdiff_t>(first * out_width),
                                      all.end());
        EXPECT_EQ(Bits(out), Bits(want)) << DTypeName(dtype) << " cols " << cols << " m " << m;
      }
    }
  }
}

TEST_P(OpsConformance, SeveralLinearJobsAreOneByOneTheSame) {
  constexpr int32_t kCols = 192;
  for (int32_t m : {1, 30}) {
    const auto x = RandomFloats(static_cast<size_t>(m * kCols), 1);
    const auto y = RandomFloats(static_cast<size_t>(m * kCols), 2);
    const int32_t rows[] = {192, 64, 44};
    std::vector<TestWeights> w;
    std::vector<DeviceArray<uint8_t>> weights;
    std::vector<DeviceArray<float>> outs;
    const auto x_array = Upload(x), y_array = Upload(y);
    std::vector<LinearJob> jobs(3);
    for (size_t j = 0; j < 3; ++j) {
      w.push_back(RandomWeights(DType::kBF16, static_cast<size_t>(rows[j] * kCols),
                                static_cast<uint32_t>(10 + j)));
      weights.push_back(Upload(w[j].stored));
      outs.push_back(Output(static_cast<size_t>(m * rows[j])));
      jobs[j].weight = {weights[j].data(), DType::kBF16, rows[j], kCols};
      jobs[j].x = j == 1 ? y_array.data() : x_array.data();
      jobs[j].out = outs[j].data();
    }
    ops().Linear(jobs, m);
    for (size_t j = 0; j < 3; ++j) {
      const auto alone = RunLinear(w[j], nullptr, rows[j], kCols, j == 1 ? y : x);
      EXPECT_EQ(Bits(outs[j].Read()), Bits(alone)) << "job " << j << " m " << m;
    }
  }
}

TEST_P(OpsConformance, EmbedRaisesTheRowsExactly) {
  for (DType dtype : kDTypes) {
    for (int32_t cols : {14, 16, 192}) {
      const TestWeights table = RandomWeights(dtype, static_cast<size_t>(50 * cols), 9);
      const auto data = Upload(table.stored);
      const std::vector<int32_t> ids = {49, 0, 7, 7};
      const auto out = Output(ids.size() * static_cast<size_t>(cols));
      ops().Embed({data.data(), dtype, 50, cols}, ids, out.data());
      std::vector<float> want;
      for (int32_t id : ids) {
        const auto begin = table.values.begin() + id * cols;
        want.insert(want.end(), begin, begin + cols);
      }
      EXPECT_EQ(out.Read(), want) << DTypeName(dtype) << " cols " << cols;
    }
  }
}

TEST_P(OpsConformance, EveryHalfPrecisionValueIsRaisedExactly) {
  std::vector<uint8_t> stored(2 * 65536);
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto half = static_cast<uint16_t>(i);
    std::memcpy(stored.data() + 2 * i, &half, 2);
  }
  const auto data = Upload(stored);
  const std::vector<int32_t> id = {0};
  const auto f16 = Output(65536), bf16 = Output(65536);
  ops().Embed({data.data(), DType::kF16, 1, 65536}, id, f16.data());
  ops().Embed({data.data(), DType::kBF16, 1, 65536}, id, bf16.data());
  const auto got_f16 = f16.Read(), got_bf16 = bf16.Read();
  for (uint32_t i = 0; i < 65536; ++i) {
    const uint32_t exponent = i >> 10 & 31, fraction = i & 1023;
    double want = exponent == 0 ? std::ldexp(fraction, -24)
                                : std::ldexp(1024 + fraction, static_cast<int>(exponent) - 25);
    if (exponent == 31) want = fraction == 0 ? HUGE_VAL : NAN;
    if ((i & 0x8000u) != 0) want = -want;
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got_f16[i])) << i;
    } else {
      ASSERT_EQ(FloatBits(got_f16[i]), FloatBits(static_cast<float>(want))) << i;
    }
    ASSERT_EQ(FloatBits(got_bf16[i]), i << 16) << i;
  }
}

TEST_P(OpsConformance, RmsNormMatchesDoublePrecisionAlsoInPlace) {
  constexpr float kEps = 1e-6f;
  for (DType dtype : kDTypes) {
    for (int32_t n : {1, 14, 26, 56, 192, 2048}) {
      const TestWeights w = RandomWeights(dtype, static_cast<size_t>(n), 5);
      const auto x = RandomFloats(static_cast<size_t>(3 * n), 6, 3.0f);
      const auto weight = Upload(w.stored);
      const auto in = Upload(x);
      const auto out = Output(x.size());
      ops().RmsNorm(in.data(), {weight.data(), dtype, n}, kEps, 3, out.data());
      ops().RmsNorm(in.data(), {weight.data(), dtype, n}, kEps, 3, in.data());
      const auto got = out.Read();
      EXPECT_EQ(Bits(in.Read()), Bits(got));
      for (size_t row = 0; row < 3; ++row) {
        const size_t at = row * static_cast<size_t>(n);
        double squares = 0;
        for (int32_t i = 0; i < n; ++i) {
          squares += double{x[at + static_cast<size_t>(i)]} * x[at + static_cast<size_t>(i)];
        }
        for (int32_t i = 0; i < n; ++i) {
          const auto k = static_cast<size_t>(i);
          const double want =
              x[at + k] / std::sqrt(squares / n + double{kEps}) * double{w.values[k]};
          EXPECT_NEAR(got[at + k], want, 1e-6 * std::abs(want) + 1e-12);
        }
      }
    }
  }
}

TEST_P(OpsConformance, RopeRotatesPairsAndLeavesTheRest) {
  for (const auto& [head_dim, rotary] : {std::pair{14, 14}, {64, 64}, {44, 26}, {128, 128}}) {
    constexpr int32_t kHeads = 3, kPositions = 40;
    const auto width = static_cast<size_t>(rotary), half = width / 2;
    std::vector<float> table(kPositions * width);
    for (size_t p = 0; p < kPositions; ++p) {
      for (size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(p) * std::pow(1e4, -2.0 * double(i) / rotary);
        table[p * width + i] = static_cast<float>(std::cos(angle));
        table[p * width + half + i] = static_cast<float>(std::sin(angle));
      }
    }
    const std::vector<AttentionRow> rows = {{nullptr, 0}, {nullptr, 39}, {nullptr, 5}};
    const auto x = RandomFloats(rows.size() * kHeads * static_cast<size_t>(head_dim), 8);
    const auto cos_sin = Upload(table);
    for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kNeighbours}) {
      const auto array = Upload(x);
      ops().Rope(array.data(), kHeads, head_dim, rotary, pairs, rows, cos_sin.data());
      const auto got = array.Read();
      for (size_t row = 0; row < rows.size() * kHeads; ++row) {
        const float* cos = table.data() + static_cast<size_t>(rows[row / kHeads].position) * width;
        const float* sin = cos + half;
        const size_t at = row * static_cast<size_t>(head_dim);
        for (size_t i = 0; i < half; ++i) {
          const bool halves = pairs == RopePairs::kHalves;
          const size_t a = at + (halves ? i : 2 * i);
          const size_t b = halves ? a + half : a + 1;
          EXPECT_NEAR(got[a], double{x[a]} * cos[i] - double{x[b]} * sin[i], 1e-6);
          EXPECT_NEAR(got[b], double{x[b]} * cos[i] + double{x[a]} * sin[i], 1e-6);
        }
        for (size_t i = width; i < static_cast<size_t>(head_dim); ++i) {
          EXPECT_EQ(got[at + i], x[at + i]);
        }
      }
    }
  }
}

TEST_P(OpsConformance, TransposedProductsMatchDoublePrecisionWithinWiderRows) {
  constexpr int32_t kGap = 5;
  for (DType dtype : kDTypes) {
    for (const auto& [rows, cols] : {std::pair{10, 20}, {128, 512}, {7, 1}, {33, 100}}) {
      const auto r = static_cast<size_t>(rows), c = static_cast<size_t>(cols);
      const TestWeights w = RandomWeights(dtype, r * c, 1);
      const auto x = RandomFloats(9 * (r + kGap), 2);
      const auto weight = Upload(w.stored);
      const auto in = Upload(x);
      const auto run = [&, rows = rows, cols = cols](size_t first, int32_t m) {
        const auto out = Output(static_cast<size_t>(m) * (c + kGap));
        const LinearJob job{{weight.data(), dtype, rows, cols},
                            {},
                            in.data() + first * (r + kGap),
                            out.data(),
                            rows + kGap,
                            cols + kGap};
        ops().LinearTransposed({&job, 1}, m);
        return out.Read();
      };
      const auto got = run(0, 9);
      for (size_t i = 0; i < 9; ++i) {
        const auto alone = run(i, 1);
        for (size_t k = 0; k < c; ++k) {
          ASSERT_EQ(FloatBits(alone[k]), FloatBits(got[i * (c + kGap) + k]));
          double want = 0, scale = 0;
          for (size_t j = 0; j < r; ++j) {
            const double term = double{x[i * (r + kGap) + j]} * double{w.values[j * c + k]};
            want += term;
            scale += std::abs(term);
          }
          ExpectClose(got[i * (c + kGap) + k], want, scale);
        }
        for (size_t k = 0; k < kGap; ++k) EXPECT_TRUE(std::isnan(got[i * (c + kGap) + c + k]));
      }
      ASSERT_FALSE(HasFailure()) << DTypeName(dtype) << " rows " << rows << " cols " << cols;
    }
  }
}

TEST_P(OpsConformance, LinearJobsReadAndWriteWithinWiderRows) {
  constexpr int32_t kRows = 12, kCols = 40;
  const TestWeights w = RandomWeights(DType::kBF16, kRows * kCols, 1);
  const auto weight = Upload(w.stored);
  for (int32_t m : {1, 20}) {
    const auto wide = RandomFloats(static_cast<size_t>(m * 3 * kCols), 2);
    const auto in = Upload(wide);
    const auto out = Output(static_cast<size_t>(m * 2 * kRows));
    const WeightMatrix matrix{weight.data(), DType::kBF16, kRows, kCols};
    const LinearJob jobs[] = {
        {matrix, {}, in.data() + kCols, out.data() + kRows, 3 * kCols, 2 * kRows},
        {matrix, {}, in.data(), out.data(), 3 * kCols, 2 * kRows}};
    ops().Linear(jobs, m);
    const auto got = out.Read();
    for (size_t part : {0, 1}) {
      std::vector<float> x, part_of_got;
      for (size_t i = 0; i < static_cast<size_t>(m); ++i) {
        const float* row = wide.data() + i * 3 * kCols + part * kCols;
        x.insert(x.end(), row, row + kCols);
        const float* result = got.data() + i * 2 * kRows + part * kRows;
        part_of_got.insert(part_of_got.end(), result, result + kRows);
      }
      EXPECT_EQ(Bits(part_of_got), Bits(RunLinear(w, nullptr, kRows, kCols, x))) << m;
    }
  }
}

// Two sequences of one layer in shuffled KV blocks.
struct KvCase {
  int32_t heads, kv_heads, head_dim, block_tokens, tokens;
};

TEST_P(OpsConformance, AttentionMatchesDoublePrecisionAndDoesNotSeeBlocksOrBatch) {
  for (const KvCase& c : {KvCase{6, 2, 32, 16, 70}, KvCase{4, 4, 14, 8, 33},
                          KvCase{8, 1, 128, 32, 100}, KvCase{2, 2, 44, 1, 9}}) {
    const auto token = static_cast<size_t>(c.kv_heads * c.head_dim);
    const auto q_row = static_cast<size_t>(c.heads * c.head_dim);
    const auto tokens = static_cast<size_t>(c.tokens);
    const auto keys = RandomFloats(tokens * token, 1), values = RandomFloats(tokens * token, 2);
    const auto q = RandomFloats(tokens * q_row, 3);
    const float scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));

    const auto run = [&](int32_t block_tokens, size_t batch) {
      const int32_t blocks = (c.tokens + block_tokens - 1) / block_tokens;
      std::vector<int32_t> table(static_cast<size_t>(blocks));
      std::iota(table.begin(), table.end(), 0);
      std::reverse(table.begin(), table.end());
      const size_t stride = static_cast<size_t>(block_tokens) * token + 24;
      const auto key_blocks = Output(static_cast<size_t>(blocks) * stride);
      const auto value_blocks = Output(static_cast<size_t>(blocks) * stride);
      const KvLayer kv{
          key_blocks.data(), value_blocks.data(), static_cast<int64_t>(stride * sizeof(float)),
          block_tokens,      c.kv_heads,          c.head_dim};
      std::vector<AttentionRow> rows;
      for (int32_t t = 0; t < c.tokens; ++t) rows.push_back({table.data(), t});
      const auto key_array = Upload(keys), value_array = Upload(values), q_array = Upload(q);
      const auto out = Output(tokens * q_row);
      ops().StoreKv(kv, key_array.data(), value_array.data(), rows);
      for (size_t first = 0; first < tokens; first += batch) {
        const size_t count = std::min(batch, tokens - first);
        ops().Attention({c.heads, scale}, kv, q_array.data() + first * q_row,
                        std::span(rows).subspan(first, count), out.data() + first * q_row);
      }
      return out.Read();
    };

    const auto got = run(c.block_tokens, tokens);
    EXPECT_EQ(Bits(run(c.block_tokens, 1)), Bits(got));
    EXPECT_EQ(Bits(run(c.block_tokens + 3, 7)), Bits(got));
    for (size_t t = 0; t < tokens; ++t) {
      for (size_t h = 0; h < static_cast<size_t>(c.heads); ++h) {
        const size_t dim = static_cast<size_t>(c.head_dim);
        const size_t kv_at = h / static_cast<size_t>(c.heads / c.kv_heads) * dim;
        std::vector<double> p(t + 1);
        double sum = 0;
        for (size_t s = 0; s <= t; ++s) {
          double dot = 0;
          for (size_t i = 0; i < dim; ++i) {
            dot += double{q[t * q_row + h * dim + i]} * keys[s * token + kv_at + i];
          }
          p[s] = std::exp(dot * double{scale});
          sum += p[s];
        }
        for (size_t i = 0; i < dim; ++i) {
          double want = 0;
          for (size_t s = 0; s <= t; ++s) want += p[s] / sum * values[s * token + kv_at + i];
          EXPECT_NEAR(got[t * q_row + h * dim + i], want, 4e-6);
        }
      }
      ASSERT_FALSE(HasFailure()) << "head_dim " << c.head_dim << " position " << t;
    }
  }
}

// What a KV cache of `dtype` keeps of a key or value, as device/ops.h says.
std::vector<float> KeptBy(DType dtype, std::vector<float> head) {
  for (size_t begin = 0; begin < head.size(); begin += kQuantisedGroup) {
    const auto group =
        std::span(head).subspan(begin, std::min<size_t>(kQuantisedGroup, head.size() - begin));
    float largest = 0;
    for (const float value : group) largest = std::max(largest, std::fabs(value));
    for (float& value : group) {
      if (dtype == DType::kBF16) {
        const uint64_t bits = std::bit_cast<uint32_t>(value);
        const uint64_t below = bits & 0xffffu, kept = bits - below;
        const bool up = below > 0x8000u || (below == 0x8000u && (kept & 0x10000u) != 0);
        value = std::bit_cast<float>(static_cast<uint32_t>(kept + (up ? 0x10000u : 0)));
      } else if (dtype == DType::kInt8 && largest > 0) {
        const float scale = largest / 127;
        value = std::nearbyint(value / scale) * scale;
      }
    }
  }
  return head;
}

// A smaller KV cache computes with exactly the numbers that it keeps, and those are the nearest.
TEST_P(OpsConformance, ASmallerKvCacheIsThatOfTheRoundedNumbers) {
  struct Case {
    int32_t heads, kv_heads, head_dim, shared_dim;
  };
  constexpr int32_t kTokens = 37, kBlockTokens = 8, kBlocks = 5;
  const std::vector<int32_t> table = {3, 0, 4, 1, 2};
  std::vector<AttentionRow> rows;
  for (int32_t t = 0; t < kTokens; ++t) rows.push_back({table.data(), t});
  for (const Case& c : {Case{6, 2, 64, 0}, Case{2, 2, 44, 0}, Case{3, 1, 96, 64},
                        Case{4, 2, 22, 14}, Case{2, 1, 144, 128}}) {
    const auto shared = static_cast<size_t>(c.shared_dim), dim = static_cast<size_t>(c.head_dim);
    const size_t value_dim = shared > 0 ? shared : dim, own_dim = dim - shared;
    const auto kv_heads = static_cast<size_t>(c.kv_heads);
    auto keys = RandomFloats(kTokens * kv_heads * own_dim, 1);
    auto values = RandomFloats(kTokens * kv_heads * value_dim, 2);
    std::fill_n(values.begin() + static_cast<ptrdiff_t>(value_dim), value_dim, 0.0f);
    values[5] = 0x1.01p0f;  // halfway between two of bfloat16
    values[6] = 0x1.03p0f;
    const auto q = Upload(RandomFloats(kTokens * static_cast<size_t>(c.heads) * dim, 3));
    const auto run = [&](DType dtype, const std::vector<float>& k, const std::vector<float>& v) {
      KvLayer kv{.kv_heads = c.kv_heads,
                 .head_dim = c.head_dim,
                 .shared_dim = c.shared_dim,
                 .dtype = dtype};
      kv.block_tokens = kBlockTokens;
      kv.block_stride = kBlockTokens * kv.token_bytes() + 12;
      const auto floats = static_cast<size_t>(kBlocks * kv.block_stride) / sizeof(float);
      const auto key_blocks = Output(floats), value_blocks = Output(floats);
      kv.keys = key_blocks.data();
      if (shared == 0) kv.values = value_blocks.data();
      const auto k_array = Upload(k), v_array = Upload(v);
      ops().StoreKv(kv, k_array.data(), v_array.data(), rows);
      const auto out = Output(kTokens * static_cast<size_t>(c.heads) * value_dim);
      ops().Attention({c.heads, 0.2f}, kv, q.data(), rows, out.data());
      return out.Read();
    };
    for (const DType dtype : {DType::kBF16, DType::kInt8}) {
      // Head by head as it is kept: the latent vector and the rest of a key are one.
      auto kept_keys = keys, kept_values = values;
      for (size_t head = 0; head < kTokens * kv_heads; ++head) {
        float* key = kept_keys.data() + head * own_dim;
        float* value = kept_values.data() + head * value_dim;
        std::vector<float> first(value, value + value_dim);
        if (shared > 0) first.insert(first.end(), key, key + own_dim);
        first = KeptBy(dtype, first);
        std::copy_n(first.begin(), value_dim, value);
        const auto second =
            shared > 0 ? std::vector(first.begin() + static_cast<ptrdiff_t>(shared), first.end())
                       : KeptBy(dtype, std::vector(key, key + own_dim));
        std::copy(second.begin(), second.end(), key);
      }
      const auto got = run(dtype, keys, values);
      EXPECT_EQ(Bits(got), Bits(run(DType::kF32, kept_keys, kept_values)))
          << DTypeName(dtype) << " " << c.head_dim;
      EXPECT_NE(Bits(got), Bits(run(DType::kF32, keys, values)));
    }
  }
}

// A fault shows: what is not finite is no number in a smaller KV cache either.
TEST_P(OpsConformance, ASmallerKvCacheKeepsWhatIsNotFinite) {
  constexpr int32_t kDim = 40;
  const std::vector<int32_t> table = {0};
  const AttentionRow row{table.data(), 0};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kInt8}) {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      auto values = RandomFloats(kDim, 1);
      values[35] = bad;
      const auto keys = Upload(RandomFloats(kDim, 2)), array = Upload(values);
      KvLayer kv{.block_tokens = 1, .kv_heads = 1, .head_dim = kDim, .dtype = dtype};
      kv.block_stride = kv.token_bytes();
      const auto key_block = Output(kDim), value_block = Output(kDim), out = Output(kDim);
      kv.keys = key_block.data();
      kv.values = value_block.data();
      ops().StoreKv(kv, keys.data(), array.data(), {&row, 1});
      ops().Attention({1, 0.1f}, kv, keys.data(), {&row, 1}, out.data());
      EXPECT_FALSE(std::isfinite(out.Read()[35])) << DTypeName(dtype) << " " << bad;
      EXPECT_TRUE(std::isfinite(out.Read()[3])) << DTypeName(dtype) << " " << bad;
    }
  }
}

// Windows, sinks, and keys that begin with their value.
TEST_P(OpsConformance, AttentionWindowsSinksAndSharedValues) {
  constexpr int32_t kHeads = 4, kKvHeads = 2, kDim = 22, kTokens = 40;
  constexpr float kScale = 0.2f;
  const auto q = RandomFloats(kTokens * kHeads * kDim, 1);
  const auto sinks = RandomWeights(DType::kBF16, kHeads, 2);
  const auto sink_array = Upload(sinks.stored);
  for (const int32_t shared_dim : {0, 14}) {
    const int32_t value_dim = shared_dim == 0 ? kDim : shared_dim;
    const auto value_width = static_cast<size_t>(kKvHeads * value_dim);
    const int32_t own_dim = shared_dim == 0 ? kDim : kDim - shared_dim;
    const auto own_width = static_cast<size_t>(kKvHeads * own_dim);
    const auto keys = RandomFloats(kTokens * own_width, 3);
    const auto values = RandomFloats(kTokens * value_width, 4);
    for (const int32_t window : {0, 1, 7, kTokens}) {
      for (const bool with_sinks : {false, true}) {
        const auto run = [&](int32_t block_tokens, size_t batch) {
          const int32_t blocks = (kTokens + block_tokens - 1) / block_tokens;
          std::vector<int32_t> table(static_cast<size_t>(blocks));
          std::iota(table.begin(), table.end(), 0);
          std::reverse(table.begin(), table.end());
          const int64_t stride = int64_t{block_tokens} * kKvHeads * kDim;
          const auto key_blocks = Output(static_cast<size_t>(blocks * stride));
          const auto value_blocks = Output(static_cast<size_t>(blocks * stride));
          const KvLayer kv{key_blocks.data(),
                           shared_dim == 0 ? value_blocks.data() : nullptr,
                           stride * static_cast<int64_t>(sizeof(float)),
                           block_tokens,
                           kKvHeads,
                           kDim,
                           shared_dim};
          std::vector<AttentionRow> rows;
          for (int32_t t = 0; t < kTokens; ++t) rows.push_back({table.data(), t});
          const auto key_array = Upload(keys), value_array = Upload(values), q_array = Upload(q);
          const auto out = Output(static_cast<size_t>(kTokens * kHeads * value_dim));
          ops().StoreKv(kv, key_array.data(), value_array.data(), rows);
          AttentionShape shape{kHeads, kScale, window, {}};
          if (with_sinks) shape.sinks = {sink_array.data(), DType::kBF16, kHeads};
          for (size_t first = 0; first < kTokens; first += batch) {
            const size_t count = std::min<size_t>(batch, kTokens - first);
            ops().Attention(shape, kv, q_array.data() + first * kHeads * kDim,
                            std::span(rows).subspan(first, count),
                            out.data() + first * static_cast<size_t>(kHeads * value_dim));
          }
          return out.Read();
        };
        const auto got = run(16, kTokens);
        EXPECT_EQ(Bits(run(5, 1)), Bits(got));
        EXPECT_EQ(Bits(run(16, 3)), Bits(got));
        // Element i of the key of position s for key/value head h.
        const auto key_at = [&](size_t s, size_t h, size_t i) -> double {
          const auto shared = static_cast<size_t>(shared_dim), own = static_cast<size_t>(own_dim);
          return i < shared ? values[s * value_width + h * shared + i]
                            : keys[s * own_width + h * own + i - shared];
        };
        for (size_t t = 0; t < kTokens; ++t) {
          const size_t from =
              window > 0 && t + 1 > static_cast<size_t>(window) ? t + 1 - window : 0;
          for (size_t h = 0; h < kHeads; ++h) {
            std::vector<double> p;
            double sum = with_sinks ? std::exp(double{sinks.values[h]}) : 0;
            for (size_t s = from; s <= t; ++s) {
              double dot = 0;
              for (size_t i = 0; i < kDim; ++i) {
                dot += q[(t * kHeads + h) * kDim + i] * key_at(s, h / 2, i);
              }
              p.push_back(std::exp(dot * double{kScale}));
              sum += p.back();
            }
            for (size_t i = 0; i < static_cast<size_t>(value_dim); ++i) {
              double want = 0;
              for (size_t s = from; s <= t; ++s) {
                const size_t at = s * value_width + h / 2 * static_cast<size_t>(value_dim) + i;
                want += p[s - from] / sum * values[at];
              }
              const size_t at = (t * kHeads + h) * static_cast<size_t>(value_dim) + i;
              EXPECT_NEAR(got[at], want, 4e-6);
            }
          }
          ASSERT_FALSE(HasFailure()) << "window " << window << " sinks " << with_sinks << " shared "
                                     << shared_dim << " position " << t;
        }
      }
    }
  }
}

TEST_P(OpsConformance, RouterTakesTheLargestAndTiesGoToTheLowerId) {
  constexpr int32_t kExperts = 60, kTopK = 4;
  auto logits = RandomFloats(3 * kExperts, 4);
  std::fill(logits.begin() + kExperts, logits.begin() + 2 * kExperts, 0.5f);
  logits[kExperts + 33] = 2.0f;
  for (bool normalise : {false, true}) {
    const auto array = Upload(logits);
    const auto weights = Output(3 * kTopK);
    const DeviceArray<int32_t> ids(*device_, std::vector<int32_t>(3 * kTopK, -1));
    ops().RouteTopK(array.data(), 3, {.experts = kExperts, .top_k = kTopK, .normalise = normalise},
                    ids.data(), weights.data());
    const auto got_ids = ids.Read();
    const auto got = weights.Read();
    for (size_t row = 0; row < 3; ++row) {
      const float* l = logits.data() + row * kExperts;
      std::vector<int32_t> order(kExperts);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [l](int a, int b) { return l[a] > l[b]; });
      double sum = 0, top = 0;
      for (int32_t e = 0; e < kExperts; ++e) sum += std::exp(double{l[e]});
      for (size_t s = 0; s < kTopK; ++s) top += std::exp(double{l[order[s]]}) / sum;
      for (size_t s = 0; s < kTopK; ++s) {
        EXPECT_EQ(got_ids[row * kTopK + s], order[s]);
        const double want = std::exp(double{l[order[s]]}) / sum / (normalise ? top : 1);
        EXPECT_NEAR(got[row * kTopK + s], want, 1e-6 * want);
      }
    }
  }
}

// Against a plain one in double precision: every kind of scores, groups, a correction that chooses
// but does not weigh, normalising and scaling.
TEST_P(OpsConformance, RoutersOfEveryShape) {
  constexpr int32_t kExperts = 12, kTopK = 4, kRows = 40;
  using Scores = RouterShape::Scores;
  using GroupScore = RouterShape::GroupScore;
  const auto logits = RandomFloats(kRows * kExperts, 1, 2.0f);
  const auto bias = RandomFloats(kExperts, 2, 0.3f);
  const auto array = Upload(logits), bias_array = Upload(bias);
  int checked = 0;
  for (const Scores scores : {Scores::kSoftmax, Scores::kSoftmaxOfChosen, Scores::kSigmoid}) {
    for (const int32_t groups : {1, 4}) {
      for (const GroupScore kind : {GroupScore::kLargest, GroupScore::kSumOfTwo}) {
        for (const bool corrected : {false, true}) {
          for (const bool normalise : {false, true}) {
            RouterShape router{.experts = kExperts, .top_k = kTopK, .scores = scores};
            router.normalise = normalise;
            router.scale = normalise ? 2.5f : 1.0f;
            router.groups = groups;
            router.groups_kept = groups == 1 ? 1 : 2;
            router.group_score = kind;
            if (corrected) router.correction = {bias_array.data(), DType::kF32, kExperts};
            const DeviceArray<int32_t> ids(*device_, std::vector<int32_t>(kRows * kTopK, -1));
            const auto weights = Output(kRows * kTopK);
            ops().RouteTopK(array.data(), kRows, router, ids.data(), weights.data());
            const auto got_ids = ids.Read();
            const auto got = weights.Read();
            for (size_t row = 0; row < kRows; ++row) {
              const float* l = logits.data() + row * kExperts;
              std::vector<double> p(l, l + kExperts), choice;
              double all = 0;
              for (const double x : p) all += std::exp(x);
              for (double& x : p) {
                if (scores == Scores::kSoftmax) x = std::exp(x) / all;
                if (scores == Scores::kSigmoid) x = 1 / (1 + std::exp(-x));
              }
              for (size_t e = 0; e < kExperts; ++e) {
                choice.push_back(p[e] + (corrected ? bias[e] : 0.0f));
              }
              std::vector<std::pair<double, size_t>> order;  // of groups
              const size_t size = kExperts / static_cast<size_t>(groups);
              for (size_t g = 0; g < static_cast<size_t>(groups); ++g) {
                std::vector<double> members(
                    choice.begin() + static_cast<ptrdiff_t>(g * size),
                    choice.begin() + static_cast<ptrdiff_t>((g + 1) * size));
                std::sort(members.rbegin(), members.rend());
                order.emplace_back(
                    -(kind == GroupScore::kLargest ? members[0] : members[0] + members[1]), g);
              }
              std::sort(order.begin(), order.end());
              std::vector<int32_t> allowed;
              for (size_t g = 0; g < static_cast<size_t>(router.groups_kept); ++g) {
                for (size_t i = 0; i < size; ++i) {
                  allowed.push_back(static_cast<int32_t>(order[g].second * size + i));
                }
              }
              const auto by = [](const std::vector<double>& value) {
                return [&value](int32_t a, int32_t b) {
                  return value[static_cast<size_t>(a)] > value[static_cast<size_t>(b)];
                };
              };
              std::sort(allowed.begin(), allowed.end(), by(choice));
              allowed.resize(kTopK);
              std::sort(allowed.begin(), allowed.end(), by(p));
              double sum = 0;
              std::vector<double> want;
              for (const int32_t e : allowed) want.push_back(p[static_cast<size_t>(e)]);
              if (scores == Scores::kSoftmaxOfChosen) {
                double chosen = 0;
                for (const double x : want) chosen += std::exp(x);
                for (double& x : want) x = std::exp(x) / chosen;
              }
              for (const double x : want) sum += x;
              for (size_t s = 0; s < kTopK; ++s) {
                EXPECT_EQ(got_ids[row * kTopK + s], allowed[s]);
                const double weight = normalise ? want[s] / sum * 2.5 : want[s];
                EXPECT_NEAR(got[row * kTopK + s], weight, 2e-6);
                ++checked;
              }
            }
            ASSERT_FALSE(HasFailure())
                << "scores " << static_cast<int>(scores) << " groups " << groups << " corrected "
                << corrected << " normalise " << normalise;
          }
        }
      }
    }
  }
  EXPECT_EQ(checked, 48 * kRows * kTopK);
}

std::vector<float> OpsConformance::RunMlp(const TestWeights (&w)[3], int32_t hidden,
                                          int32_t intermediate, const std::vector<float>& x) {
  const auto m = static_cast<int32_t>(x.size() / static_cast<size_t>(hidden));
  const auto gate = Upload(w[0].stored), up = Upload(w[1].stored), down = Upload(w[2].stored);
  const auto in = Upload(x);
  const auto out = Output(x.size());
  const DType dtype = w[0].dtype;
  ops().Mlp({{gate.data(), dtype, intermediate, hidden},
             {up.data(), dtype, intermediate, hidden},
             {down.data(), dtype, hidden, intermediate}},
            in.data(), m, out.data());
  return out.Read();
}

TEST_P(OpsConformance, MlpMatchesDoublePrecisionAndDoesNotSeeTheBatch) {
  for (DType dtype : kDTypes) {
    for (const auto& [hidden, intermediate] : {std::pair{56, 26}, {192, 32}, {44, 130}}) {
      const auto h = static_cast<size_t>(hidden), n = static_cast<size_t>(intermediate);
      const TestWeights w[3] = {RandomWeights(dtype, n * h, 1), RandomWeights(dtype, n * h, 2),
                                RandomWeights(dtype, n * h, 3)};
      const auto x = RandomFloats(40 * h, 5, 0.3f);
      const auto got = RunMlp(w, hidden, intermediate, x);
      for (size_t m : {1, 3, 8, 11}) {
        const std::vector<float> part(x.end() - static_cast<ptrdiff_t>(m * h), x.end());
        const std::vector<float> want(got.end() - static_cast<ptrdiff_t>(m * h), got.end());
        EXPECT_EQ(Bits(RunMlp(w, hidden, intermediate, part)), Bits(want)) << m;
      }
      for (size_t row = 0; row < 40; ++row) {
        std::vector<double> a(n);
        for (size_t i = 0; i < n; ++i) {
          double gate = 0, up = 0;
          for (size_t k = 0; k < h; ++k) {
            gate += double{x[row * h + k]} * w[0].values[i * h + k];
            up += double{x[row * h + k]} * w[1].values[i * h + k];
          }
          a[i] = Silu(gate) * up;
        }
        for (size_t r = 0; r < h; ++r) {
          double want = 0, scale = 0;
          for (size_t i = 0; i < n; ++i) {
            want += a[i] * w[2].values[r * n + i];
            scale += std::abs(a[i] * w[2].values[r * n + i]);
          }
          ExpectClose(got[row * h + r], want, 4 * scale);
        }
      }
      ASSERT_FALSE(HasFailure()) << DTypeName(dtype) << " hidden " << hidden;
    }
  }
}

TEST_P(OpsConformance, MlpsWithBiasesAndTheClampedActivation) {
  constexpr size_t kHidden = 44, kWide = 26;
  constexpr float kAlpha = 1.702f, kLimit = 1.5f;
  TestWeights w[3], b[3];
  for (uint32_t i = 0; i < 3; ++i) {
    w[i] = RandomWeights(DType::kBF16, kHidden * kWide, i);
    b[i] = RandomWeights(DType::kBF16, i == 2 ? kHidden : kWide, 10 + i);
  }
  const auto gate = Upload(w[0].stored), up = Upload(w[1].stored), down = Upload(w[2].stored);
  const auto gate_bias = Upload(b[0].stored), up_bias = Upload(b[1].stored);
  const auto down_bias = Upload(b[2].stored);
  const auto x = RandomFloats(12 * kHidden, 5);
  const auto in = Upload(x);
  for (const bool clamped : {false, true}) {
    MlpWeights mlp{{gate.data(), DType::kBF16, kWide, kHidden},
                   {up.data(), DType::kBF16, kWide, kHidden},
                   {down.data(), DType::kBF16, kHidden, kWide},
                   {gate_bias.data(), DType::kBF16, kWide},
                   {up_bias.data(), DType::kBF16, kWide},
                   {down_bias.data(), DType::kBF16, kHidden},
                   {}};
    if (clamped) mlp.activation = {Activation::Kind::kClampedSwiglu, kAlpha, kLimit};
    const auto out = Output(x.size());
    ops().Mlp(mlp, in.data(), 12, out.data());
    const auto got = out.Read();
    for (size_t row = 0; row < 12; ++row) {
      std::vector<double> a(kWide);
      for (size_t i = 0; i < kWide; ++i) {
        double g = b[0].values[i], u = b[1].values[i];
        for (size_t k = 0; k < kHidden; ++k) {
          g += double{x[row * kHidden + k]} * w[0].values[i * kHidden + k];
          u += double{x[row * kHidden + k]} * w[1].values[i * kHidden + k];
        }
        if (clamped) {
          g = std::min(g, double{kLimit});
          u = std::clamp(u, -double{kLimit}, double{kLimit});
          a[i] = g / (1 + std::exp(-double{kAlpha} * g)) * (u + 1);
        } else {
          a[i] = Silu(g) * u;
        }
      }
      for (size_t r = 0; r < kHidden; ++r) {
        double want = b[2].values[r], scale = std::abs(want);
        for (size_t i = 0; i < kWide; ++i) {
          want += a[i] * w[2].values[r * kWide + i];
          scale += std::abs(a[i] * w[2].values[r * kWide + i]);
        }
        ExpectClose(got[row * kHidden + r], want, 4 * scale);
      }
    }
    ASSERT_FALSE(HasFailure()) << clamped;
  }
}

TEST_P(OpsConformance, ExpertRowsGoWhereTheyShouldWithTheBitsOfTheirMlpAlone) {
  constexpr int32_t kHidden = 56, kIntermediate = 26, kTokens = 700, kTopK = 2;
  constexpr size_t kExperts = 3;
  std::vector<std::vector<DeviceArray<uint8_t>>> arrays(kExperts);
  std::vector<std::vector<TestWeights>> weights(kExperts);
  std::vector<ExpertJob> jobs(kExperts);
  for (size_t e = 0; e < kExperts; ++e) {
    for (uint32_t part = 0; part < 3; ++part) {
      weights[e].push_back(RandomWeights(DType::kBF16, kHidden * kIntermediate,
                                         static_cast<uint32_t>(10 * e) + part));
      arrays[e].push_back(Upload(weights[e][part].stored));
    }
    jobs[e].weights = {{arrays[e][0].data(), DType::kBF16, kIntermediate, kHidden},
                       {arrays[e][1].data(), DType::kBF16, kIntermediate, kHidden},
                       {arrays[e][2].data(), DType::kBF16, kHidden, kIntermediate}};
  }
  // Expert 0 gets most rows, 1 and 2 a few: both paths run in one call.
  std::vector<std::vector<ExpertRow>> rows(kExperts);
  for (int32_t t = 0; t < kTokens; ++t) {
    rows[0].push_back({t, t * kTopK});
    rows[t % 100 == 0 ? 2 : (t % 230 == 0 ? 1 : 0)].push_back({t, t * kTopK + 1});
  }
  for (size_t e = 0; e < kExperts; ++e) jobs[e].rows = rows[e];
  const auto x = RandomFloats(kTokens * kHidden, 99, 0.3f);
  const auto in = Upload(x);
  const auto out = Output(kTokens * kTopK * kHidden);
  ops().ExpertMlp(jobs, in.data(), out.data());
  const auto got = out.Read();
  for (size_t e = 0; e < kExperts; ++e) {
    const TestWeights w[3] = {weights[e][0], weights[e][1], weights[e][2]};
    const auto all = RunMlp(w, kHidden, kIntermediate, x);
    for (const ExpertRow& row : rows[e]) {
      const std::vector<float> want(all.begin() + row.in_row * kHidden,
                                    all.begin() + (row.in_row + 1) * kHidden);
      const std::vector<float> at(got.begin() + row.out_row * kHidden,
                                  got.begin() + (row.out_row + 1) * kHidden);
      ASSERT_EQ(Bits(at), Bits(want)) << "expert " << e << " token " << row.in_row;
    }
  }
}

TEST_P(OpsConformance, CombineAddsSlotsInOrderAndTheSharedExpert) {
  constexpr int32_t kRows = 5, kTopK = 4;
  for (int32_t hidden : {14, 56, 192}) {
    const auto h = static_cast<size_t>(hidden);
    const auto expert_out = RandomFloats(kRows * kTopK * h, 1), w = RandomFloats(kRows * kTopK, 2);
    const auto shared = RandomFloats(kRows * h, 3), gate = RandomFloats(kRows, 4, 4.0f);
    const auto residual = RandomFloats(kRows * h, 5);
    for (int variant = 0; variant < 3; ++variant) {  // no shared expert, ungated, gated
      const auto e = Upload(expert_out), weights = Upload(w), s = Upload(shared);
      const auto g = Upload(gate), r = Upload(residual);
      ops().CombineExperts(e.data(), weights.data(), kRows, kTopK, hidden,
                           variant > 0 ? s.data() : nullptr, variant > 1 ? g.data() : nullptr,
                           r.data());
      const auto got = r.Read();
      for (size_t t = 0; t < kRows; ++t) {
        for (size_t i = 0; i < h; ++i) {
          double want = residual[t * h + i], scale = std::abs(want);
          for (size_t slot = 0; slot < kTopK; ++slot) {
            const double term =
                double{w[t * kTopK + slot]} * expert_out[(t * kTopK + slot) * h + i];
            want += term;
            scale += std::abs(term);
          }
          double factor = variant > 0 ? 1 : 0;
          if (variant > 1) factor = 1 / (1 + std::exp(-double{gate[t]}));
          want += factor * shared[t * h + i];
          ExpectClose(got[t * h + i], want, scale + std::abs(shared[t * h + i]));
        }
      }
    }
  }
}

TEST_P(OpsConformance, AddAddsEveryElement) {
  for (size_t n : {1, 15, 16, 100'003}) {
    const auto x = RandomFloats(n, 1), y = RandomFloats(n, 2);
    const auto x_array = Upload(x), y_array = Upload(y);
    ops().Add(x_array.data(), y_array.data(), static_cast<int64_t>(n));
    const auto got = x_array.Read();
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(got[i], x[i] + y[i]) << i;
  }
}

TEST_P(OpsConformance, ScaleMultipliesEachElement) {
  for (size_t n : {1, 15, 33, 20'000}) {
    const auto x = RandomFloats(n, 1, 3.0f);
    const auto array = Upload(x);
    ops().Scale(array.data(), 0.22f, static_cast<int64_t>(n));
    const auto got = array.Read();
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(got[i], 0.22f * x[i]) << i;
  }
}

TEST_P(OpsConformance, ClampKeepsNan) {
  for (size_t n : {1, 15, 33, 20'000}) {
    auto x = RandomFloats(n, 1, 3.0f);
    x[0] = NAN;
    const auto array = Upload(x);
    ops().Clamp(array.data(), 2.0f, static_cast<int64_t>(n));
    const auto got = array.Read();
    EXPECT_TRUE(std::isnan(got[0]));
    for (size_t i = 1; i < n; ++i) ASSERT_EQ(got[i], std::clamp(x[i], -2.0f, 2.0f)) << i;
  }
}

TEST_P(OpsConformance, NothingToDoIsFine) {
  ops().Linear({}, 3);
  ops().Mlp({}, nullptr, 0, nullptr);
  ops().ExpertMlp({}, nullptr, nullptr);
  ops().Embed({nullptr, DType::kBF16, 1, 16}, {}, nullptr);
  ops().Attention({2, 1.0f}, {nullptr, nullptr, 0, 16, 1, 16}, nullptr, {}, nullptr);
  ops().Add(nullptr, nullptr, 0);
  EXPECT_TRUE(device_->SynchronizeStream(StreamKind::kCompute, Deadline::AfterMs(30'000)).ok());
}

// FIELD: freed slots are poisoned with NaN, so a NaN must come through and must not break a router.
TEST_P(OpsConformance, NanAndInfinityComeThroughAndRoutesStayValid) {
  constexpr int32_t kExperts = 48, kTopK = 4;
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> logits(4 * kExperts, NAN);
  std::fill(logits.begin() + kExperts, logits.begin() + 2 * kExperts, inf);
  std::fill(logits.begin() + 2 * kExperts, logits.begin() + 3 * kExperts, -inf);
  std::fill(logits.begin() + 3 * kExperts, logits.end(), 1.0f);
  logits[3 * kExperts + 7] = NAN;
  const auto array = Upload(logits);
  const auto weights = Output(4 * kTopK);
  const DeviceArray<int32_t> ids(*device_, std::vector<int32_t>(4 * kTopK, -1));
  const auto correction = Upload(std::vector<float>(kExperts, 0.0f));
  for (const bool grouped : {false, true}) {
    RouterShape router{.experts = kExperts, .top_k = kTopK, .normalise = true};
    if (grouped) {
      router.scores = RouterShape::Scores::kSigmoid;
      router.correction = {correction.data(), DType::kF32, kExperts};
      router.groups = 8;
      router.groups_kept = 2;
    }
    ops().RouteTopK(array.data(), 4, router, ids.data(), weights.data());
    const auto got_ids = ids.Read();
    for (size_t row = 0; row < 4; ++row) {
      std::vector<int32_t> sorted(got_ids.begin() + static_cast<ptrdiff_t>(row * kTopK),
                                  got_ids.begin() + static_cast<ptrdiff_t>((row + 1) * kTopK));
      std::sort(sorted.begin(), sorted.end());
      EXPECT_GE(sorted.front(), 0);
      EXPECT_LT(sorted.back(), kExperts);
      EXPECT_EQ(std::unique(sorted.begin(), sorted.end()), sorted.end());
    }
  }

  const TestWeights w[3] = {RandomWeights(DType::kBF16, 56 * 26, 1),
                            RandomWeights(DType::kBF16, 56 * 26, 2),
                            RandomWeights(DType::kBF16, 56 * 26, 3)};
  for (size_t m : {2, 20}) {
    auto x = RandomFloats(m * 56, 7);
    x[3] = NAN;
    x[56 + 3] = 1e38f;
    const auto out = RunMlp(w, 56, 26, x);
    for (size_t i = 0; i < 56; ++i) EXPECT_TRUE(std::isnan(out[i])) << i;
    for (size_t i = 2 * 56; i < out.size(); ++i) EXPECT_TRUE(std::isfinite(out[i])) << i;
  }
}

std::vector<DeviceUnderTest> CpuDevices() {
  std::vector<DeviceUnderTest> devices;
  for (const std::string kernels : {"scalar", "avx2", "avx512", "amx"}) {
    devices.push_back({"cpu_" + kernels,
                       [kernels] { return CreateCpuDevice({.threads = 2, .kernels = kernels}); }});
  }
  return devices;
}

INSTANTIATE_TEST_SUITE_P(Cpu, OpsConformance, testing::ValuesIn(CpuDevices()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace expertflow

// Every kernel set and every number of threads gives the bits of the scalar reference on one
// thread, for every op and weight type.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "tests/conformance/device_harness.h"
#include "tests/golden/quantised_values.h"
#include "tests/unit/device/random_matrices.h"

namespace expertflow {
namespace {

struct Setting {
  std::string kernels;
  int32_t threads = 1;
};
void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.kernels << "_" << setting.threads;
}

struct Shape {
  int32_t hidden, intermediate, heads, kv_heads, head_dim, m;
};

class CpuKernels : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    auto device = CreateCpuDevice({.threads = GetParam().threads, .kernels = GetParam().kernels});
    if (!device.ok()) GTEST_SKIP() << device.status().ToString();
    device_ = std::move(device).value();
    auto reference = CreateCpuDevice({.threads = 1, .kernels = "scalar"});
    ASSERT_TRUE(reference.ok());
    reference_ = std::move(reference).value();
  }

  // Runs `body(ops)` on both devices (host memory serves both) and compares what it returns.
  template <typename Body>
  void ExpectSameBits(const Body& body) {
    EXPECT_EQ(Bits(body(device_->ops())), Bits(body(reference_->ops())));
  }

  std::unique_ptr<Device> device_, reference_;
};

constexpr Shape kShapes[] = {{56, 26, 4, 2, 14, 1},   {56, 44, 4, 2, 14, 37},
                             {192, 32, 6, 2, 32, 5},  {192, 130, 6, 2, 32, 9},
                             {44, 1100, 2, 2, 64, 3}, {1030, 64, 2, 1, 128, 20}};

TEST_P(CpuKernels, MatrixOpsHaveTheReferencesBits) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Shape& s : kShapes) {
      const size_t weights = static_cast<size_t>(s.hidden) * static_cast<size_t>(s.intermediate);
      const auto gate = RandomWeights(dtype, weights, 1), up = RandomWeights(dtype, weights, 2);
      const auto down = RandomWeights(dtype, weights, 3);
      const auto x = RandomFloats(static_cast<size_t>(s.m * s.hidden), 4);
      const WeightMatrix gate_matrix{gate.stored.data(), dtype, s.intermediate, s.hidden};
      const MlpWeights mlp{gate_matrix,
                           {up.stored.data(), dtype, s.intermediate, s.hidden},
                           {down.stored.data(), dtype, s.hidden, s.intermediate}};
      ExpectSameBits([&](Ops& ops) {
        std::vector<float> out(static_cast<size_t>(s.m * s.intermediate));
        const LinearJob job{
            gate_matrix, {up.stored.data(), dtype, s.intermediate}, x.data(), out.data()};
        ops.Linear({&job, 1}, s.m);
        return out;
      });
      ExpectSameBits([&](Ops& ops) {
        std::vector<float> out(x.size());
        ops.Mlp(mlp, x.data(), s.m, out.data());
        return out;
      });
      ExpectSameBits([&](Ops& ops) {
        std::vector<float> out(x.size());
        ops.RmsNorm(x.data(), {down.stored.data(), dtype, s.hidden}, 1e-6f, s.m, out.data());
        return out;
      });
      ExpectSameBits([&](Ops& ops) {
        std::vector<float> out(2 * static_cast<size_t>(s.hidden));
        const std::vector<int32_t> ids = {3, 0};
        ops.Embed({gate.stored.data(), dtype, s.intermediate, s.hidden}, ids, out.data());
        return out;
      });
      ASSERT_FALSE(HasFailure()) << DTypeName(dtype) << " hidden " << s.hidden << " m " << s.m;
    }
  }
}

TEST_P(CpuKernels, OtherOpsHaveTheReferencesBits) {
  constexpr int32_t kBlockTokens = 8, kBlocks = 12, kPositions = kBlockTokens * kBlocks;
  for (const Shape& s : kShapes) {
    const auto token = static_cast<size_t>(s.kv_heads * s.head_dim);
    const auto rows_count = static_cast<size_t>(s.m);
    auto keys = RandomFloats(kPositions * token, 1), values = RandomFloats(kPositions * token, 2);
    const KvLayer kv{
        keys.data(),  values.data(), static_cast<int64_t>(kBlockTokens * token * sizeof(float)),
        kBlockTokens, s.kv_heads,    s.head_dim};
    std::vector<int32_t> table(kBlocks);
    for (int32_t b = 0; b < kBlocks; ++b) table[static_cast<size_t>(b)] = kBlocks - 1 - b;
    std::vector<AttentionRow> rows;
    for (int32_t i = 0; i < s.m; ++i) rows.push_back({table.data(), (i * 31 + 50) % kPositions});
    const auto q = RandomFloats(rows_count * static_cast<size_t>(s.heads * s.head_dim), 3, 3.0f);
    ExpectSameBits([&](Ops& ops) {
      std::vector<float> out(q.size());
      ops.Attention({s.heads, 0.2f}, kv, q.data(), rows, out.data());
      return out;
    });
    const auto angles = RandomFloats(static_cast<size_t>(kPositions * s.head_dim), 5);
    ExpectSameBits([&](Ops& ops) {
      std::vector<float> x = q;
      ops.Rope(x.data(), s.heads, s.head_dim, s.head_dim, RopePairs::kHalves, rows, angles.data());
      return x;
    });
    constexpr int32_t kExperts = 50, kTopK = 3;
    const auto logits = RandomFloats(rows_count * kExperts, 6, 5.0f);
    ExpectSameBits([&](Ops& ops) {
      std::vector<float> weights(rows_count * kTopK);
      std::vector<int32_t> ids(weights.size());
      ops.RouteTopK(logits.data(), s.m, {.experts = kExperts, .top_k = kTopK, .normalise = true},
                    ids.data(), weights.data());
      weights.insert(weights.end(), ids.begin(), ids.end());
      return weights;
    });
    const auto hidden = static_cast<size_t>(s.hidden);
    const auto expert_out = RandomFloats(rows_count * kTopK * hidden, 7);
    const auto shared = RandomFloats(rows_count * hidden, 8);
    ExpectSameBits([&](Ops& ops) {
      std::vector<float> residual = shared;
      ops.CombineExperts(expert_out.data(), logits.data(), s.m, kTopK, s.hidden, shared.data(),
                         logits.data(), residual.data());
      ops.Add(residual.data(), expert_out.data(), static_cast<int64_t>(residual.size()));
      return residual;
    });
    ASSERT_FALSE(HasFailure()) << "hidden " << s.hidden << " m " << s.m;
  }
}

// Windows, sinks, a latent key that is also the value, and queries of which each head has its own
// place in a wider row.
TEST_P(CpuKernels, LatentAttentionHasTheReferencesBits) {
  constexpr int32_t kHeads = 3, kLatent = 20, kRotary = 6, kNope = 10, kTokens = 21;
  constexpr int32_t kKey = kLatent + kRotary;
  const std::vector<int32_t> table = {1, 0, 2};
  std::vector<AttentionRow> rows;
  for (int32_t t = 0; t < kTokens; ++t) rows.push_back({table.data(), t});
  const auto angles = RandomFloats(kTokens * kRotary, 1);
  const auto latent = RandomFloats(kTokens * kLatent, 2),
             rotary = RandomFloats(kTokens * kRotary, 3);
  const auto q = RandomFloats(kTokens * kHeads * kNope, 4);
  const auto q_rotary = RandomFloats(kTokens * kHeads * kKey, 5);
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const auto w = RandomWeights(dtype, kHeads * kNope * kLatent, 6);
    const auto sinks = RandomWeights(dtype, kHeads, 7);
    ExpectSameBits([&](Ops& ops) {
      std::vector<float> keys(3 * 8 * kKey), query = q_rotary, mixed(kTokens * kHeads * kLatent);
      const KvLayer kv{keys.data(), nullptr, 8 * kKey * sizeof(float), 8, 1, kKey, kLatent};
      std::vector<LinearJob> jobs;
      for (int32_t h = 0; h < kHeads; ++h) {
        jobs.push_back(
            {{w.stored.data() + static_cast<size_t>(h * kNope * kLatent) * DTypeBytes(dtype), dtype,
              kNope, kLatent},
             {},
             q.data() + h * kNope,
             query.data() + h * kKey,
             kHeads * kNope,
             kHeads * kKey});
      }
      ops.LinearTransposed(jobs, kTokens);
      ops.Rope(query.data() + kLatent, kHeads, kKey, kRotary, RopePairs::kNeighbours, rows,
               angles.data());
      ops.StoreKv(kv, rotary.data(), latent.data(), rows);
      ops.Attention({kHeads, 0.3f, 9, {sinks.stored.data(), dtype, kHeads}}, kv, query.data(), rows,
                    mixed.data());
      ops.Clamp(mixed.data(), 0.5f, static_cast<int64_t>(mixed.size()));
      ops.Scale(mixed.data(), 1.1f, static_cast<int64_t>(mixed.size()));
      mixed.insert(mixed.end(), query.begin(), query.end());
      return mixed;
    });
  }
}

TEST_P(CpuKernels, RoutersAndClampedMlpsHaveTheReferencesBits) {
  constexpr int32_t kExperts = 24, kTopK = 4, kRows = 13;
  const auto logits = RandomFloats(kRows * kExperts, 1, 3.0f);
  const auto bias = RandomFloats(kExperts, 2);
  using Scores = RouterShape::Scores;
  for (const Scores scores : {Scores::kSoftmax, Scores::kSoftmaxOfChosen, Scores::kSigmoid}) {
    RouterShape router{.experts = kExperts, .top_k = kTopK, .scores = scores};
    router.normalise = scores == Scores::kSigmoid;
    router.scale = 2.5f;
    router.correction = {bias.data(), DType::kF32, kExperts};
    router.groups = 6;
    router.groups_kept = 3;
    router.group_score = RouterShape::GroupScore::kSumOfTwo;
    ExpectSameBits([&](Ops& ops) {
      std::vector<int32_t> ids(kRows * kTopK);
      std::vector<float> weights(ids.size());
      ops.RouteTopK(logits.data(), kRows, router, ids.data(), weights.data());
      weights.insert(weights.end(), ids.begin(), ids.end());
      return weights;
    });
  }
  constexpr int32_t kHidden = 37, kWide = 21;
  const auto w = RandomWeights(DType::kBF16, 3 * kHidden * kWide, 3);
  const auto b = RandomWeights(DType::kBF16, 2 * kWide + kHidden, 4);
  const auto matrix = [&](size_t i, int32_t rows, int32_t cols) {
    return WeightMatrix{w.stored.data() + i * 2 * kHidden * kWide, DType::kBF16, rows, cols};
  };
  const auto vector = [&](size_t at, int32_t size) {
    return WeightVector{b.stored.data() + 2 * at, DType::kBF16, size};
  };
  const auto x = RandomFloats(kRows * kHidden, 5, 2.0f);
  const MlpWeights mlp{matrix(0, kWide, kHidden),
                       matrix(1, kWide, kHidden),
                       matrix(2, kHidden, kWide),
                       vector(0, kWide),
                       vector(kWide, kWide),
                       vector(2 * kWide, kHidden),
                       {Activation::Kind::kClampedSwiglu, 1.702f, 2.0f}};
  for (int32_t m : {1, kRows}) {
    ExpectSameBits([&](Ops& ops) {
      std::vector<float> out(x.size());
      ops.Mlp(mlp, x.data(), m, out.data());
      return out;
    });
  }
}

// Through the shared expert's gate: a row of sigmoid values from one CombineExperts call.
TEST_P(CpuKernels, SigmoidHasTheReferencesBitsFromEndToEnd) {
  std::vector<float> gates;
  for (float x = -100; x < 100; x += 0.0137f) gates.push_back(x);
  gates.insert(gates.end(), {0.0f, -0.0f, HUGE_VALF, -HUGE_VALF, 1e-40f, 3e38f, -3e38f});
  const auto m = static_cast<int32_t>(gates.size());
  const std::vector<float> ones(gates.size(), 1.0f);
  ExpectSameBits([&](Ops& ops) {
    std::vector<float> residual(gates.size(), 0.0f);
    ops.CombineExperts(nullptr, nullptr, m, 0, 1, ones.data(), gates.data(), residual.data());
    for (size_t i = 0; i < gates.size(); ++i) {
      const double want = 1 / (1 + std::exp(-double{gates[i]}));
      EXPECT_NEAR(residual[i], want, 3e-7 * want + 1e-38) << gates[i];
    }
    return residual;
  });
}

// 600 rows and one row of a matrix that is large enough for the thread pool.
TEST_P(CpuKernels, LargeProductsHaveTheReferencesBits) {
  constexpr int32_t kRows = 520, kCols = 300;
  const auto w = RandomWeights(DType::kBF16, kRows * kCols, 1);
  for (int32_t m : {1, 8, 520}) {
    if (m == 520 && GetParam().kernels == "scalar") continue;  // slow, and the reference itself
    const auto x = RandomFloats(static_cast<size_t>(m * kCols), 2);
    ExpectSameBits([&](Ops& ops) {
      std::vector<float> out(static_cast<size_t>(m * kRows));
      const LinearJob job{{w.stored.data(), DType::kBF16, kRows, kCols}, {}, x.data(), out.data()};
      ops.Linear({&job, 1}, m);
      return out;
    });
  }
}

constexpr DType kQuantisedTypes[] = {DType::kInt8, DType::kInt4, DType::kUInt4, DType::kMxfp4,
                                     DType::kFp8,  DType::kQ4_1, DType::kQ5_1,  DType::kQ4K,
                                     DType::kQ5K,  DType::kQ6K};

// All codes, with scales that are no normal numbers as well.
TEST_P(CpuKernels, EveryCodeIsTheValueThatItStandsFor) {
  constexpr int32_t kCols = 256;
  for (const DType dtype :
       {DType::kInt8, DType::kInt4, DType::kUInt4, DType::kMxfp4, DType::kFp8}) {
    for (const uint32_t exponent : {0u, 1u, 2u, 100u, 130u}) {
      std::vector<uint8_t> stored(MatrixBytes(dtype, kCols), uint8_t{5});
      for (size_t i = 0; i < kCols * CodeBits(dtype) / 8; ++i) stored[i] = static_cast<uint8_t>(i);
      uint8_t* scales = stored.data() + ScalesOffset(dtype, kCols);
      for (size_t group = 0; group < kCols / kQuantisedGroup; ++group) {
        const uint32_t bits = exponent << 23 | 0x1234;
        if (dtype == DType::kMxfp4) {
          scales[group] = static_cast<uint8_t>(exponent);
        } else {
          std::memcpy(scales + group * 4, &bits, sizeof(bits));
        }
      }
      for (int32_t i = 0; i < kCols; ++i) {  // one element at a time
        const float expected =
            QuantisedValue(stored.data(), dtype, kCols, static_cast<uint64_t>(i));
        if (dtype == DType::kFp8 && stored[static_cast<size_t>(i)] % 128 == 127) continue;  // NaN
        if (dtype == DType::kFp8) {
          for (const size_t nan : {127, 255}) stored[nan] = 0;
        }
        std::vector<float> x(kCols, 0.0f);
        x[static_cast<size_t>(i)] = 1;
        float found = NAN;
        const LinearJob job{{stored.data(), dtype, 1, kCols}, {}, x.data(), &found};
        device_->ops().Linear({&job, 1}, 1);
        ASSERT_EQ(found, expected) << DTypeName(dtype) << " " << i << " " << exponent;
      }
    }
  }
}

// Of few rows and many, of experts too: what the same matrix gives as float32 on the reference.
TEST_P(CpuKernels, QuantisedMatricesHaveTheBitsOfTheirValues) {
  for (const DType dtype : kQuantisedTypes) {
    const bool large = GroupElements(dtype) > 32;
    const int32_t hidden = large ? 256 : 96, wide = large ? 256 : 160;
    const size_t size = static_cast<size_t>(hidden) * static_cast<size_t>(wide);
    QuantisedWeights w[3];
    MlpWeights quantised, floats;
    for (uint32_t i = 0; i < 3; ++i) w[i] = RandomQuantised(dtype, size, i + 1);
    quantised.gate = {w[0].stored.data(), dtype, wide, hidden};
    quantised.up = {w[1].stored.data(), dtype, wide, hidden};
    quantised.down = {w[2].stored.data(), dtype, hidden, wide};
    floats.gate = {w[0].values.data(), DType::kF32, wide, hidden};
    floats.up = {w[1].values.data(), DType::kF32, wide, hidden};
    floats.down = {w[2].values.data(), DType::kF32, hidden, wide};
    for (const int32_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 40, 100}) {
      if (large && m == 100) continue;
      const auto x = RandomFloats(static_cast<size_t>(m * hidden), 4);
      const auto mlp = [&](Ops& ops, const MlpWeights& weights) {
        std::vector<float> out(x.size());
        ops.Mlp(weights, x.data(), m, out.data());
        return Bits(out);
      };
      const auto linear = [&](Ops& ops, const WeightMatrix& weight) {
        std::vector<float> out(static_cast<size_t>(m * wide));
        const LinearJob job{weight, {}, x.data(), out.data()};
        ops.Linear({&job, 1}, m);
        return Bits(out);
      };
      const auto experts = [&](Ops& ops, const MlpWeights& weights) {
        std::vector<ExpertRow> rows;
        for (int32_t i = 0; i < m; ++i) rows.push_back({i, m - 1 - i});
        std::vector<float> out(x.size());
        const ExpertJob job{weights, rows};
        ops.ExpertMlp({&job, 1}, x.data(), out.data());
        return Bits(out);
      };
      Ops &ops = device_->ops(), &reference = reference_->ops();
      ASSERT_EQ(linear(ops, quantised.gate), linear(reference, floats.gate))
          << DTypeName(dtype) << " m " << m;
      ASSERT_EQ(mlp(ops, quantised), mlp(reference, floats)) << DTypeName(dtype) << " m " << m;
      ASSERT_EQ(experts(ops, quantised), experts(reference, floats))
          << DTypeName(dtype) << " m " << m;
    }
  }
}

// Rows of a table, rows of a larger matrix, and products with it transposed.
TEST_P(CpuKernels, PartsOfQuantisedMatricesHaveTheBitsOfTheirValues) {
  constexpr int32_t kRows = 40;
  for (const DType dtype : kQuantisedTypes) {
    const int32_t cols = GroupElements(dtype) > 32 ? 512 : 96;
    const QuantisedWeights w = RandomQuantised(dtype, static_cast<size_t>(kRows * cols), 9);
    const WeightMatrix quantised{w.stored.data(), dtype, kRows, cols};
    const WeightMatrix floats{w.values.data(), DType::kF32, kRows, cols};
    Ops &ops = device_->ops(), &reference = reference_->ops();
    const auto embedded = [&](Ops& on, const WeightMatrix& table) {
      const std::vector<int32_t> ids = {0, 39, 7, 7, 22};
      std::vector<float> out(ids.size() * static_cast<size_t>(cols));
      on.Embed(table, ids, out.data());
      return out;  // not its bits: a zero may have lost its sign
    };
    ASSERT_EQ(embedded(ops, quantised), embedded(reference, floats)) << DTypeName(dtype);
    for (const int32_t m : {1, 3, 5, 20}) {
      const auto x = RandomFloats(static_cast<size_t>(m * cols), 5);
      const auto part = [&](Ops& on, const WeightMatrix& of) {
        std::vector<float> out(static_cast<size_t>(m) * 11);
        const LinearJob job{of.Rows(5, 20).Rows(2, 11), {}, x.data(), out.data()};
        on.Linear({&job, 1}, m);
        return Bits(out);
      };
      ASSERT_EQ(part(ops, quantised), part(reference, floats)) << DTypeName(dtype) << " m " << m;
      const auto transposed = [&](Ops& on, const WeightMatrix& of) {
        std::vector<float> out(static_cast<size_t>(m * cols));
        const LinearJob job{of.Rows(3, 13), {}, x.data(), out.data()};
        on.LinearTransposed({&job, 1}, m);
        return Bits(out);
      };
      ASSERT_EQ(transposed(ops, quantised), transposed(reference, floats))
          << DTypeName(dtype) << " m " << m;
    }
    // By hand: row 7 is what its values say, and part of the matrix begins with row 7.
    const std::vector<float> row(w.values.begin() + 7 * cols, w.values.begin() + 8 * cols);
    std::vector<float> found(static_cast<size_t>(cols));
    const std::vector<int32_t> id = {0};
    ops.Embed(quantised.Rows(7, 1), id, found.data());
    ASSERT_EQ(found, row);
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, CpuKernels,
                         testing::Values(Setting{"scalar", 2}, Setting{"avx2", 1},
                                         Setting{"avx2", 2}, Setting{"avx2", 4},
                                         Setting{"avx512", 1}, Setting{"avx512", 4}),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace expertflow

// Every kernel set and every number of threads gives the bits of the scalar reference on one
// thread, for every op and weight type.
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "tests/conformance/device_harness.h"

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
    const KvLayer kv{keys.data(),  values.data(), static_cast<int64_t>(kBlockTokens * token),
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
      ops.Rope(x.data(), s.heads, s.head_dim, s.head_dim, rows, angles.data());
      return x;
    });
    constexpr int32_t kExperts = 50, kTopK = 3;
    const auto logits = RandomFloats(rows_count * kExperts, 6, 5.0f);
    ExpectSameBits([&](Ops& ops) {
      std::vector<float> weights(rows_count * kTopK);
      std::vector<int32_t> ids(weights.size());
      ops.RouteTopK(logits.data(), s.m, kExperts, kTopK, true, ids.data(), weights.data());
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

INSTANTIATE_TEST_SUITE_P(Settings, CpuKernels,
                         testing::Values(Setting{"scalar", 2}, Setting{"avx2", 1},
                                         Setting{"avx2", 2}, Setting{"avx2", 4},
                                         Setting{"avx512", 1}, Setting{"avx512", 4}),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace expertflow

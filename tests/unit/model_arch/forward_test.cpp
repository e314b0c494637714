// The forward pass of small random models against a plain one in double precision, for every
// setting that changes it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "config_text.h"
#include "device/cpu/cpu_device.h"
#include "model/arch/model.h"
#include "naive_qwen2_moe.h"

namespace expertflow {
namespace {

using testing::FloatTensor;
using testing::FloatTensors;
using testing::NaiveQwen2Moe;
using testing::Rows;

constexpr double kTolerance = 1e-4;  // on logits of about 1 to 5

FloatTensors RandomTensors(const WeightPlan& plan, uint64_t seed) {
  FloatTensors tensors;
  std::mt19937_64 random(seed);
  const auto add = [&](const TensorSpec& spec) {
    const bool norm = spec.shape.size() == 1 && !spec.name.ends_with("bias");
    const double width = spec.name.find("embed") != std::string::npos ? 1 : 1.7;
    std::uniform_real_distribution<float> draw(-1, 1);
    FloatTensor tensor{spec.shape, {}};
    int64_t count = 1;
    for (const int64_t n : spec.shape) count *= n;
    const auto scale = static_cast<float>(
        spec.shape.size() == 1 ? 0.3 : width / std::sqrt(static_cast<double>(spec.shape.back())));
    for (int64_t i = 0; i < count; ++i)
      tensor.values.push_back((norm ? 1 : 0) + scale * draw(random));
    tensors.emplace(spec.name, std::move(tensor));
  };
  for (const TensorSpec& spec : plan.dense) add(spec);
  for (const ExpertSpec& spec : plan.experts) {
    add(spec.gate);
    add(spec.up);
    add(spec.down);
  }
  return tensors;
}

class TensorWeights final : public WeightSource {
 public:
  explicit TensorWeights(const FloatTensors& tensors) : tensors_(tensors) {}
  Result<WeightTensor> Dense(std::string_view name) const override {
    const auto found = tensors_.find(std::string(name));
    if (found == tensors_.end()) return NotFound(std::string(name));
    return WeightTensor{found->second.values.data(), DType::kF32, found->second.shape};
  }

 private:
  const FloatTensors& tensors_;
};

// Runs every (token, slot) alone, and keeps the pre-gate logits.
class OneByOneExecutor final : public MoeExecutor {
 public:
  struct PreGateRow {
    int32_t layer;
    int32_t target;
    int32_t row;
    std::vector<float> logits;
  };

  OneByOneExecutor(Device& device, const FloatTensors& tensors, int32_t lookahead)
      : device_(device), tensors_(tensors), lookahead_(lookahead) {}
  int32_t LookaheadLayers() const override { return lookahead_; }
  Status RunExperts(const MoeLayerCall& call) override {
    for (int32_t i = 0; i < call.m * call.top_k; ++i) {
      const std::string prefix = "model.layers." + std::to_string(call.layer.value) +
                                 ".mlp.experts." + std::to_string(call.ids[i]) + ".";
      const ExpertRow row[] = {{i / call.top_k, i}};
      const ExpertJob job[] = {
          {{Matrix(prefix + "gate_proj.weight"), Matrix(prefix + "up_proj.weight"),
            Matrix(prefix + "down_proj.weight")},
           row}};
      device_.ops().ExpertMlp(job, call.x, call.out);
    }
    for (const PreGate& gate : call.pre_gate) {
      for (int32_t row = 0; row < call.m; ++row) {
        const float* begin = gate.logits + int64_t{row} * call.experts;
        pre_gate.push_back(
            {call.layer.value, gate.target.value, row, {begin, begin + call.experts}});
      }
    }
    return OkStatus();
  }

  std::vector<PreGateRow> pre_gate;

 private:
  WeightMatrix Matrix(const std::string& name) const {
    const FloatTensor& tensor = tensors_.at(name);
    return {tensor.values.data(), DType::kF32, static_cast<int32_t>(tensor.shape[0]),
            static_cast<int32_t>(tensor.shape[1])};
  }
  Device& device_;
  const FloatTensors& tensors_;
  const int32_t lookahead_;
};

class LogitSink final : public ForwardSink {
 public:
  Status OnLogits(int32_t row, std::span<const float> logits) override {
    rows.emplace_back(logits.begin(), logits.end());
    order.push_back(row);
    return OkStatus();
  }
  void OnRoutes(LayerId layer, const int32_t* /*ids*/, const float* /*weights*/) override {
    layers.push_back(layer.value);
  }
  Rows rows;
  std::vector<int32_t> order;
  std::vector<int32_t> layers;
};

// A model with random weights and KV blocks for one sequence.
struct Rig {
  Rig(const std::string& changes, int32_t lookahead)
      : config(testing::ChangedConfig(changes)), naive(config, tensors) {
    auto made = testing::MakeFrom(config);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    architecture = std::move(made).value();
    tensors = RandomTensors(architecture->weights(), 5);
    device = CreateCpuDevice({.threads = 1}).value();
    const ModelShape& shape = architecture->shape();
    const ModelLimits limits{.rows_max = 20, .positions_max = 48, .lookahead_max = lookahead};
    auto built = architecture->Build(*device, TensorWeights(tensors), limits);
    EXPECT_TRUE(built.ok()) << built.status().ToString();
    model = std::move(built).value();
    const int64_t stride = int64_t{kBlockTokens} * shape.kv_heads * shape.head_dim;
    kv_memory.resize(static_cast<size_t>(2 * shape.layers * kBlocks * stride));
    for (int32_t layer = 0; layer < shape.layers; ++layer) {
      float* keys = kv_memory.data() + int64_t{2} * layer * kBlocks * stride;
      kv.push_back({keys, keys + kBlocks * stride, stride * static_cast<int64_t>(sizeof(float)),
                    kBlockTokens, shape.kv_heads, shape.head_dim});
    }
  }

  // Logits of all positions; `chunk` tokens a call.
  LogitSink Run(const std::vector<int32_t>& ids, size_t chunk, MoeExecutor& executor) {
    const std::vector<int32_t> blocks = {3, 0, 5, 1};  // not in order
    LogitSink sink;
    for (size_t begin = 0; begin < ids.size(); begin += chunk) {
      const size_t count = std::min(chunk, ids.size() - begin);
      std::vector<AttentionRow> rows;
      std::vector<int32_t> logit_rows;
      for (size_t i = 0; i < count; ++i) {
        rows.push_back({blocks.data(), static_cast<int32_t>(begin + i)});
        logit_rows.push_back(static_cast<int32_t>(i));
      }
      const std::vector<uint8_t> prefill(count, 1);
      const Status status = model->Forward(
          {{ids.data() + begin, count}, rows, prefill, kv, logit_rows}, executor, sink);
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
    return sink;
  }

  static constexpr int32_t kBlocks = 6;
  static constexpr int32_t kBlockTokens = 5;
  nlohmann::json config;
  FloatTensors tensors;
  NaiveQwen2Moe naive;
  std::unique_ptr<Architecture> architecture;
  std::unique_ptr<Device> device;
  std::unique_ptr<Model> model;
  std::vector<float> kv_memory;
  std::vector<KvLayer> kv;
};

// The largest difference of two logits of equal position.
double Difference(const Rows& a, const Rows& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t t = 0; t < a.size(); ++t) {
    EXPECT_EQ(a[t].size(), b[t].size());
    for (size_t i = 0; i < a[t].size(); ++i) {
      const double difference = std::fabs(a[t][i] - b[t][i]);
      largest = std::isnan(difference) ? 1e9 : std::max(largest, difference);
    }
  }
  return largest;
}

// 18 tokens: more rows of logits than are computed at once, and four KV blocks.
const std::vector<int32_t> kIds = {3, 49, 0, 17, 17, 8, 42, 5, 11, 30, 29, 1, 2, 44, 9, 20, 33, 6};

class ForwardTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ForwardTest, EqualsThePlainOne) {
  Rig rig(GetParam(), 0);
  const Rows expected = rig.naive.Forward(kIds);
  for (const size_t chunk : {kIds.size(), size_t{7}, size_t{1}}) {
    OneByOneExecutor executor(*rig.device, rig.tensors, 0);
    const LogitSink sink = rig.Run(kIds, chunk, executor);
    EXPECT_LT(Difference(sink.rows, expected), kTolerance) << "chunks of " << chunk;
    EXPECT_TRUE(executor.pre_gate.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Settings, ForwardTest,
    ::testing::Values(R"({})", R"({"norm_topk_prob": true})", R"({"tie_word_embeddings": true})",
                      R"({"decoder_sparse_step": 2})", R"({"mlp_only_layers": [0]})",
                      R"({"mlp_only_layers": [0, 1, 2]})", R"({"qkv_bias": false})",
                      R"({"head_dim": 12})", R"({"num_key_value_heads": 1})",
                      R"({"num_key_value_heads": 4, "num_experts_per_tok": 8})",
                      R"({"rope_theta": 100.0})", R"({"rms_norm_eps": 0.1})",
                      R"({"rope_scaling": {"type": "linear", "factor": 4.0}})",
                      R"({"rope_theta": null,
                          "rope_parameters": {"rope_type": "linear", "factor": 2.0,
                                              "rope_theta": 500.0}})"));

// The comparison above is worth something only if these settings matter.
TEST(Forward, SettingsChangeTheOutput) {
  Rig rig("{}", 0);
  OneByOneExecutor executor(*rig.device, rig.tensors, 0);
  const Rows base = rig.Run(kIds, kIds.size(), executor).rows;
  for (const char* changes :
       {R"({"norm_topk_prob": true})", R"({"tie_word_embeddings": true})",
        R"({"rope_theta": 100.0})", R"({"rms_norm_eps": 0.1})", R"({"num_experts_per_tok": 2})",
        R"({"rope_scaling": {"type": "linear", "factor": 4.0}})"}) {
    NaiveQwen2Moe other(testing::ChangedConfig(changes), rig.tensors);
    EXPECT_GT(Difference(other.Forward(kIds), base), 100 * kTolerance) << changes;
  }
}

TEST(Forward, RoutesComeOncePerMoeLayerAndLogitsInOrder) {
  Rig rig(R"({"decoder_sparse_step": 2, "num_hidden_layers": 5})", 0);
  OneByOneExecutor executor(*rig.device, rig.tensors, 0);
  const LogitSink sink = rig.Run(kIds, kIds.size(), executor);
  EXPECT_THAT(sink.layers, ::testing::ElementsAre(1, 3));
  ASSERT_EQ(sink.order.size(), kIds.size());
  EXPECT_TRUE(std::is_sorted(sink.order.begin(), sink.order.end()));
}

// Layers 0, 2 and 3 have experts.
TEST(Forward, PreGateIsTheLaterLayersRouterOnThisResidualStream) {
  Rig rig(R"({"num_hidden_layers": 4, "mlp_only_layers": [1]})", 2);
  OneByOneExecutor executor(*rig.device, rig.tensors, 2);
  rig.Run(kIds, kIds.size(), executor);
  (void)rig.naive.Forward(kIds);
  std::vector<std::pair<int32_t, int32_t>> pairs;
  for (const auto& row : executor.pre_gate) {
    if (row.row == 0) pairs.emplace_back(row.layer, row.target);
    const auto expected = rig.naive.PreGate(row.layer, row.target, row.row);
    ASSERT_EQ(row.logits.size(), expected.size());
    for (size_t e = 0; e < expected.size(); ++e) {
      ASSERT_NEAR(row.logits[e], expected[e], kTolerance) << row.layer << " for " << row.target;
    }
  }
  EXPECT_THAT(pairs, ::testing::ElementsAre(std::pair(0, 2), std::pair(2, 3)));
}

TEST(Forward, BuildNamesAMissingTensorAndOneOfAnotherRank) {
  Rig rig("{}", 0);
  FloatTensors tensors = rig.tensors;
  const ModelLimits limits{.rows_max = 1, .positions_max = 1};
  tensors["model.layers.2.self_attn.k_proj.bias"].shape = {16, 1};
  auto built = rig.architecture->Build(*rig.device, TensorWeights(tensors), limits);
  ASSERT_FALSE(built.ok());
  EXPECT_THAT(built.status().message(), ::testing::HasSubstr("layers.2.self_attn.k_proj.bias"));
  tensors.erase("model.layers.1.mlp.gate.weight");
  built = rig.architecture->Build(*rig.device, TensorWeights(tensors), limits);
  ASSERT_FALSE(built.ok());
  EXPECT_EQ(built.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(built.status().message(), ::testing::HasSubstr("layers.1.mlp.gate.weight"));
}

}  // namespace
}  // namespace expertflow

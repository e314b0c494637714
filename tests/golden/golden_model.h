// A real checkpoint behind a whole engine in one process, and the reference that transformers
// computed for it (tests/golden/checkpoints, models/tiny-moe: reference.json tells versions and
// seeds).
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/mapped_file.h"
#include "device/cpu/cpu_device.h"
#include "expert_store/store_layout.h"
#include "expert_store/store_view.h"
#include "expert_store/store_writer.h"
#include "model/arch/architecture.h"
#include "model/checkpoint/checkpoint.h"
#include "worker/engine.h"

namespace expertflow::testing {

struct ReferencePrompt {
  std::vector<int32_t> ids;
  int32_t first_logit = 0;      // position of the first row of logits
  std::vector<float> logits;    // [n - first_logit, vocab]
  std::vector<int32_t> routes;  // [moe_layers, n, k]
  std::vector<float> weights;   // [moe_layers, n, k]
  std::vector<int32_t> greedy;
};

template <typename T>
std::vector<T> TensorValues(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo* info = file.Find(name);
  if (info == nullptr) return {};
  std::vector<T> values(info->bytes / sizeof(T));
  std::memcpy(values.data(), info->data.data(), info->bytes);
  return values;
}

inline std::vector<ReferencePrompt> LoadReference(const std::string& folder) {
  const auto file = SafetensorsFile::Open(folder + "/reference.safetensors");
  EXPECT_TRUE(file.ok()) << file.status().ToString();
  const auto text = ReadFileToString(folder + "/reference.json", 1 << 20);
  const auto json = nlohmann::json::parse(*text);
  std::vector<ReferencePrompt> prompts;
  for (size_t i = 0; i < json["prompts"].size(); ++i) {
    const std::string key = "p" + std::to_string(i);
    ReferencePrompt prompt;
    prompt.ids = TensorValues<int32_t>(*file, key + ".input_ids");
    prompt.logits = TensorValues<float>(*file, key + ".logits");
    if (prompt.logits.empty()) {
      prompt.logits = TensorValues<float>(*file, key + ".logits_last8");
      prompt.first_logit = static_cast<int32_t>(prompt.ids.size()) - 8;
    }
    prompt.routes = TensorValues<int32_t>(*file, key + ".router_ids");
    prompt.weights = TensorValues<float>(*file, key + ".router_weights");
    prompt.greedy = json["prompts"][i]["greedy_ids"].get<std::vector<int32_t>>();
    EXPECT_FALSE(prompt.ids.empty() || prompt.logits.empty() || prompt.routes.empty());
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// Kullback-Leibler divergence of the next token's distribution, in nats.
inline double Divergence(const std::vector<float>& p, const std::vector<float>& q) {
  const auto log_sum = [](const std::vector<float>& logits) {
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit);
    return std::log(sum);
  };
  const double p_sum = log_sum(p), q_sum = log_sum(q);
  double divergence = 0;
  for (size_t t = 0; t < p.size(); ++t) {
    divergence += std::exp(p[t] - p_sum) * ((p[t] - p_sum) - (q[t] - q_sum));
  }
  return divergence;
}

// A packed store in a temporary file, mapped, and its architecture.
class GoldenModel {
 public:
  // `config_json` replaces the folder's when it is not empty.
  explicit GoldenModel(const std::string& folder, const std::string& config_json = "",
                       const StoreSettings& settings = {}) {
    const auto config = config_json.empty() ? JsonConfig::Load(folder + "/config.json")
                                            : JsonConfig::Parse(config_json, "config.json");
    EXPECT_TRUE(config.ok()) << config.status().ToString();
    auto architecture = MakeArchitecture(*config);
    EXPECT_TRUE(architecture.ok()) << architecture.status().ToString();
    architecture_ = std::move(architecture).value();
    const auto checkpoint = Checkpoint::Open(folder);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    const auto layout =
        StoreLayout::Make(architecture_->weights(), *checkpoint, config->text(), settings);
    EXPECT_TRUE(layout.ok()) << layout.status().ToString();
    const std::string path = ::testing::TempDir() + "golden-" + std::to_string(::getpid()) + "-" +
                             std::filesystem::path(folder).filename().string() + ".efstore";
    const Status packed = PackStore(*layout, path, {});
    EXPECT_TRUE(packed.ok()) << packed.ToString();
    auto view = StoreView::OpenFile(path);
    EXPECT_TRUE(view.ok()) << view.status().ToString();
    std::filesystem::remove(path);  // the mapping stays
    store_.emplace(std::move(view).value());
  }

  const Architecture& architecture() const { return *architecture_; }
  const StoreView& store() const { return *store_; }

 private:
  std::unique_ptr<Architecture> architecture_;
  std::optional<StoreView> store_;
};

struct EngineSetup {
  bool in_place = true;
  double resident_percent = 100;
  bool prefetch = false;
  int32_t threads = 1;
  int32_t prefill_tokens = 512;
  std::string kernels = "auto";
  DType kv_dtype = DType::kF32;
};

// An engine over a golden model with its own device.
class GoldenEngine {
 public:
  GoldenEngine(const GoldenModel& model, const EngineSetup& setup) {
    CpuDeviceOptions cpu;
    cpu.threads = setup.threads;
    cpu.kernels = setup.kernels;
    auto device = CreateCpuDevice(cpu);
    EXPECT_TRUE(device.ok()) << device.status().ToString();
    device_ = std::move(device).value();
    const StoreView& store = model.store();
    MemoryPlanInput input;
    input.store = StoreSizesOf(store);
    input.in_place = setup.in_place;
    input.expert_memory = {.is_percent = true, .percent = setup.resident_percent};
    input.prefill_tokens_max = setup.prefill_tokens;
    input.lookahead_max = setup.prefetch ? 1 : 0;
    input.kv_memory_bytes =
        uint64_t{1024} * model.architecture().shape().kv_bytes_per_token(setup.kv_dtype);
    input.kv_dtype = setup.kv_dtype;
    EngineOptions options;
    auto plan = MakeMemoryPlan(model.architecture(), input);
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    options.plan = *plan;
    options.prefill_tokens_max = setup.prefill_tokens;
    options.prefetch = setup.prefetch;
    auto engine = Engine::Create(options, *device_, model.architecture(), store, nullptr);
    EXPECT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = std::move(engine).value();
  }

  Engine& engine() { return *engine_; }

  // Steps until idle; what each sequence generated, by sequence id.
  StepOutput RunToEnd() {
    StepOutput all;
    StepOutput step;
    while (!engine_->idle()) {
      const Status status = engine_->Step(&step);
      EXPECT_TRUE(status.ok()) << status.ToString();
      if (!status.ok()) break;
      for (auto& captured : step.captured) all.captured.push_back(std::move(captured));
      for (auto& token : step.tokens) all.tokens.push_back(token);
      for (auto& failed : step.failed) {
        ADD_FAILURE() << failed.message;
        all.failed.push_back(failed);
      }
    }
    return all;
  }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace expertflow::testing

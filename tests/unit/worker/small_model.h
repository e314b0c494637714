// A small random model, packed into a store file and mapped, for tests of the worker.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "expert_store/store_layout.h"
#include "expert_store/store_view.h"
#include "expert_store/store_writer.h"
#include "expert_store/synth.h"
#include "model/arch/architecture.h"
#include "model/checkpoint/checkpoint.h"

namespace expertflow::testing {

struct SmallModelOptions {
  int32_t layers = 2;
  int32_t vocab = 64;
  int32_t hidden = 32;
  int32_t context = 256;
  std::string dense_layers = "[]";  // mlp_only_layers
  int32_t nan_token = -1;           // its embedding is NaN
  uint64_t seed = 1;
};

// 6 experts a layer, of which 2 are chosen.
class SmallModel {
 public:
  explicit SmallModel(const SmallModelOptions& options = {}) {
    static std::atomic<int> serial{0};
    const std::string folder =
        fmt::format("{}small-model-{}-{}", ::testing::TempDir(), ::getpid(), serial++);
    const std::string text = fmt::format(
        R"({{"architectures": ["Qwen2MoeForCausalLM"], "hidden_size": {}, "num_hidden_layers": {},
            "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": {},
            "max_position_embeddings": {}, "intermediate_size": 24, "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16, "num_experts": 6, "num_experts_per_tok": 2,
            "mlp_only_layers": {}}})",
        options.hidden, options.layers, options.vocab, options.context, options.dense_layers);
    const auto config = JsonConfig::Parse(text, "config.json");
    EXPECT_TRUE(config.ok()) << config.status().ToString();
    auto made = MakeArchitecture(*config);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    architecture_ = std::move(made).value();
    Expect(
        WriteSyntheticCheckpoint(architecture_->weights(), text, folder, {.seed = options.seed}));
    if (options.nan_token >= 0) WriteNan(folder, options);
    const auto checkpoint = Checkpoint::Open(folder);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    const auto layout = StoreLayout::Make(architecture_->weights(), *checkpoint, text);
    EXPECT_TRUE(layout.ok()) << layout.status().ToString();
    path_ = folder + ".efstore";
    Expect(PackStore(*layout, path_, {.threads = 1}));
    std::filesystem::remove_all(folder);
    auto view = StoreView::OpenFile(path_);
    EXPECT_TRUE(view.ok()) << view.status().ToString();
    store_.emplace(std::move(view).value());
  }
  ~SmallModel() { std::filesystem::remove(path_); }
  SmallModel(const SmallModel&) = delete;
  SmallModel& operator=(const SmallModel&) = delete;

  const Architecture& architecture() const { return *architecture_; }
  const StoreView& store() const { return *store_; }
  const std::string& path() const { return path_; }

 private:
  static void Expect(const Status& status) { EXPECT_TRUE(status.ok()) << status.ToString(); }
  static void WriteNan(const std::string& folder, const SmallModelOptions& options) {
    const std::string path = folder + "/model.safetensors";
    const auto file = SafetensorsFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    const TensorInfo* table = file->Find("model.embed_tokens.weight");
    ASSERT_NE(table, nullptr);
    std::FILE* out = std::fopen(path.c_str(), "r+b");
    ASSERT_NE(out, nullptr);
    const uint64_t row = uint64_t{2} * options.nan_token * options.hidden;
    std::fseek(out, static_cast<long>(table->file_offset + row), SEEK_SET);
    const uint16_t nan = 0x7fc0;  // bfloat16
    EXPECT_EQ(std::fwrite(&nan, sizeof(nan), 1, out), 1u);
    std::fclose(out);
  }

  std::unique_ptr<Architecture> architecture_;
  std::string path_;
  std::optional<StoreView> store_;
};

}  // namespace expertflow::testing

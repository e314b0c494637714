// A small real checkpoint and its weight plan, for tests of the store.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/mapped_file.h"
#include "expert_store/store_layout.h"
#include "expert_store/store_writer.h"
#include "model/checkpoint/checkpoint.h"

namespace expertflow::testing {

inline constexpr const char* kCheckpointFolder =
    EXPERTFLOW_SOURCE_DIR "/tests/golden/checkpoints/qwen2_moe";

// Groups the tensors of a Qwen2-MoE checkpoint by their names.
inline WeightPlan PlanFromNames(const Checkpoint& checkpoint) {
  WeightPlan plan;
  std::map<ExpertKey, ExpertSpec> experts;
  for (const TensorInfo* info : checkpoint.tensors()) {
    int layer = 0;
    int expert = 0;
    char matrix[16] = {};
    const int parts =
        std::sscanf(info->name.c_str(), "model.layers.%d.mlp.experts.%d.%15[a-z]_proj", &layer,
                    &expert, matrix);
    if (parts >= 1) plan.layers = std::max(plan.layers, layer + 1);
    if (parts != 3) {
      plan.dense.push_back({info->name, info->shape});
      continue;
    }
    plan.experts_per_layer = std::max(plan.experts_per_layer, expert + 1);
    ExpertSpec& spec = experts[{LayerId(layer), ExpertId(expert)}];
    spec.key = {LayerId(layer), ExpertId(expert)};
    const std::string_view kind = matrix;
    TensorSpec& tensor = kind == "gate" ? spec.gate : kind == "up" ? spec.up : spec.down;
    tensor = {info->name, info->shape};
  }
  for (auto& [key, spec] : experts) plan.experts.push_back(spec);
  return plan;
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    path_ = (std::filesystem::temp_directory_path() / "expertflow-XXXXXX").string();
    EXPECT_NE(::mkdtemp(path_.data()), nullptr);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

class StoreFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = Checkpoint::Open(kCheckpointFolder);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    checkpoint_.emplace(std::move(opened).value());
    plan_ = PlanFromNames(*checkpoint_);
    ASSERT_EQ(plan_.layers, 3);
    ASSERT_EQ(plan_.experts.size(), 27u);
    const auto config =
        ReadFileToString(std::string(kCheckpointFolder) + "/config.json", size_t{1} << 20);
    ASSERT_TRUE(config.ok());
    config_ = *config;
    auto layout = StoreLayout::Make(plan_, *checkpoint_, config_);
    ASSERT_TRUE(layout.ok()) << layout.status().ToString();
    layout_.emplace(std::move(layout).value());
  }

  std::optional<Checkpoint> checkpoint_;
  WeightPlan plan_;
  std::string config_;
  std::optional<StoreLayout> layout_;
};

// Runs `body` in a child whose mount namespace has a tmpfs of `bytes` at `folder`. Returns what
// `body` returned, or -1 when this user may not mount.
inline int InSmallTmpfs(const std::string& folder, size_t bytes, const std::function<int()>& body) {
  constexpr int kNoMount = 99;
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string options = "size=" + std::to_string(bytes);
    const bool mounted = ::unshare(CLONE_NEWNS) == 0 &&
                         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                         ::mount("tmpfs", folder.c_str(), "tmpfs", 0, options.c_str()) == 0;
    ::_exit(mounted ? body() : kNoMount);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFEXITED(status)) return 128;
  return WEXITSTATUS(status) == kNoMount ? -1 : WEXITSTATUS(status);
}

}  // namespace expertflow::testing

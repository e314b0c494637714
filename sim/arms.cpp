#include "sim/arms.h"

#include <algorithm>
#include <array>

#include "predictor/core/dynamic_stride.h"
#include "sim/synthetic_routing.h"

namespace expertflow {
namespace {

constexpr int32_t kDynamic = -1;

enum class Predicts : uint8_t { kNothing, kLearned, kFrequency, kTruth };

struct Recipe {
  std::string_view name;
  std::string_view meaning;
  CacheRanks ranks = CacheRanks::kOwn;
  Predicts predicts = Predicts::kNothing;
  int32_t stride = 0;
  bool forecaster = false;
  bool keeps = true;  // a cache
};

constexpr std::array kRecipes = {
    Recipe{"reactive", "loads on demand, keeps nothing", CacheRanks::kOwn, Predicts::kNothing, 0,
           false, false},
    Recipe{"static", "the most frequent experts stay, others are loaded on demand",
           CacheRanks::kPinned},
    Recipe{"lru", "loads on demand, least recently used leaves", CacheRanks::kRecency},
    Recipe{"stride-1", "LRU, predicted experts of the next layer", CacheRanks::kRecency,
           Predicts::kLearned, 1},
    Recipe{"stride-2", "LRU, two layers ahead", CacheRanks::kRecency, Predicts::kLearned, 2},
    Recipe{"stride-4", "LRU, four layers ahead", CacheRanks::kRecency, Predicts::kLearned, 4},
    Recipe{"stride-8", "LRU, eight layers ahead", CacheRanks::kRecency, Predicts::kLearned, 8},
    Recipe{"moe-infinity-like", "prefetch and cache by the sequence's activation frequency",
           CacheRanks::kOwn, Predicts::kFrequency, 2},
    Recipe{"promoe-like", "LRU, a learned predictor, three layers ahead", CacheRanks::kRecency,
           Predicts::kLearned, 3},
    Recipe{"expertflow", "our cache, predictions and stride", CacheRanks::kOwn, Predicts::kLearned,
           kDynamic, true},
    Recipe{"expertflow-no-prefetch", "our cache alone", CacheRanks::kOwn, Predicts::kNothing, 0,
           true},
    Recipe{"expertflow-lru", "our predictions and stride over LRU", CacheRanks::kRecency,
           Predicts::kLearned, kDynamic},
    Recipe{"expertflow-stride-1", "our cache and predictions, one layer ahead", CacheRanks::kOwn,
           Predicts::kLearned, 1, true},
    Recipe{"oracle", "our cache and stride, perfect predictions", CacheRanks::kOwn,
           Predicts::kTruth, kDynamic, true},
    Recipe{"oracle-belady", "perfect predictions and the best possible cache", CacheRanks::kOracle,
           Predicts::kTruth, kDynamic},
};

constexpr auto kNames = [] {
  std::array<std::string_view, kRecipes.size()> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kRecipes[i].name;
  return names;
}();

const Recipe* FindRecipe(std::string_view name) {
  const auto found = std::find_if(kRecipes.begin(), kRecipes.end(),
                                  [&](const Recipe& r) { return r.name == name; });
  return found == kRecipes.end() ? nullptr : &*found;
}

}  // namespace

std::span<const std::string_view> ArmNames() {
  return kNames;
}

std::string_view ArmMeaning(std::string_view name) {
  const Recipe* recipe = FindRecipe(name);
  return recipe == nullptr ? std::string_view() : recipe->meaning;
}

Result<Arm> MakeArm(std::string_view name, const ArmSetup& setup, uint64_t expert_bytes) {
  const Recipe* recipe = FindRecipe(name);
  if (recipe == nullptr) {
    std::string all;
    for (const std::string_view known : kNames) {
      all += (all.empty() ? "" : ", ") + std::string(known);
    }
    return InvalidArgument("unknown arm \"" + std::string(name) + "\"; there are " + all);
  }
  Arm arm;
  DeviceSimOptions& options = arm.options;
  options.ranks = recipe->ranks;
  options.keeps_experts = recipe->keeps;
  options.expert_bytes = expert_bytes;
  // Without prefetch nothing is cancelled or overtaken: whole copies take the same time.
  const bool on_demand = recipe->predicts == Predicts::kNothing;
  options.queue.chunk_bytes = on_demand ? expert_bytes : setup.chunk_bytes;
  options.training_uses = setup.training_uses;
  if (recipe->forecaster) options.forecaster = setup.forecaster;
  switch (recipe->predicts) {
    case Predicts::kNothing: return arm;
    case Predicts::kLearned:
      arm.predictions =
          std::make_unique<NoisyOracle>(*setup.trace, *setup.lockstep, setup.recall, setup.seed);
      break;
    case Predicts::kFrequency:
      arm.predictions = std::make_unique<ActivationFrequency>(*setup.trace, *setup.lockstep);
      break;
    case Predicts::kTruth:
      arm.predictions = std::make_unique<NoisyOracle>(*setup.trace, *setup.lockstep,
                                                      std::vector<double>{1.0}, setup.seed);
      break;
  }
  options.predictions = arm.predictions.get();
  options.prediction_ns = setup.prediction_ns;
  if (recipe->stride != kDynamic) {
    options.stride = std::make_unique<FixedStride>(recipe->stride);
  } else {
    DynamicStrideOptions stride;
    stride.expert_bytes = expert_bytes;
    stride.moe_layers = setup.trace->layers();
    stride.stride_min = setup.stride.least;
    stride.stride_max = setup.stride.most;
    options.stride = std::make_unique<DynamicStride>(stride);
  }
  return arm;
}

}  // namespace expertflow

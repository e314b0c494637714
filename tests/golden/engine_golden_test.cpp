// The engine against the reference, and against itself: every way of running a model gives the same
// bits.
#include <algorithm>
#include <cmath>
#include <map>

#include "tests/golden/golden_model.h"

namespace expertflow::testing {
namespace {

constexpr double kTolerance = 2e-3;  // absolute, on logits of about 20

std::string Checkpoint(const std::string& name) {
  return EXPERTFLOW_SOURCE_DIR "/tests/golden/checkpoints/" + name;
}
const char* const kBundled = EXPERTFLOW_SOURCE_DIR "/models/tiny-moe";

StartSequence Request(uint64_t id, const ReferencePrompt& prompt, bool capture) {
  StartSequence start;
  start.sequence = {id};
  start.tokens = prompt.ids;
  start.prompt_tokens = static_cast<uint32_t>(prompt.ids.size());
  start.max_new_tokens = static_cast<uint32_t>(prompt.greedy.size());
  start.capture_logits = capture;
  start.capture_routes = capture;
  return start;
}

std::vector<int32_t> TokensOf(const StepOutput& output, uint64_t id) {
  std::vector<int32_t> tokens;
  for (const TokenEvent& event : output.tokens) {
    if (event.sequence.value == id) tokens.push_back(event.token);
  }
  return tokens;
}

struct Difference {
  double logit_max = 0;
  double weight_max = 0;
  int64_t route_mismatches = 0;
  int64_t route_decisions = 0;
};

// Captured positions of the prompt against the reference.
void Compare(const ReferencePrompt& prompt, const StepOutput& output, uint64_t id, size_t top_k,
             Difference* difference) {
  const size_t n = prompt.ids.size();
  const size_t layers = prompt.routes.size() / (n * top_k);
  const size_t vocab = prompt.logits.size() / (n - prompt.first_logit);
  size_t seen = 0;
  for (const CapturedPosition& captured : output.captured) {
    if (captured.sequence.value != id || captured.position >= n) continue;
    ++seen;
    ASSERT_EQ(captured.logits.size(), vocab);
    ASSERT_EQ(captured.router_ids.size(), layers * top_k);
    for (size_t layer = 0; layer < layers; ++layer) {
      const size_t reference = (layer * n + captured.position) * top_k;
      ++difference->route_decisions;
      // By expert: two of almost equal weight may come in the other order.
      std::map<int32_t, float> expected, found;
      for (size_t k = 0; k < top_k; ++k) {
        expected[prompt.routes[reference + k]] = prompt.weights[reference + k];
        found[captured.router_ids[layer * top_k + k]] = captured.router_weights[layer * top_k + k];
      }
      for (const auto& [expert, weight] : expected) {
        const auto at = found.find(expert);
        if (at == found.end()) {
          ++difference->route_mismatches;
          break;
        }
        const double error = std::fabs(static_cast<double>(weight) - at->second);
        difference->weight_max = std::max(difference->weight_max, std::isnan(error) ? 1e9 : error);
      }
    }
    if (static_cast<int32_t>(captured.position) < prompt.first_logit) continue;
    const float* expected = prompt.logits.data() + (captured.position - prompt.first_logit) * vocab;
    for (size_t i = 0; i < vocab; ++i) {
      const double error = std::fabs(static_cast<double>(expected[i]) - captured.logits[i]);
      difference->logit_max = std::max(difference->logit_max, std::isnan(error) ? 1e9 : error);
    }
  }
  EXPECT_EQ(seen, n);
}

void ExpectParity(const std::string& folder, int64_t route_mismatches_max,
                  const EngineSetup& setup = {}) {
  const GoldenModel model(folder);
  const auto prompts = LoadReference(folder);
  GoldenEngine golden(model, setup);
  for (size_t i = 0; i < prompts.size(); ++i) {
    ASSERT_TRUE(golden.engine().Start(Request(i, prompts[i], true)).ok());
  }
  const StepOutput output = golden.RunToEnd();
  Difference difference;
  for (size_t i = 0; i < prompts.size(); ++i) {
    Compare(prompts[i], output, i, static_cast<size_t>(model.architecture().shape().top_k),
            &difference);
    EXPECT_EQ(TokensOf(output, i), prompts[i].greedy) << "prompt " << i;
  }
  EXPECT_LE(difference.logit_max, kTolerance);
  EXPECT_LE(difference.weight_max, 1e-4);
  EXPECT_LE(difference.route_mismatches, route_mismatches_max);
  std::printf("max |logit diff| %.2g, route mismatches %lld of %lld\n", difference.logit_max,
              static_cast<long long>(difference.route_mismatches),
              static_cast<long long>(difference.route_decisions));
}

// The reference of each family (docs of the checkpoints: their reference.json).
class FamilyTest : public ::testing::TestWithParam<const char*> {};

TEST_P(FamilyTest, FIELD_1_EqualsTheReference) {
  ExpectParity(Checkpoint(GetParam()), 0);
}

constexpr const char* kFamilies[] = {
    "qwen2_moe", "qwen2_moe_gqa", "qwen3_moe",   "mixtral",          "olmoe",
    "glm4_moe",  "gpt_oss",       "granite_moe", "deepseek_v2_lite", "deepseek_v3"};

INSTANTIATE_TEST_SUITE_P(Families, FamilyTest, ::testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param); });

// 3,072 decisions, of which some tie to 1e-6: at least 99.9 % must agree.
TEST(EngineGoldenTest, FIELD_1_BundledModelEqualsTheReference) {
  ExpectParity(kBundled, 3);
}

bool HasAmx() {
  const auto available = AvailableKernels();
  return std::find(available.begin(), available.end(), "amx") != available.end();
}

// Its sums are others, so the comparison with the reference is made again.
TEST(EngineGoldenTest, FIELD_1_OnAmx) {
  if (!HasAmx()) GTEST_SKIP() << "this machine has no AMX";
  for (const char* family : kFamilies) ExpectParity(Checkpoint(family), 0, {.kernels = "amx"});
  ExpectParity(kBundled, 3, {.kernels = "amx"});
}

// Everything that a run produces, comparable bit by bit.
using Trace = std::map<std::pair<uint64_t, uint32_t>, std::vector<float>>;

struct RunResult {
  Trace logits;
  std::map<uint64_t, std::vector<int32_t>> tokens;
  bool operator==(const RunResult&) const = default;
};

RunResult RunPrompts(const GoldenModel& model, const std::vector<ReferencePrompt>& prompts,
                     const EngineSetup& setup, bool one_by_one) {
  GoldenEngine golden(model, setup);
  RunResult result;
  const auto collect = [&result](const StepOutput& output) {
    for (const auto& captured : output.captured) {
      result.logits[{captured.sequence.value, captured.position}] = captured.logits;
    }
    for (const auto& token : output.tokens) {
      result.tokens[token.sequence.value].push_back(token.token);
    }
  };
  for (size_t i = 0; i < prompts.size(); ++i) {
    StartSequence start = Request(i, prompts[i], true);
    // Half of them sample, with a seed.
    if (i % 2 == 1) start.sampling = {.temperature = 0.8f, .top_p = 0.95f, .top_k = 50, .seed = 7};
    EXPECT_TRUE(golden.engine().Start(start).ok());
    if (one_by_one) collect(golden.RunToEnd());
  }
  collect(golden.RunToEnd());
  return result;
}

class SameBitsTest : public ::testing::TestWithParam<std::string> {};

// FIELD rows 4, 10, 11, 12, 16: residency, prefetch, chunking, batching, threads change nothing.
void ExpectSameBitsHoweverItIsRun(const std::string& folder, const std::string& kernels) {
  const GoldenModel model(folder);
  auto prompts = LoadReference(folder);
  for (auto& prompt : prompts) prompt.greedy.resize(16);
  const RunResult expected = RunPrompts(model, prompts, {.kernels = kernels}, true);
  ASSERT_EQ(expected.tokens.size(), prompts.size());
  const struct {
    const char* what;
    EngineSetup setup;
    bool one_by_one;
  } runs[] = {
      {"batched", {}, false},
      {"chunks of 1", {.prefill_tokens = 1}, false},
      {"chunks of 13, two threads", {.threads = 2, .prefill_tokens = 13}, false},
      {"no slots", {.in_place = false, .resident_percent = 0}, false},
      {"no slots, one by one", {.in_place = false, .resident_percent = 0}, true},
      {"10 %", {.in_place = false, .resident_percent = 10}, false},
      {"30 % with prefetch", {.in_place = false, .resident_percent = 30, .prefetch = true}, false},
      {"30 % with prefetch, one by one",
       {.in_place = false, .resident_percent = 30, .prefetch = true},
       true},
      {"all slots", {.in_place = false, .resident_percent = 100}, false},
  };
  for (const auto& run : runs) {
    EngineSetup setup = run.setup;
    setup.kernels = kernels;
    EXPECT_TRUE(RunPrompts(model, prompts, setup, run.one_by_one) == expected) << run.what;
  }
}

TEST_P(SameBitsTest, FIELD_4_HoweverAModelIsRun) {
  ExpectSameBitsHoweverItIsRun(GetParam(), "auto");
}

TEST_P(SameBitsTest, FIELD_4_HoweverAModelIsRunOnAmx) {
  if (!HasAmx()) GTEST_SKIP() << "this machine has no AMX";
  ExpectSameBitsHoweverItIsRun(GetParam(), "amx");
}

TEST_P(SameBitsTest, OnEveryInstructionSetOfThisMachine) {
  const GoldenModel model(GetParam());
  auto prompts = LoadReference(GetParam());
  prompts.resize(2);
  for (auto& prompt : prompts) prompt.greedy.resize(4);
  const RunResult expected = RunPrompts(model, prompts, {.kernels = "scalar"}, false);
  for (const std::string& kernels : AvailableKernels()) {
    if (kernels == "amx") continue;  // has sums of its own
    EXPECT_TRUE(RunPrompts(model, prompts, {.kernels = kernels}, false) == expected) << kernels;
  }
}

// A smaller KV cache: its own bits, however it is run, and near those of the whole one.
TEST_P(SameBitsTest, WithASmallerKvCache) {
  const GoldenModel model(GetParam());
  auto prompts = LoadReference(GetParam());
  prompts.resize(2);
  for (auto& prompt : prompts) prompt.greedy.resize(4);
  const RunResult whole = RunPrompts(model, prompts, {}, false);
  for (const DType dtype : {DType::kBF16, DType::kInt8}) {
    const RunResult expected =
        RunPrompts(model, prompts, {.kernels = "scalar", .kv_dtype = dtype}, false);
    for (const std::string& kernels : AvailableKernels()) {
      if (kernels == "amx") continue;  // has sums of its own
      const EngineSetup setup{
          .threads = 2, .prefill_tokens = 5, .kernels = kernels, .kv_dtype = dtype};
      EXPECT_TRUE(RunPrompts(model, prompts, setup, true) == expected)
          << kernels << " " << DTypeName(dtype);
    }
    EXPECT_FALSE(expected == whole);
    // Over the prompts: generated tokens may be others.
    double divergence = 0, difference = 0;
    size_t positions = 0;
    for (const auto& [at, logits] : whole.logits) {
      if (at.second >= prompts[at.first].ids.size()) continue;
      const std::vector<float>& found = expected.logits.at(at);
      divergence += Divergence(logits, found);
      ++positions;
      for (size_t i = 0; i < logits.size(); ++i) {
        difference = std::max(difference, std::fabs(static_cast<double>(logits[i]) - found[i]));
      }
    }
    divergence /= static_cast<double>(positions);
    EXPECT_LT(divergence, 5e-3) << DTypeName(dtype);
    std::printf("KV cache %s: mean KL divergence %.2g nats, max |logit diff| %.2g\n",
                std::string(DTypeName(dtype)).c_str(), divergence, difference);
  }
}

// A worker died: another one gets the prompt with what was generated so far.
TEST_P(SameBitsTest, WhenASequenceGoesOnElsewhere) {
  const GoldenModel model(GetParam());
  const auto prompts = LoadReference(GetParam());
  const ReferencePrompt& prompt = prompts[1];
  for (const size_t done : {size_t{1}, prompt.greedy.size() / 2, prompt.greedy.size() - 1}) {
    StartSequence start = Request(1, prompt, false);
    start.tokens.insert(start.tokens.end(), prompt.greedy.begin(),
                        prompt.greedy.begin() + static_cast<int64_t>(done));
    GoldenEngine golden(model, {.in_place = false, .resident_percent = 20, .prefetch = true});
    ASSERT_TRUE(golden.engine().Start(start).ok());
    const std::vector<int32_t> rest(prompt.greedy.begin() + static_cast<int64_t>(done),
                                    prompt.greedy.end());
    EXPECT_EQ(TokensOf(golden.RunToEnd(), 1), rest) << done;
  }
}

std::vector<std::string> AllModels() {
  std::vector<std::string> folders = {kBundled};
  for (const char* family : kFamilies) folders.push_back(Checkpoint(family));
  return folders;
}

INSTANTIATE_TEST_SUITE_P(Models, SameBitsTest, ::testing::ValuesIn(AllModels()),
                         [](const auto& info) {
                           auto name = std::filesystem::path(info.param).filename().string();
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace expertflow::testing

// The main job, through real processes: the same text however it is run, and clean ends.
#include <map>
#include <nlohmann/json.hpp>

#include "common/mapped_file.h"
#include "tests/process/program.h"

namespace expertflow::testing {
namespace {

struct Reference {
  std::string prompt;
  std::string text;  // the greedy continuation, as the reference decodes it
  size_t tokens = 0;
};

Reference BundledReference(size_t index) {
  const auto json = nlohmann::json::parse(ReadAll(kModel + "/reference.json"));
  const auto& prompt = json["prompts"][index];
  return {prompt["text"], prompt["greedy_text"], prompt["greedy_ids"].size()};
}

std::string Text(const std::vector<std::string>& extra, const Reference& reference) {
  std::vector<std::string> arguments = {"run",
                                        "--model",
                                        kModel,
                                        "--prompt",
                                        reference.prompt,
                                        "--max-tokens",
                                        std::to_string(reference.tokens)};
  arguments.insert(arguments.end(), extra.begin(), extra.end());
  Program program(arguments);
  EXPECT_EQ(program.Wait(), 0) << program.err();
  program.ExpectNothingLeft();
  return program.out();
}

TEST(RunTest, FIELD_10_AnyNumberOfWorkersAndAnyCacheGiveTheReferencesText) {
  const Reference reference = BundledReference(0);
  const std::vector<std::vector<std::string>> settings = {
      {"--workers", "1"},
      {"--workers", "2", "--expert-memory", "30%", "--link", "4GB/s,10us"},
      {"--workers", "4", "--expert-memory", "10%", "--prefetch", "off"},
      {"--workers", "1", "--expert-memory", "0"},
  };
  for (const auto& setting : settings) {
    const std::string text = Text(setting, reference);
    EXPECT_EQ(text.substr(0, reference.text.size()), reference.text);
  }
}

TEST(RunTest, SampledTextDependsOnTheSeedAlone) {
  const Reference reference = BundledReference(1);
  const std::vector<std::string> sampled = {"--temperature", "0.9", "--top-p", "0.95"};
  const auto with = [&](std::vector<std::string> extra) {
    extra.insert(extra.end(), sampled.begin(), sampled.end());
    return Text(extra, reference);
  };
  const std::string text = with({"--seed", "1"});
  EXPECT_EQ(with({"--seed", "1", "--workers", "2", "--expert-memory", "15%"}), text);
  EXPECT_NE(with({"--seed", "2"}), text);
}

TEST(RunTest, ReportSaysThatTheTokensAreThoseOfAllExpertsResident) {
  Program program({"run", "--model", kModel, "--workers", "2", "--expert-memory", "30%", "--link",
                   "4GB/s,10us", "-p", "The lighthouse keeper", "-p", "In the beginning",
                   "--max-tokens", "40", "--report", "--check-resident", "--json", "-"});
  EXPECT_EQ(program.Wait(), 0) << program.err();
  const std::string all = program.out() + program.err();
  const size_t plan = all.find("shared store; each of");
  EXPECT_EQ(all.find("shared store; each of", plan + 1), std::string::npos) << "shown twice";
  EXPECT_NE(program.err().find("shared store; each of"), std::string::npos) << program.err();
  for (const char* words : {"same tokens as with all experts resident: yes", "TTFT", "TPOT",
                            "emulated", "expertflow-run"}) {
    EXPECT_NE(all.find(words), std::string::npos) << words << "\n" << all;
  }
  program.ExpectNothingLeft();
}

TEST(RunTest, PackedModelGivesTheSameText) {
  const std::string folder = ::testing::TempDir() + "packed-" + std::to_string(::getpid());
  Program pack({"pack", kModel, "-o", folder});
  ASSERT_EQ(pack.Wait(), 0) << pack.err();
  const Reference reference = BundledReference(2);
  Program program({"run", "--model", folder, "--workers", "2", "--expert-memory", "30%", "--prompt",
                   reference.prompt, "--max-tokens", std::to_string(reference.tokens)});
  EXPECT_EQ(program.Wait(), 0) << program.err();
  EXPECT_EQ(program.out().substr(0, reference.text.size()), reference.text);
  program.ExpectNothingLeft();
  std::filesystem::remove_all(folder);
}

// Two workers with room for 30 % of the experts against a reference.
void ExpectWholeJobEqualsTheReference(const std::string& model, int route_mismatches_max) {
  const std::string file = ::testing::TempDir() + "compare-" + std::to_string(::getpid());
  Program program(
      {"compare", "--model", model, "--workers", "2", "--expert-memory", "30%", "--json", file});
  EXPECT_EQ(program.Wait(), 0) << program.err();
  const auto json = nlohmann::json::parse(ReadAll(file));
  EXPECT_LE(json["max_abs_logit_diff"].get<double>(), 2e-3);
  EXPECT_LE(json["route_mismatches"].get<int>(), route_mismatches_max);
  EXPECT_LE(json["route_order_differences"].get<int>(), 2);  // one pair of almost equal weights
  EXPECT_EQ(json["greedy_mismatches"].get<int>(), 0);
  EXPECT_GT(json["route_decisions"].get<int>(), 500);
  std::printf("%s: max |logit diff| %.2g\n", model.c_str(),
              json["max_abs_logit_diff"].get<double>());
  program.ExpectNothingLeft();
  std::filesystem::remove(file);
}

TEST(CompareTest, WholeJobEqualsTheReference) {
  ExpectWholeJobEqualsTheReference(kModel, 3);
}

class CompareFamilyTest : public ::testing::TestWithParam<const char*> {};

TEST_P(CompareFamilyTest, WholeJobEqualsTheReference) {
  const std::string name = GetParam();
  ExpectWholeJobEqualsTheReference(EXPERTFLOW_SOURCE_DIR "/tests/golden/checkpoints/" + name, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, CompareFamilyTest,
                         ::testing::Values("qwen2_moe", "qwen2_moe_gqa", "qwen3_moe", "mixtral",
                                           "olmoe", "glm4_moe", "gpt_oss", "granite_moe",
                                           "deepseek_v2_lite", "deepseek_v3"),
                         [](const auto& info) { return std::string(info.param); });

TEST(CompareTest, ADifferenceIsAFailure) {
  Program program({"compare", "--model", kModel, "--tolerance", "1e-9"});
  EXPECT_EQ(program.Wait(), 1) << program.out() << program.err();
}

TEST(StatusTest, ShowsTheRunningJob) {
  Program program({"run", "--model", kModel, "--workers", "2", "--expert-memory", "20%", "--link",
                   "100MB/s", "-p", "The", "--max-tokens", "1500", "--ignore-eos"});
  ASSERT_TRUE(program.Generating()) << program.err();
  Program status({"status"}, {"XDG_RUNTIME_DIR=" + program.folder()});
  EXPECT_EQ(status.Wait(), 0) << status.err();
  for (const char* words : {"coordinator", "store", "worker", "command line", "default"}) {
    EXPECT_NE(status.out().find(words), std::string::npos) << words << "\n" << status.out();
  }
  Program metrics({"status", "--metrics"}, {"XDG_RUNTIME_DIR=" + program.folder()});
  EXPECT_EQ(metrics.Wait(), 0) << metrics.err();
  EXPECT_NE(metrics.out().find("# TYPE expertflow_"), std::string::npos) << metrics.out();
  ::kill(program.pid(), SIGINT);
  EXPECT_EQ(program.Wait(), 130);
  EXPECT_GT(program.out().size(), 20U);  // what was generated is kept
  program.ExpectNothingLeft();
}

TEST(TraceTest, ShowsStepsLayersCopiesAndStallsOfEachWorker) {
  const std::string folder = ::testing::TempDir() + "trace-" + std::to_string(::getpid());
  std::filesystem::create_directory(folder);
  Program program({"run", "--model", kModel, "--expert-memory", "20%", "--link", "500MB/s", "-p",
                   "The", "--max-tokens", "20", "--trace", folder + "/run.eft"});
  ASSERT_EQ(program.Wait(), 0) << program.err();
  std::vector<std::string> arguments = {"trace", "--perfetto", folder + "/perfetto.json"};
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    arguments.push_back(entry.path().string());
  }
  ASSERT_EQ(arguments.size(), 4U);  // one worker
  Program trace(arguments);
  ASSERT_EQ(trace.Wait(), 0) << trace.err();
  const auto json = nlohmann::json::parse(ReadAll(folder + "/perfetto.json"));
  std::map<std::string, int> count;
  for (const auto& event : json["traceEvents"]) ++count[event.value("cat", "meta")];
  EXPECT_EQ(count["sequence"], 2);  // its begin and its end
  EXPECT_EQ(count["step"], 20);     // the prompt's, and one for each token but the last
  EXPECT_EQ(count["layer"], 20 * 12);
  EXPECT_GT(count["demand"], 0);
  EXPECT_GT(count["stall"], 0);
  std::filesystem::remove_all(folder);
}

// One file, however many workers there were, and nothing else stays.
TEST(RecordTest, WritesTheRoutingOfAllWorkersIntoOneFile) {
  const std::string folder = ::testing::TempDir() + "record-" + std::to_string(::getpid());
  std::filesystem::create_directory(folder);
  const std::string file = folder + "/run.eft";
  Program program({"run", "--model", kModel, "--workers", "2", "-p", "The", "-p", "When", "-p", "A",
                   "-p", "If", "--max-tokens", "20", "--ignore-eos", "--record", file});
  ASSERT_EQ(program.Wait(), 0) << program.err();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  Program inspect({"trace", "inspect", file, "--json", "-"});
  ASSERT_EQ(inspect.Wait(), 0) << inspect.err();
  const auto json = nlohmann::json::parse(inspect.out())["traces"][0];
  EXPECT_EQ(json["sequences"], 4);
  EXPECT_EQ(json["rows"].get<int>() - json["prompt_rows"].get<int>(), 4 * 19);
  EXPECT_FALSE(json["truncated"].get<bool>());
  EXPECT_EQ(json["config"]["sequences_max"], 16);
  std::filesystem::remove_all(folder);
}

TEST(ForecasterTest, FIELD_04_FittedToARecordingItRanksTheCacheAndChangesNoToken) {
  const std::string folder = ::testing::TempDir() + "forecaster-" + std::to_string(::getpid());
  std::filesystem::create_directory(folder);
  const std::string trace = folder + "/run.eft";
  const std::string forecaster = folder + "/run.efn";
  Program record({"run", "--model", kModel, "-p", "The", "-p", "When", "-p", "A", "--max-tokens",
                  "120", "--ignore-eos", "--record", trace});
  ASSERT_EQ(record.Wait(), 0) << record.err();
  Program train({"train", trace, "-o", forecaster});
  ASSERT_EQ(train.Wait(), 0) << train.err();

  const Reference reference = BundledReference(0);
  const std::string json_file = folder + "/run.json";
  const std::string text = Text({"--workers", "2", "--expert-memory", "25%", "--forecaster",
                                 forecaster, "--stride", "3", "--json", json_file},
                                reference);
  EXPECT_EQ(text.substr(0, reference.text.size()), reference.text);
  const std::string json = ReadAll(json_file);
  EXPECT_NE(json.find("run.efn"), std::string::npos) << json;
  EXPECT_NE(json.find("tiny-moe/predictor.efp"), std::string::npos) << "found by itself\n" << json;
  // However much they take: both work all the time, alone in a batch and together with others.
  const auto lasting = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--expert-memory", "25%", "--forecaster", forecaster, "--policy-time",
                             "1000000", "--json", json_file});
    const std::string same = Text(more, reference);
    EXPECT_NE(same.find(reference.text), std::string::npos) << same;
    for (const char* on : {"\"forecast_on\": true", "\"predictor_on\": true"}) {
      EXPECT_NE(ReadAll(json_file).find(on), std::string::npos) << on;
    }
  };
  lasting({"--link", "1GB/s"});
  lasting({"--prompt", "In the beginning", "--prompt", "A list", "--stride", "4"});
  lasting({"--link", "1GB/s", "--stride", "3-4"});
  const std::string bounded = ReadAll(json_file);
  EXPECT_TRUE(bounded.find("\"stride\": 3") != std::string::npos ||
              bounded.find("\"stride\": 4") != std::string::npos)
      << bounded;

  // Beside a model it is used by itself, and what is wrong with it is said.
  const std::string model = folder + "/model";
  std::filesystem::copy(EXPERTFLOW_SOURCE_DIR "/tests/golden/checkpoints/qwen2_moe", model);
  std::filesystem::copy(forecaster, model + "/forecaster.efn");
  Program other(
      {"run", "--model", model, "--expert-memory", "50%", "-p", "x", "--max-tokens", "2"});
  EXPECT_EQ(other.Wait(), 2) << other.err();
  EXPECT_NE(other.err().find("forecaster.efn: fitted to 12 layers"), std::string::npos)
      << other.err();
  std::filesystem::resize_file(model + "/forecaster.efn", 1000);
  Program damaged(
      {"run", "--model", model, "--expert-memory", "50%", "-p", "x", "--max-tokens", "2"});
  EXPECT_EQ(damaged.Wait(), 2) << damaged.err();
  EXPECT_NE(damaged.err().find("--forecaster off"), std::string::npos) << damaged.err();
  Program off({"run", "--model", model, "--expert-memory", "50%", "-p", "x", "--max-tokens", "2",
               "--forecaster", "off"});
  EXPECT_EQ(off.Wait(), 0) << off.err();
  std::filesystem::remove_all(folder);
}

// FIELD rows 45 and 46, and the list: one line that names the thing, exit code 2, nothing
// started.
TEST(BadInputTest, IsRefusedInOneLine) {
  const std::string broken = ::testing::TempDir() + "broken-" + std::to_string(::getpid());
  std::filesystem::remove_all(broken);
  std::filesystem::copy(kModel, broken);
  std::filesystem::resize_file(broken + "/model.safetensors", 1'000'000);
  const struct {
    std::vector<std::string> arguments;
    std::vector<const char*> words;
    bool serve = false;
  } cases[] = {
      {{"--model", kModel, "--workers", "0"}, {"--workers", "0"}},
      {{"--model", kModel, "--expert-memory", "1KB"}, {"--expert-memory", "expert"}},
      {{"--model", kModel, "--expert-memory", "130%"}, {"--expert-memory", "130%"}},
      {{"--model", kModel, "--link", "fast"}, {"--link", "fast"}},
      {{"--model", kModel, "--kernels", "avx9"}, {"--kernels", "avx9"}},
      {{"--model", kModel, "--no-such-option"}, {"--no-such-option"}},
      {{"--model", kModel, "--stride", "9"}, {"--stride", "9"}},
      {{"--model", kModel, "--stride", "4-2"}, {"--stride", "4-2", "4-6"}},
      {{"--model", kModel, "--expert-memory", "9%", "--forecaster", "/none"},
       {"--forecaster", "/none"}},
      {{"--model", kModel, "--expert-memory", "9%", "--predictor", kModel + "/config.json"},
       {"--predictor", "config.json"}},
      {{"--model", "/nonexistent"}, {"/nonexistent"}},
      {{"--model", broken}, {"model.safetensors"}},
      {{"--model", kModel, "--tokenizer", kModel + "/config.json"}, {"config.json"}},
      {{"--model", kModel, "--tls-cert", "/none.pem"}, {"--tls-cert", "--tls-key"}, true},
      {{"--model", kModel, "--tls-cert", "/none.pem", "--tls-key", "/k"}, {"/none.pem"}, true},
  };
  for (const auto& test : cases) {
    std::vector<std::string> arguments =
        test.serve ? std::vector<std::string>{"serve"} : std::vector<std::string>{"run", "-p", "x"};
    arguments.insert(arguments.end(), test.arguments.begin(), test.arguments.end());
    Program program(arguments);
    EXPECT_EQ(program.Wait(), 2) << program.err();
    const std::string err = program.err();
    for (const char* words : test.words) {
      EXPECT_NE(err.find(words), std::string::npos) << words << "\n" << err;
    }
    EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
    program.ExpectNothingLeft();
  }
  std::filesystem::remove_all(broken);
}

TEST(BadInputTest, FIELD_45_AMisspeltVariableIsNamedOnceAndTheRunGoesOn) {
  const std::string folder = ::testing::TempDir() + "variables-" + std::to_string(::getpid());
  std::filesystem::create_directory(folder);
  Program program({"run", "--model", kModel, "--workers", "2", "-p", "x", "--max-tokens", "2"},
                  {"XDG_RUNTIME_DIR=" + folder, "EXPERTFLOW_EXPERT_MEMROY=30%"});
  EXPECT_EQ(program.Wait(), 0);
  const std::string err = program.err();
  EXPECT_NE(err.find("EXPERTFLOW_EXPERT_MEMROY is ignored"), std::string::npos) << err;
  EXPECT_NE(err.find("EXPERTFLOW_EXPERT_MEMORY?"), std::string::npos) << err;
  EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
  program.ExpectNothingLeft();
  std::filesystem::remove_all(folder);
}

TEST(BadInputTest, APromptLongerThanTheContextIsRefused) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "word ";
  Program program({"run", "--model", kModel, "-p", text});
  EXPECT_EQ(program.Wait(), 2) << program.err();
  EXPECT_NE(program.err().find("2048"), std::string::npos) << program.err();
  program.ExpectNothingLeft();
}

}  // namespace
}  // namespace expertflow::testing

// Precedence, provenance, and the refusal of every kind of bad value.
#include "launch/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/unit/launch/launch_testing.h"

namespace expertflow {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(OptionsTest, DefaultsHoldWhenNobodySaysAnything) {
  const Result<Options> options = LoadOptions(Command::kRun, {});
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_EQ(options->Integer("workers"), 1);
  EXPECT_EQ(options->Integer("max-tokens"), 128);
  EXPECT_EQ(options->Bytes("transfer-chunk"), 1U << 20);
  EXPECT_EQ(options->DurationNs("heartbeat-timeout"), 10'000'000'000);
  EXPECT_TRUE(options->Switch("prefetch"));
  EXPECT_FALSE(options->Flag("report"));
  EXPECT_EQ(options->Source("workers"), OptionSource::kDefault);
  EXPECT_FALSE(options->Given("link"));
}

TEST(OptionsTest, CommandLineBeatsEnvironmentBeatsFileBeatsDefault) {
  const ScratchFolder folder;
  const std::string file = folder.Write("job.toml", "workers = 5\nthreads = 5\nmax-tokens = 5\n");
  const Variables variables = {
      {"EXPERTFLOW_CONFIG", file}, {"EXPERTFLOW_WORKERS", "6"}, {"EXPERTFLOW_THREADS", "6"}};
  const Result<Options> options = LoadOptions(Command::kRun, {"--workers", "7"}, variables);
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_EQ(options->Integer("workers"), 7);
  EXPECT_EQ(options->Source("workers"), OptionSource::kCommandLine);
  EXPECT_EQ(options->Integer("threads"), 6);
  EXPECT_EQ(options->Source("threads"), OptionSource::kEnvironment);
  EXPECT_EQ(options->Origin("threads"), "EXPERTFLOW_THREADS");
  EXPECT_EQ(options->Integer("max-tokens"), 5);
  EXPECT_EQ(options->Source("max-tokens"), OptionSource::kConfigFile);
  EXPECT_EQ(options->Integer("seed"), 0);
  EXPECT_EQ(options->Source("seed"), OptionSource::kDefault);
}

TEST(OptionsTest, ConfigOptionBeatsConfigVariable) {
  const ScratchFolder folder;
  const std::string by_option = folder.Write("a.toml", "workers = 2\n");
  const std::string by_variable = folder.Write("b.toml", "workers = 3\n");
  const Result<Options> options =
      LoadOptions(Command::kRun, {"--config", by_option}, {{"EXPERTFLOW_CONFIG", by_variable}});
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_EQ(options->Integer("workers"), 2);
}

TEST(OptionsTest, AnEmptyVariableCountsAsNotSet) {
  const Result<Options> options =
      LoadOptions(Command::kRun, {}, {{"EXPERTFLOW_WORKERS", ""}, {"EXPERTFLOW_CONFIG", ""}});
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_EQ(options->Source("workers"), OptionSource::kDefault);
}

TEST(OptionsTest, ProvenanceIsShownForEveryOption) {
  const Result<Options> options =
      LoadOptions(Command::kRun, {"--workers", "2", "--stop", "a", "--stop", "b"},
                  {{"EXPERTFLOW_PREFETCH", "off"}});
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  const nlohmann::json json = nlohmann::json::parse(options->ProvenanceJson());
  EXPECT_EQ(json["workers"]["value"], "2");
  EXPECT_EQ(json["workers"]["source"], "command line");
  EXPECT_EQ(json["prefetch"]["value"], "off");
  EXPECT_EQ(json["prefetch"]["source"], "environment");
  EXPECT_EQ(json["kernels"]["source"], "default");
  EXPECT_EQ(json["report"]["value"], "false");
  EXPECT_EQ(json["stop"]["value"], nlohmann::json({"a", "b"}));
  EXPECT_TRUE(json["link"]["value"].is_null());
}

TEST(OptionsTest, ConfigFileTakesTomlTypes) {
  const ScratchFolder folder;
  const std::string file =
      folder.Write("job.toml",
                   "temperature = 0.5\nreport = true\nprefetch = false\nstop = [\"x\", \"y\"]\n"
                   "expert-memory = \"30%\"\n");
  const Result<Options> options = LoadOptions(Command::kRun, {"--config", file});
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_DOUBLE_EQ(options->Number("temperature"), 0.5);
  EXPECT_TRUE(options->Flag("report"));
  EXPECT_FALSE(options->Switch("prefetch"));
  EXPECT_THAT(options->TextList("stop"), ElementsAre("x", "y"));
  EXPECT_TRUE(options->Budget("expert-memory").is_percent);
}

TEST(OptionsTest, ConfigFileMayServeOtherCommandsToo) {
  const ScratchFolder folder;
  const std::string file = folder.Write("job.toml", "max-tokens = 9\nlayers = 2\n");
  EXPECT_TRUE(LoadOptions(Command::kRun, {"--config", file}).ok());
}

TEST(OptionsTest, ConfigFileRefusesUnknownKeysByNameAndLine) {
  const ScratchFolder folder;
  const std::string file = folder.Write("job.toml", "workers = 2\nwrokers = 3\n");
  const Result<Options> options = LoadOptions(Command::kRun, {"--config", file});
  ASSERT_FALSE(options.ok());
  EXPECT_EQ(options.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(options.status().message(),
              AllOf(HasSubstr(file + ":2"), HasSubstr("wrokers"), HasSubstr("(workers?)")));
}

TEST(OptionsTest, ConfigFileRefusesBadValuesByNameAndLine) {
  const ScratchFolder folder;
  const std::string file = folder.Write("job.toml", "\n\nworkers = \"many\"\n");
  const Result<Options> options = LoadOptions(Command::kRun, {"--config", file});
  ASSERT_FALSE(options.ok());
  EXPECT_THAT(options.status().message(),
              AllOf(HasSubstr(file + ":3: workers"), HasSubstr("an integer from 1 to 256"),
                    HasSubstr("\"many\"")));
}

TEST(OptionsTest, ConfigFileThatIsNoTomlIsRefusedWithItsLine) {
  const ScratchFolder folder;
  const std::string file = folder.Write("job.toml", "workers = 2\nthreads = = 3\n");
  const Result<Options> options = LoadOptions(Command::kRun, {"--config", file});
  ASSERT_FALSE(options.ok());
  EXPECT_EQ(options.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(options.status().message(), HasSubstr(file + ":2"));
}

TEST(OptionsTest, ConfigFileThatIsMissingIsNamed) {
  const Result<Options> options = LoadOptions(Command::kRun, {"--config", "/nowhere/x.toml"});
  ASSERT_FALSE(options.ok());
  EXPECT_THAT(options.status().message(), HasSubstr("/nowhere/x.toml"));
}

TEST(OptionsTest, ConfigFileRefusesWhatIsForTheCommandLineOnly) {
  const ScratchFolder folder;
  const std::string file = folder.Write("job.toml", "prompt = \"x\"\n");
  const Result<Options> options = LoadOptions(Command::kRun, {"--config", file});
  ASSERT_FALSE(options.ok());
  EXPECT_THAT(options.status().message(), HasSubstr("prompt"));
}

TEST(OptionsTest, BadVariableIsNamed) {
  const Result<Options> options = LoadOptions(Command::kRun, {}, {{"EXPERTFLOW_WORKERS", "two"}});
  ASSERT_FALSE(options.ok());
  EXPECT_THAT(options.status().message(),
              AllOf(HasSubstr("EXPERTFLOW_WORKERS"), HasSubstr("\"two\"")));
}

TEST(OptionsTest, ArgumentsForARoleGiveTheSameValues) {
  const Result<Options> run = LoadOptions(
      Command::kRun,
      {"--workers", "3", "--link", "4GB/s,10us", "--no-restart", "--prompt", "x", "--report"},
      {{"EXPERTFLOW_THREADS", "2"}});
  ASSERT_TRUE(run.ok()) << run.status().ToString();
  const Result<Options> worker = LoadOptions(Command::kWorker, run->ArgumentsFor(Command::kWorker));
  ASSERT_TRUE(worker.ok()) << worker.status().ToString();
  EXPECT_EQ(worker->Integer("workers"), 3);
  EXPECT_EQ(worker->Integer("threads"), 2);
  EXPECT_EQ(worker->Link("link").bytes_per_second, 4'000'000'000U);
  EXPECT_EQ(worker->Link("link").latency_ns, 10'000);
  EXPECT_TRUE(worker->Flag("no-restart"));
  EXPECT_EQ(worker->Source("kernels"), OptionSource::kDefault);
}

TEST(OptionsTest, WithoutRestoresTheDefault) {
  const Result<Options> options = LoadOptions(Command::kRun, {"--expert-memory", "30%"});
  ASSERT_TRUE(options.ok());
  EXPECT_TRUE(options->Given("expert-memory"));
  EXPECT_FALSE(options->Without("expert-memory").Given("expert-memory"));
}

struct BadValue {
  Command command;
  std::string option;
  std::string text;
  std::string expected;  // part of the message
};

class BadValueTest : public testing::TestWithParam<BadValue> {};

TEST_P(BadValueTest, FIELD_71_IsRefusedWithOptionExpectedAndFound) {
  const BadValue& bad = GetParam();
  const Result<Options> options =
      LoadOptions(bad.command, {"--" + bad.option, bad.text, "--output", "o", "c.json"});
  const Result<Options> without_output = LoadOptions(bad.command, {"--" + bad.option, bad.text});
  const Status status = bad.command == Command::kSynth ? options.status() : without_output.status();
  ASSERT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
  EXPECT_THAT(status.message(), AllOf(HasSubstr("--" + bad.option), HasSubstr(bad.expected),
                                      HasSubstr("\"" + bad.text + "\"")));
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadValueTest,
    testing::Values(BadValue{Command::kRun, "workers", "0", "from 1 to 256"},
                    BadValue{Command::kRun, "workers", "257", "from 1 to 256"},
                    BadValue{Command::kRun, "workers", "2.5", "an integer"},
                    BadValue{Command::kRun, "workers", "99999999999999999999", "an integer"},
                    BadValue{Command::kRun, "workers", "", "an integer"},
                    BadValue{Command::kRun, "max-tokens", "0", "from 1"},
                    BadValue{Command::kRun, "temperature", "-1", "from 0 to 100"},
                    BadValue{Command::kRun, "temperature", "nan", "a number"},
                    BadValue{Command::kRun, "temperature", "inf", "a number"},
                    BadValue{Command::kRun, "top-p", "1.5", "from 0 to 1"},
                    BadValue{Command::kRun, "top-k", "-1", "an integer"},
                    BadValue{Command::kRun, "seed", "-3", "an integer of at least 0"},
                    BadValue{Command::kRun, "kernels", "sse",
                             "one of auto, scalar, avx2, avx512, amx"},
                    BadValue{Command::kRun, "device", "tpu", "cpu"},
                    BadValue{Command::kRun, "device-memory", "gpu", "one of host, private"},
                    BadValue{Command::kRun, "expert-memory", "30 apples", "such as 64MiB"},
                    BadValue{Command::kRun, "expert-memory", "130%", "such as 30%"},
                    BadValue{Command::kRun, "expert-memory", "-1", "such as 64MiB"},
                    BadValue{Command::kRun, "kv-memory", "lots", "a size"},
                    BadValue{Command::kRun, "transfer-chunk", "1", "at least 4096"},
                    BadValue{Command::kRun, "transfer-chunk", "8GiB", "at most 1073741824"},
                    BadValue{Command::kRun, "link", "12GB", "a rate"},
                    BadValue{Command::kRun, "link", "0GB/s", "a rate"},
                    BadValue{Command::kRun, "link", "12GB/s,soon", "a latency"},
                    BadValue{Command::kRun, "prefetch", "maybe", "one of on, off"},
                    BadValue{Command::kRun, "start-timeout", "10", "a time"},
                    BadValue{Command::kRun, "heartbeat-timeout", "0s", "a time of at least"},
                    BadValue{Command::kRun, "streaming-buffers", "0", "from 1 to 64"},
                    BadValue{Command::kRun, "prefill-tokens", "0", "from 1"},
                    BadValue{Command::kRun, "sequences-max", "0", "from 1"},
                    BadValue{Command::kRun, "threads", "-2", "from 0"},
                    BadValue{Command::kRun, "log-level", "loud", "one of debug"},
                    BadValue{Command::kRun, "model", "", "some text"},
                    BadValue{Command::kSynth, "dtype", "int8", "one of bf16, f16, f32"},
                    BadValue{Command::kSynth, "layers", "-1", "an integer"},
                    BadValue{Command::kCompare, "tolerance", "small", "a number"},
                    BadValue{Command::kCompare, "route-mismatch-max", "2", "from 0 to 1"},
                    BadValue{Command::kStore, "load-threads", "1000", "from 0 to 256"},
                    BadValue{Command::kCoordinator, "stores", "0", "from 1"},
                    BadValue{Command::kWorker, "job-pid", "-1", "from 0"}),
    [](const testing::TestParamInfo<BadValue>& info) {
      std::string name = info.param.option + std::to_string(info.index);
      for (char& c : name) c = c == '-' ? '_' : c;
      return name;
    });

}  // namespace
}  // namespace expertflow

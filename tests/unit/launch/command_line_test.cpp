#include "launch/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>
#include <utility>

#include "tests/unit/launch/launch_testing.h"

namespace expertflow {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(CommandLineTest, UnknownOptionIsNamedAndTheLikelyOneOffered) {
  const Result<Options> options = LoadOptions(Command::kRun, {"--wrokers", "2"});
  ASSERT_EQ(options.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(options.status().message(), AllOf(HasSubstr("--wrokers"), HasSubstr("--workers?"),
                                                HasSubstr("expertflow run --help")));
}

TEST(CommandLineTest, OptionOfAnotherCommandIsUnknown) {
  EXPECT_EQ(LoadOptions(Command::kClean, {"--prompt", "x"}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(CommandLineTest, SurplusWordIsRefused) {
  const Result<Options> options = LoadOptions(Command::kRun, {"hello"});
  ASSERT_EQ(options.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(options.status().message(), HasSubstr("hello"));
}

TEST(CommandLineTest, MissingValueIsNamed) {
  const Result<Options> options = LoadOptions(Command::kRun, {"--workers"});
  ASSERT_EQ(options.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(options.status().message(), HasSubstr("--workers"));
}

TEST(CommandLineTest, MissingRequiredArgumentIsNamed) {
  EXPECT_THAT(LoadOptions(Command::kInspect, {}).status().message(), HasSubstr("PATH"));
  EXPECT_THAT(LoadOptions(Command::kPack, {"model"}).status().message(), HasSubstr("--output"));
}

TEST(CommandLineTest, ValuesMayLookLikeOptionsOrBeRepeated) {
  const Result<Options> options = LoadOptions(
      Command::kRun, {"-p", "--workers", "--prompt", "two words", "--prompt=-x", "--stop", "\n"});
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_THAT(options->TextList("prompt"), ElementsAre("--workers", "two words", "-x"));
  EXPECT_THAT(options->TextList("stop"), ElementsAre("\n"));
  EXPECT_FALSE(options->Given("workers"));
}

TEST(CommandLineTest, TheLastOfASingleOptionWins) {
  const Result<Options> options = LoadOptions(Command::kRun, {"--workers", "2", "--workers", "3"});
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_EQ(options->Integer("workers"), 3);
}

TEST(CommandLineTest, HelpComesBeforeMissingArguments) {
  const std::vector<std::string> words = {"--help"};
  const Result<CommandLine> line = ParseCommandLine(Command::kPack, words);
  ASSERT_TRUE(line.ok()) << line.status().ToString();
  EXPECT_TRUE(line->help);
}

TEST(CommandLineTest, HelpOfEachCommandHasAllItsOptionsAndFits) {
  for (const CommandInfo& info : AllCommands()) {
    const std::string help = HelpText(info.command);
    // A long choice goes on in the next line.
    const std::string unbroken = std::regex_replace(help, std::regex("\\|\n +"), "|");
    for (const OptionSpec& spec : AllOptions()) {
      if (!spec.For(info.command)) continue;
      EXPECT_THAT(unbroken,
                  HasSubstr(std::string(
                      spec.name == "path" || spec.traits.positional ? spec.value_name : spec.name)))
          << info.name;
      if (!spec.default_text.empty() && spec.traits.default_note.empty() && !spec.traits.required) {
        EXPECT_THAT(help, HasSubstr(std::string(spec.default_text))) << info.name;
      }
    }
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
    EXPECT_THAT(OverviewText(), HasSubstr(std::string(info.name)));
  }
}

TEST(OptionTableTest, NamesAreUniqueWithinACommandAndDefaultsValid) {
  std::set<std::pair<std::string_view, std::string_view>> seen;
  for (const OptionSpec& spec : AllOptions()) {
    EXPECT_NE(spec.commands, 0U) << spec.name;
    EXPECT_FALSE(spec.help.empty()) << spec.name;
    for (const CommandInfo& info : AllCommands()) {
      if (!spec.For(info.command)) continue;
      EXPECT_TRUE(seen.insert({info.name, spec.name}).second) << info.name << " " << spec.name;
    }
    if (spec.default_text.empty()) continue;
    EXPECT_TRUE(CheckOptionValue(spec, spec.default_text, spec.name).ok()) << spec.name;
  }
}

// launch/mpmd gives one list of options to all roles.
TEST(OptionTableTest, RolesTakeEachOthersOptions) {
  for (const OptionSpec& spec : AllOptions()) {
    if (!spec.For(Command::kWorker) || spec.traits.command_line_only) continue;
    EXPECT_TRUE(spec.For(Command::kStore) && spec.For(Command::kCoordinator)) << spec.name;
  }
}

}  // namespace
}  // namespace expertflow

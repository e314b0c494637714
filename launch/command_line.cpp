#include "launch/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>
#include <string_view>
#include <utility>
#include <vector>

#include "launch/nearest_name.h"
#include "launch/option_values.h"

namespace expertflow {
namespace {

constexpr size_t kIndent = 2;
constexpr size_t kHelpColumn = 34;
constexpr size_t kHelpWidth = 100;
constexpr size_t kChoiceShown = 60;

// "a|b|c", with a line break where it gets too long.
std::string BrokenChoice(std::string_view choice) {
  std::string text;
  size_t column = kIndent;
  for (const std::string_view word : ChoiceWords(choice)) {
    if (!text.empty()) text += '|';
    if (column + word.size() + 1 > kHelpWidth) {
      text += '\n';
      text.append(kIndent, ' ');
      column = kIndent;
    }
    text += word;
    column += word.size() + 1;
  }
  return text;
}

std::string Flags(const OptionSpec& spec) {
  if (spec.type == OptionType::kChoice && spec.traits.positional) {
    return BrokenChoice(spec.value_name);
  }
  if (spec.traits.positional) return std::string(spec.value_name);
  std::string flags = spec.traits.short_name != 0 ? fmt::format("-{}, ", spec.traits.short_name)
                                                  : std::string("    ");
  flags += fmt::format("--{}", spec.name);
  if (!spec.value_name.empty()) flags += fmt::format(" {}", spec.value_name);
  return flags;
}

std::string Explanation(const OptionSpec& spec) {
  std::string text(spec.help);
  const OptionSpec::Traits& traits = spec.traits;
  if (traits.required) {
    text += " (required)";
  } else if (!traits.default_note.empty()) {
    text += fmt::format(" (default: {})", traits.default_note);
  } else if (!spec.default_text.empty()) {
    text += fmt::format(" (default: {})", spec.default_text);
  }
  return text;
}

// Appends `text` from kHelpColumn on, broken between words.
void AppendWrapped(std::string_view text, std::string* out) {
  size_t column = kHelpColumn;
  bool first = true;
  while (!text.empty()) {
    const size_t space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    if (!first && column + 1 + word.size() > kHelpWidth) {
      *out += '\n';
      out->append(kHelpColumn, ' ');
      column = kHelpColumn;
    } else if (!first) {
      *out += ' ';
      ++column;
    }
    *out += word;
    column += word.size();
    first = false;
    text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
  }
  *out += '\n';
}

void AppendOption(std::string_view flags, std::string_view explanation, std::string* out) {
  std::string left = fmt::format("  {}", flags);
  if (left.size() + 2 > kHelpColumn) {
    *out += left + '\n';
    out->append(kHelpColumn, ' ');
  } else {
    left.resize(kHelpColumn, ' ');
    *out += left;
  }
  AppendWrapped(explanation, out);
}

// "--wrokers" -> " (--workers?)"
std::string Suggestion(Command command, std::string_view word) {
  std::string_view name = word.substr(std::min(word.find_first_not_of('-'), word.size()));
  name = name.substr(0, name.find('='));
  std::vector<std::string> names;
  for (const OptionSpec& spec : AllOptions()) {
    if (spec.For(command) && !spec.traits.positional) names.emplace_back(spec.name);
  }
  const std::string_view nearest = NearestName(name, names);
  return nearest.empty() ? std::string() : fmt::format(" (--{}?)", nearest);
}

// Where CLI11 puts an option's words.
struct Binding {
  const OptionSpec* spec = nullptr;
  std::vector<std::string> texts;
  bool flag = false;
  CLI::Option* option = nullptr;
};

void Bind(CLI::App* app, Binding* binding) {
  const OptionSpec& spec = *binding->spec;
  std::string names =
      spec.traits.positional ? std::string(spec.name) : fmt::format("--{}", spec.name);
  if (spec.traits.short_name != 0) names += fmt::format(",-{}", spec.traits.short_name);
  if (spec.type == OptionType::kFlag) {
    binding->option = app->add_flag(names, binding->flag);
    return;
  }
  binding->option = app->add_option(names, binding->texts)->expected(1)->allow_extra_args(false);
  if (spec.type == OptionType::kTextList) {
    if (spec.traits.positional) {
      binding->option->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args(true);
    }
    binding->option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  } else {
    binding->option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
}

}  // namespace

Result<CommandLine> ParseCommandLine(Command command, std::span<const std::string> arguments) {
  CLI::App app;
  app.set_help_flag();
  bool help = false;
  app.add_flag("-h,--help", help);
  app.allow_extras();
  std::deque<Binding> bindings;
  for (const OptionSpec& spec : AllOptions()) {
    if (!spec.For(command)) continue;
    bindings.push_back({.spec = &spec});
    Bind(&app, &bindings.back());
  }
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    std::string_view what = error.what();
    return InvalidArgument(std::string(what.substr(0, what.find('\n'))));
  }
  CommandLine line{.help = help};
  if (help) return line;
  if (const std::vector<std::string> extras = app.remaining(); !extras.empty()) {
    return InvalidArgument(
        fmt::format("unknown option or surplus word {}{}; see expertflow {} --help", extras.front(),
                    Suggestion(command, extras.front()), InfoOf(command).name));
  }
  for (Binding& binding : bindings) {
    if (binding.option->count() == 0) continue;
    const OptionSpec& spec = *binding.spec;
    if (spec.type == OptionType::kFlag) binding.texts = {binding.flag ? "true" : "false"};
    line.given.push_back({.name = std::string(spec.name),
                          .texts = std::move(binding.texts),
                          .source = OptionSource::kCommandLine,
                          .origin = spec.traits.positional ? std::string(spec.value_name)
                                                           : fmt::format("--{}", spec.name)});
  }
  return line;
}

std::string HelpText(Command command) {
  const CommandInfo& info = InfoOf(command);
  std::string text = fmt::format("usage: expertflow {}", info.name);
  for (const OptionSpec& spec : AllOptions()) {
    if (!spec.For(command) || !spec.traits.positional) continue;
    // A long choice is explained below.
    text += fmt::format(" {}", spec.value_name.size() > kChoiceShown ? "NAME" : spec.value_name);
  }
  text += fmt::format(" [option ...]\n\n{}\n", info.summary);
  if (!info.details.empty()) text += fmt::format("{}\n", info.details);
  text += '\n';
  for (const OptionSpec& spec : AllOptions()) {
    if (spec.For(command)) AppendOption(Flags(spec), Explanation(spec), &text);
  }
  AppendOption("-h, --help", "this text", &text);
  text +=
      "\nSIZE: bytes, or with a unit (KB, MB, GB: powers of 1000; KiB, MiB, GiB: powers of 1024).\n"
      "TIME: with a unit (ns, us, ms, s). RATE: SIZE per second, such as 12GB/s.\n"
      "Options may also be set by EXPERTFLOW_<NAME> or in the config file (docs/options.md).\n";
  return text;
}

std::string OverviewText() {
  std::string text =
      "usage: expertflow COMMAND [option ...]\n\n"
      "Serves Mixture-of-Experts models whose experts do not fit in device memory.\n\n";
  for (const CommandInfo& info : AllCommands()) AppendOption(info.name, info.summary, &text);
  text +=
      "\nexpertflow COMMAND --help shows a command's options; expertflow --version the version.\n";
  return text;
}

}  // namespace expertflow

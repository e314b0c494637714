#include "launch/option_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "common/check.h"
#include "common/units.h"
#include "launch/option_values.h"

namespace expertflow {
namespace {

std::string DescribeRange(const OptionSpec& spec) {
  const double min = spec.traits.min;
  const double max = spec.traits.max;
  return std::isinf(max) ? fmt::format("of at least {}", min)
                         : fmt::format("from {} to {}", min, max);
}

bool InRange(const OptionSpec& spec, double value) {
  return value >= spec.traits.min && value <= spec.traits.max;
}

bool IsValid(const OptionSpec& spec, std::string_view text) {
  switch (spec.type) {
    case OptionType::kFlag: return ParseSwitch(text).has_value();
    case OptionType::kText: return !text.empty();
    case OptionType::kTextList: return true;
    case OptionType::kChoice: {
      const std::vector<std::string_view> words = ChoiceWords(spec.value_name);
      return std::find(words.begin(), words.end(), text) != words.end();
    }
    case OptionType::kInteger: {
      const std::optional<int64_t> value = ParseInteger(text);
      return value && InRange(spec, static_cast<double>(*value));
    }
    case OptionType::kNumber: {
      const std::optional<double> value = ParseNumber(text);
      return value && InRange(spec, *value);
    }
    case OptionType::kBytes: {
      const Result<uint64_t> value = ParseBytes(text);
      return value.ok() && InRange(spec, static_cast<double>(*value));
    }
    case OptionType::kByteBudget: return ParseByteBudget(text).ok();
    case OptionType::kDuration: {
      const Result<int64_t> value = ParseDurationNs(text);
      return value.ok() && InRange(spec, static_cast<double>(*value));
    }
    case OptionType::kLink: return ParseLink(text).ok();
  }
  return false;
}

}  // namespace

const CommandInfo& InfoOf(Command command) {
  const std::span<const CommandInfo> all = AllCommands();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const CommandInfo& info) { return info.command == command; });
  CHECK(found != all.end());
  return *found;
}

const OptionSpec* FindOption(Command command, std::string_view name) {
  for (const OptionSpec& spec : AllOptions()) {
    if (spec.name == name && spec.For(command)) return &spec;
  }
  return nullptr;
}

bool IsOptionName(std::string_view name) {
  const std::span<const OptionSpec> all = AllOptions();
  return std::any_of(all.begin(), all.end(),
                     [&](const OptionSpec& spec) { return spec.name == name; });
}

std::string ExpectedValue(const OptionSpec& spec) {
  switch (spec.type) {
    case OptionType::kFlag: return "true or false";
    case OptionType::kText:
    case OptionType::kTextList: return "some text";
    case OptionType::kChoice: {
      const std::vector<std::string_view> words = ChoiceWords(spec.value_name);
      if (words.size() == 1) return std::string(words[0]);
      return fmt::format("one of {}", fmt::join(words, ", "));
    }
    case OptionType::kInteger: return "an integer " + DescribeRange(spec);
    case OptionType::kNumber: return "a number " + DescribeRange(spec);
    case OptionType::kBytes:
      if (spec.traits.min == 0) return "a size such as 64MiB";
      return fmt::format("a size of at least {} and at most {} bytes, such as 1MiB",
                         static_cast<uint64_t>(spec.traits.min),
                         static_cast<uint64_t>(spec.traits.max));
    case OptionType::kByteBudget: return "a size such as 64MiB, or a share such as 30%";
    case OptionType::kDuration:
      return fmt::format("a time of at least {} such as 10s",
                         FormatDurationNs(static_cast<int64_t>(spec.traits.min)));
    case OptionType::kLink: return "a rate, and a latency if wanted, such as 12GB/s,10us";
  }
  return "";
}

Status CheckOptionValue(const OptionSpec& spec, std::string_view text, std::string_view origin) {
  if (IsValid(spec, text)) return OkStatus();
  return InvalidArgument(
      fmt::format("{}: expected {}, found \"{}\"", origin, ExpectedValue(spec), text));
}

}  // namespace expertflow

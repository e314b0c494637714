#include "model/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <utility>

#include "model/tokenizer/regex_syntax.h"
#include "model/tokenizer/utf8.h"

namespace expertflow {
namespace {

constexpr size_t kPatternBytesMax = 64 << 10;
constexpr uint32_t kGroupDepthMax = 100;
// Of one search. Real pre-tokenizers need a few dozen, but may step back over a whole run of
// blanks.
constexpr size_t kStepsMax = 1'000'000;
constexpr size_t kStepsPerByteMax = 16;
constexpr uint32_t kHeapKibMax = 64 << 10;

template <auto Free>
struct FreeWith {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};

using Code = std::unique_ptr<pcre2_code, FreeWith<pcre2_code_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, FreeWith<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, FreeWith<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, FreeWith<pcre2_match_data_free>>;

std::string ErrorText(int error) {
  PCRE2_UCHAR text[256];
  if (pcre2_get_error_message(error, text, sizeof(text)) < 0) return fmt::format("error {}", error);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct Regex::Program {
  std::string shown;  // the pattern as the file has it
  Code code;
};

Regex::Regex(std::unique_ptr<const Program> program) : program_(std::move(program)) {}
Regex::Regex(Regex&& other) noexcept = default;
Regex& Regex::operator=(Regex&& other) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::Compile(std::string_view pattern) {
  if (pattern.size() > kPatternBytesMax) {
    return InvalidArgument(fmt::format("a regex has {} bytes, at most {} are allowed",
                                       pattern.size(), kPatternBytesMax));
  }
  ASSIGN_OR_RETURN(const std::string translated, TranslateRegex(pattern));
  return CompileProgram(pattern, translated, false);
}

Result<Regex> Regex::Literal(std::string_view text) {
  return CompileProgram(text, std::string(text), true);
}

Result<Regex> Regex::CompileProgram(std::string_view shown, const std::string& pcre_pattern,
                                    bool literal) {
  auto program = std::make_unique<Program>();
  program->shown = shown;
  const CompileContext context(pcre2_compile_context_create(nullptr));
  if (context == nullptr) return ResourceExhausted("no memory to compile a regex");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), kGroupDepthMax);

  const uint32_t options = literal ? PCRE2_UTF | PCRE2_LITERAL
                                   : PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE |
                                         PCRE2_NO_AUTO_CAPTURE | PCRE2_NEVER_BACKSLASH_C;
  int error = 0;
  PCRE2_SIZE error_at = 0;
  program->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pcre_pattern.data()),
                                    pcre_pattern.size(), options, &error, &error_at,
                                    context.get()));
  if (program->code == nullptr) {
    return InvalidArgument(fmt::format("cannot use regex '{}': {} (near '{}')", shown,
                                       ErrorText(error), pcre_pattern.substr(error_at, 16)));
  }
  // Without JIT (no executable memory) the interpreter does the same, slower.
  static_cast<void>(pcre2_jit_compile(program->code.get(), PCRE2_JIT_COMPLETE));
  return Regex(std::move(program));
}

Status Regex::FindAll(std::string_view text, std::vector<Match>* matches) const {
  matches->clear();
  const MatchData data(pcre2_match_data_create(1, nullptr));
  const MatchContext limits(pcre2_match_context_create(nullptr));
  if (data == nullptr || limits == nullptr) {
    return ResourceExhausted("no memory to search with a regex");
  }
  const size_t steps_max = kStepsMax + kStepsPerByteMax * text.size();
  pcre2_set_match_limit(limits.get(),
                        static_cast<uint32_t>(std::min<size_t>(steps_max, UINT32_MAX)));
  pcre2_set_heap_limit(limits.get(), kHeapKibMax);
  const PCRE2_SIZE* const bounds = pcre2_get_ovector_pointer(data.get());
  const auto search = [&](size_t from, uint32_t options) {
    return pcre2_match(program_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                       from, PCRE2_NO_UTF_CHECK | options, data.get(), limits.get());
  };

  size_t from = 0;
  while (from <= text.size()) {
    int found = search(from, 0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = search(from, PCRE2_NO_JIT);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      return InvalidArgument(
          fmt::format("regex '{}' gives up on this text: {}", program_->shown, ErrorText(found)));
    }
    const Match match = {bounds[0], bounds[1]};
    const bool empty = match.begin >= match.end;
    if (empty && !matches->empty() && matches->back().end == match.end) {
      if (from == text.size()) break;
      from += NextUtf8(text.substr(from)).bytes;
      continue;
    }
    matches->push_back({std::min(match.begin, match.end), match.end});
    from = match.end;
  }
  return OkStatus();
}

}  // namespace expertflow

// A regular expression of a tokenizer.json, compiled with PCRE2 (Unicode, JIT where the machine
// allows it). Immutable; any thread.
//
// The files are written for Oniguruma, so the pattern is translated first (regex_syntax.h). Each
// search has a limit of steps: a pattern that backtracks without end is an error, not a hang.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace expertflow {

class Regex {
 public:
  struct Match {
    size_t begin;  // byte offsets
    size_t end;
  };

  // Errors name the pattern and what is wrong in it.
  static Result<Regex> Compile(std::string_view pattern);
  // A pattern that matches `text` itself.
  static Result<Regex> Literal(std::string_view text);

  Regex(Regex&& other) noexcept;
  Regex& operator=(Regex&& other) noexcept;
  ~Regex();

  // All matches from left to right, none overlapping; an empty one never touches the match before
  // it. REQUIRES: `text` is well-formed UTF-8
  Status FindAll(std::string_view text, std::vector<Match>* matches) const;

 private:
  struct Program;
  static Result<Regex> CompileProgram(std::string_view shown, const std::string& pcre_pattern,
                                      bool literal);
  explicit Regex(std::unique_ptr<const Program> program);

  std::unique_ptr<const Program> program_;
};

}  // namespace expertflow

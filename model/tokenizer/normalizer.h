// What a tokenizer.json does to text before it is cut: a list of steps, each over the result of the
// one before. Immutable after loading; any thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "common/status.h"
#include "model/tokenizer/regex.h"

namespace expertflow {

class Normalizer {
 public:
  void AddNfc() { steps_.emplace_back(Nfc{}); }
  // Text that is not empty gets `prefix`.
  void AddPrepend(std::string prefix) { steps_.emplace_back(Prepend{std::move(prefix)}); }
  void AddReplace(Regex pattern, std::string content) {
    steps_.emplace_back(Replace{std::move(pattern), std::move(content)});
  }

  // `text` itself, or the result in `*owned`. REQUIRES: `text` is well-formed UTF-8
  Result<std::string_view> Apply(std::string_view text, std::string* owned) const;

 private:
  struct Nfc {};
  struct Prepend {
    std::string prefix;
  };
  struct Replace {
    Regex pattern;
    std::string content;
  };

  std::vector<std::variant<Nfc, Prepend, Replace>> steps_;
};

}  // namespace expertflow

// Cuts text into the pieces that BPE may not merge across: the pre_tokenizer of a tokenizer.json as
// a list of stages, each applied to every piece of the stage before. Immutable after loading; any
// thread.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/status.h"
#include "model/tokenizer/regex.h"

namespace expertflow {

// What becomes of the text that a Split's pattern matches.
enum class SplitBehavior {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,
};

class PreTokenizer {
 public:
  // Pieces point into the text that was split, or into `owned` where a stage had to add a space.
  struct Pieces {
    std::vector<std::string_view> views;
    std::deque<std::string> owned;
  };

  // `invert`: what the pattern does not match is what counts as matched.
  void AddSplit(Regex pattern, SplitBehavior behavior, bool invert);
  // A piece that does not begin with a space gets one.
  void AddPrefixSpace();
  // Spaces become `replacement`; a piece that does not begin with one gets one (none does, all do,
  // or only the beginning of the text), and is perhaps cut before each.
  enum class Prepend { kNever, kAlways, kFirst };
  void AddMetaspace(std::string replacement, Prepend prepend, bool split);

  // No piece is empty. `at_start`: `text` is the beginning of what is encoded.
  // REQUIRES: `text` is well-formed UTF-8 and outlives `pieces`
  Status Split(std::string_view text, bool at_start, Pieces* pieces) const;

 private:
  struct SplitStage {
    Regex pattern;
    SplitBehavior behavior;
    bool invert;
  };
  struct PrefixSpaceStage {};
  struct MetaspaceStage {
    std::string replacement;
    Prepend prepend;
    bool split;
  };
  using Stage = std::variant<SplitStage, PrefixSpaceStage, MetaspaceStage>;

  static Status ApplySplit(const SplitStage& stage, Pieces* pieces);
  static void ApplyPrefixSpace(Pieces* pieces);
  static void ApplyMetaspace(const MetaspaceStage& stage, bool at_start, Pieces* pieces);

  std::vector<Stage> stages_;
};

}  // namespace expertflow

#include "model/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <utility>

namespace expertflow {
namespace {

struct Span {
  size_t begin;
  size_t end;
  bool matched;
};

// The whole text in spans: what matched and what lies between.
void Cover(size_t text_bytes, const std::vector<Regex::Match>& matches, bool invert,
           std::vector<Span>* spans) {
  spans->clear();
  size_t covered = 0;
  for (const Regex::Match& match : matches) {
    if (covered != match.begin) spans->push_back({covered, match.begin, invert});
    spans->push_back({match.begin, match.end, !invert});
    covered = match.end;
  }
  if (covered != text_bytes) spans->push_back({covered, text_bytes, invert});
}

// In place; spans keep their order.
void Join(SplitBehavior behavior, std::vector<Span>* spans) {
  if (behavior == SplitBehavior::kIsolated) return;
  if (behavior == SplitBehavior::kRemoved) {
    std::erase_if(*spans, [](const Span& span) { return span.matched; });
    return;
  }
  const bool from_behind = behavior == SplitBehavior::kMergedWithNext;
  if (from_behind) std::reverse(spans->begin(), spans->end());
  bool previous_matched = false;
  size_t kept = 0;
  for (const Span span : *spans) {
    const bool joins = behavior == SplitBehavior::kContiguous ? span.matched == previous_matched
                                                              : span.matched && !previous_matched;
    previous_matched = span.matched;
    if (!joins || kept == 0) {
      (*spans)[kept++] = span;
    } else if (from_behind) {
      (*spans)[kept - 1].begin = span.begin;
    } else {
      (*spans)[kept - 1].end = span.end;
    }
  }
  spans->resize(kept);
  if (from_behind) std::reverse(spans->begin(), spans->end());
}

}  // namespace

void PreTokenizer::AddSplit(Regex pattern, SplitBehavior behavior, bool invert) {
  stages_.emplace_back(SplitStage{std::move(pattern), behavior, invert});
}

void PreTokenizer::AddPrefixSpace() {
  stages_.emplace_back(PrefixSpaceStage{});
}

void PreTokenizer::AddMetaspace(std::string replacement, Prepend prepend, bool split) {
  stages_.emplace_back(MetaspaceStage{std::move(replacement), prepend, split});
}

Status PreTokenizer::Split(std::string_view text, bool at_start, Pieces* pieces) const {
  pieces->views.clear();
  pieces->owned.clear();
  if (text.empty()) return OkStatus();
  pieces->views.push_back(text);
  for (const Stage& stage : stages_) {
    if (const auto* split = std::get_if<SplitStage>(&stage)) {
      RETURN_IF_ERROR(ApplySplit(*split, pieces));
    } else if (const auto* metaspace = std::get_if<MetaspaceStage>(&stage)) {
      ApplyMetaspace(*metaspace, at_start, pieces);
    } else {
      ApplyPrefixSpace(pieces);
    }
  }
  return OkStatus();
}

Status PreTokenizer::ApplySplit(const SplitStage& stage, Pieces* pieces) {
  std::vector<std::string_view> parts;
  parts.reserve(pieces->views.size());
  std::vector<Regex::Match> matches;
  std::vector<Span> spans;
  for (const std::string_view piece : pieces->views) {
    RETURN_IF_ERROR(stage.pattern.FindAll(piece, &matches));
    Cover(piece.size(), matches, stage.invert, &spans);
    Join(stage.behavior, &spans);
    for (const Span& span : spans) {
      if (span.end > span.begin) parts.push_back(piece.substr(span.begin, span.end - span.begin));
    }
  }
  pieces->views = std::move(parts);
  return OkStatus();
}

void PreTokenizer::ApplyPrefixSpace(Pieces* pieces) {
  for (std::string_view& piece : pieces->views) {
    if (piece.starts_with(' ')) continue;
    pieces->owned.push_back(" " + std::string(piece));
    piece = pieces->owned.back();
  }
}

void PreTokenizer::ApplyMetaspace(const MetaspaceStage& stage, bool at_start, Pieces* pieces) {
  const std::string& mark = stage.replacement;
  std::vector<std::string_view> parts;
  for (size_t i = 0; i < pieces->views.size(); ++i) {
    std::string changed;
    for (const char c : pieces->views[i]) {
      if (c == ' ') {
        changed.append(mark);
      } else {
        changed.push_back(c);
      }
    }
    const bool prepends = stage.prepend == Prepend::kAlways ||
                          (stage.prepend == Prepend::kFirst && at_start && i == 0);
    if (prepends && !changed.starts_with(mark)) changed.insert(0, mark);
    const std::string_view text = pieces->owned.emplace_back(std::move(changed));
    size_t begin = 0;
    while (stage.split && begin < text.size()) {
      const size_t next = text.find(mark, begin + 1);
      if (next == std::string_view::npos) break;
      parts.push_back(text.substr(begin, next - begin));
      begin = next;
    }
    parts.push_back(text.substr(begin));
  }
  pieces->views = std::move(parts);
}

}  // namespace expertflow

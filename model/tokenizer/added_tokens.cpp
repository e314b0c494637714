#include "model/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "model/tokenizer/utf8.h"

namespace expertflow {
namespace {

bool StandsAlone(std::string_view text, size_t begin, size_t end) {
  const bool word_before = begin > 0 && IsWordCharacter(LastCodePoint(text.substr(0, begin)));
  const bool word_after =
      end < text.size() && IsWordCharacter(NextUtf8(text.substr(end)).code_point);
  return !word_before && !word_after;
}

// Where the white space that ends at `end` begins, not before `floor`.
size_t WhiteSpaceBegin(std::string_view text, size_t floor, size_t end) {
  while (end > floor) {
    const char32_t code_point = LastCodePoint(text.substr(floor, end - floor));
    if (!IsWhiteSpace(code_point)) break;
    do {
      --end;
    } while (end > floor && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80);
  }
  return end;
}

size_t WhiteSpaceEnd(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Utf8Step step = NextUtf8(text.substr(begin));
    if (!IsWhiteSpace(step.code_point)) break;
    begin += step.bytes;
  }
  return begin;
}

}  // namespace

void AddedTokenMatcher::Build(std::vector<AddedToken> tokens) {
  tokens_ = std::move(tokens);
  const auto by_content = [](const AddedToken& a, const AddedToken& b) {
    return a.content < b.content;
  };
  std::stable_sort(tokens_.begin(), tokens_.end(), by_content);
  const auto same = [](const AddedToken& a, const AddedToken& b) { return a.content == b.content; };
  tokens_.erase(std::unique(tokens_.begin(), tokens_.end(), same), tokens_.end());
  first_.fill(0);
  for (const AddedToken& token : tokens_) ++first_[static_cast<uint8_t>(token.content[0]) + 1];
  for (size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
}

const AddedToken* AddedTokenMatcher::LongestAt(std::string_view text) const {
  const auto lead = static_cast<uint8_t>(text[0]);
  auto begin = tokens_.begin() + first_[lead];
  auto end = tokens_.begin() + first_[lead + 1];
  const AddedToken* longest = nullptr;
  // Invariant: the tokens of [begin, end) agree with `text` in their first `depth` bytes.
  for (size_t depth = 1; begin != end; ++depth) {
    if (begin->content.size() == depth) longest = &*begin++;
    if (depth == text.size()) break;
    const auto byte = static_cast<uint8_t>(text[depth]);
    const auto byte_at = [depth](const AddedToken& token) {
      return static_cast<uint8_t>(token.content[depth]);
    };
    begin = std::partition_point(begin, end, [&](const auto& t) { return byte_at(t) < byte; });
    end = std::partition_point(begin, end, [&](const auto& t) { return byte_at(t) == byte; });
  }
  return longest;
}

void AddedTokenMatcher::Split(std::string_view text, std::vector<Segment>* segments) const {
  size_t done = 0;             // everything before is in a segment
  size_t white_space_end = 0;  // of the run that was stripped last
  size_t position = tokens_.empty() ? text.size() : 0;
  while (position < text.size()) {
    const AddedToken* token = LongestAt(text.substr(position));
    if (token == nullptr) {
      ++position;
      continue;
    }
    size_t begin = position;
    size_t end = begin + token->content.size();
    position = end;
    if (token->single_word && !StandsAlone(text, begin, end)) continue;
    // A token inside white space that an earlier rstrip took still counts, without its text.
    if (token->lstrip && begin > done) begin = WhiteSpaceBegin(text, done, begin);
    if (token->rstrip) {
      if (end >= white_space_end) white_space_end = WhiteSpaceEnd(text, end);
      end = white_space_end;
    }
    if (begin > done) segments->push_back({Segment::kText, text.substr(done, begin - done)});
    segments->push_back({token->id, {}});
    done = std::max(done, end);
  }
  if (done < text.size()) segments->push_back({Segment::kText, text.substr(done)});
}

}  // namespace expertflow

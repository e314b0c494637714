#include "model/grammar/pattern_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace expertflow {
namespace {

using NodeId = Grammar::NodeId;

constexpr uint32_t kLastCharacter = 0x10FFFF;
constexpr uint32_t kPatternRepetitionsMax = 4096;
constexpr int kPatternDepthMax = 50;
constexpr size_t kPatternBytesMax = 10'000;

// --- sets of characters ------------------------------------------------------------------------

// Ranges of code points, ascending and apart. Half surrogate pairs are no characters.
class CharacterSet {
 public:
  using Range = std::pair<uint32_t, uint32_t>;

  CharacterSet() = default;
  CharacterSet(std::initializer_list<Range> ranges) : CharacterSet(std::vector<Range>(ranges)) {}
  // In any order, overlapping or not.
  explicit CharacterSet(std::vector<Range> ranges) {
    std::sort(ranges.begin(), ranges.end());
    for (const Range& range : ranges) {
      if (!ranges_.empty() && range.first <= ranges_.back().second + 1) {
        ranges_.back().second = std::max(ranges_.back().second, range.second);
      } else {
        ranges_.push_back(range);
      }
    }
  }
  CharacterSet Opposite() const {
    std::vector<Range> opposite;
    uint32_t next = 0;
    for (const Range& range : ranges_) {
      if (range.first > next) opposite.emplace_back(next, range.first - 1);
      next = range.second + 1;
    }
    if (next <= kLastCharacter) opposite.emplace_back(next, kLastCharacter);
    return CharacterSet(std::move(opposite));
  }
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

const CharacterSet& Digits() {
  static const CharacterSet kSet = {{'0', '9'}};
  return kSet;
}
const CharacterSet& WordCharacters() {
  static const CharacterSet kSet = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return kSet;
}
const CharacterSet& Spaces() {
  static const CharacterSet kSet = {
      {'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
      {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  return kSet;
}
const CharacterSet& LineEnds() {
  static const CharacterSet kSet = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
  return kSet;
}

// --- parsing -----------------------------------------------------------------------------------

struct Part {
  enum class Kind { kSet, kSequence, kChoice, kRepeat };
  Kind kind = Kind::kSequence;
  CharacterSet set;
  std::vector<Part> parts;      // kRepeat: one
  uint32_t min = 0;             // kRepeat
  std::optional<uint32_t> max;  // kRepeat

  bool CanBeEmpty() const {
    const auto empty = [](const Part& part) { return part.CanBeEmpty(); };
    switch (kind) {
      case Kind::kSet: return false;
      case Kind::kSequence: return std::all_of(parts.begin(), parts.end(), empty);
      case Kind::kChoice: return std::any_of(parts.begin(), parts.end(), empty);
      case Kind::kRepeat: return min == 0 || empty(parts[0]);
    }
    return true;
  }
};

Part SetPart(CharacterSet set) {
  Part part;
  part.kind = Part::Kind::kSet;
  part.set = std::move(set);
  return part;
}

Part Anything() {
  Part part;
  part.kind = Part::Kind::kRepeat;
  part.parts.push_back(SetPart(CharacterSet{}.Opposite()));
  return part;
}

// The alternatives at the top, with what may stand before and after them. After an error the rest
// of what a function returns means nothing.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Part All() {
    Part all = Alternatives(0);
    if (!AtEnd()) Fail("there is a ) without its (");
    return all;
  }
  const std::string& error() const { return error_; }

 private:
  void Fail(const std::string& what) {
    if (error_.empty()) error_ = what;
    at_ = text_.size();
  }
  bool AtEnd() const { return at_ >= text_.size(); }
  bool Take(std::string_view what) {
    if (!text_.substr(std::min(at_, text_.size())).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }

  Part Alternatives(int depth) {
    Part choice;
    choice.kind = Part::Kind::kChoice;
    if (depth > kPatternDepthMax) {
      Fail("it is nested too deep");
      return choice;
    }
    do {
      choice.parts.push_back(Sequence(depth));
    } while (Take("|"));
    return choice;
  }

  Part Sequence(int depth) {
    Part sequence;
    const bool top = depth == 0;
    if (top && !Take("^")) sequence.parts.push_back(Anything());
    bool ended = false;
    while (!AtEnd() && text_[at_] != '|' && text_[at_] != ')') {
      if (text_[at_] == '^' || text_[at_] == '$') {
        ended = Take("$");
        const bool last = AtEnd() || text_[at_] == '|';
        if (!top || !ended || !last) {
          Fail("^ and $ are supported at the ends of the pattern's alternatives only");
        }
        break;
      }
      Part part = Atom(depth);
      sequence.parts.push_back(Repeated(std::move(part)));
    }
    if (top && !ended) sequence.parts.push_back(Anything());
    return sequence;
  }

  Part Atom(int depth) {
    if (Take("(")) {
      if (Take("?:") || !Take("?")) return Closed(Alternatives(depth + 1));
      const bool named = Take("<") && !AtEnd() && text_[at_] != '=' && text_[at_] != '!';
      const size_t end = named ? text_.find('>', at_) : std::string_view::npos;
      if (end == std::string_view::npos) {
        Fail("look-around is not supported");
        return {};
      }
      at_ = end + 1;
      return Closed(Alternatives(depth + 1));
    }
    if (Take("[")) return SetPart(Class());
    if (Take(".")) return SetPart(LineEnds().Opposite());
    if (Take("\\")) return SetPart(Escape(/*in_class=*/false));
    if (std::string_view("*+?").find(text_[at_]) != std::string_view::npos) {
      Fail(fmt::format("there is nothing before {}", text_[at_]));
      return {};
    }
    const uint32_t character = Character();
    return SetPart({{character, character}});
  }

  Part Closed(Part part) {
    if (!Take(")")) Fail("there is a ( without its )");
    return part;
  }

  Part Repeated(Part part) {
    uint32_t min = 0;
    std::optional<uint32_t> max;
    if (Take("*")) {
    } else if (Take("+")) {
      min = 1;
    } else if (Take("?")) {
      max = 1;
    } else if (!Counts(&min, &max)) {
      return part;
    }
    Take("?");  // few or many: the same texts
    if (max && *max < min) Fail("{m,n} with n below m");
    if (!max && part.CanBeEmpty()) Fail("what is repeated without end must not be empty");
    Part repeat;
    repeat.kind = Part::Kind::kRepeat;
    repeat.parts.push_back(std::move(part));
    repeat.min = min;
    repeat.max = max;
    return repeat;
  }

  // {m}, {m,} or {m,n}; else the brace stands for itself.
  bool Counts(uint32_t* min, std::optional<uint32_t>* max) {
    const size_t begin = at_;
    if (!Take("{")) return false;
    const std::optional<uint32_t> first = Number();
    const bool comma = first && Take(",");
    const std::optional<uint32_t> second = comma ? Number() : first;
    if (!first || !Take("}")) {
      at_ = begin;
      return false;
    }
    if (*first > kPatternRepetitionsMax || second.value_or(0) > kPatternRepetitionsMax) {
      Fail(fmt::format("more than {} repetitions", kPatternRepetitionsMax));
    }
    *min = *first;
    *max = second;
    return true;
  }

  std::optional<uint32_t> Number() {
    const size_t begin = at_;
    uint32_t number = 0;
    for (; !AtEnd() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      number = std::min<uint32_t>(number * 10 + static_cast<uint32_t>(text_[at_] - '0'), 1'000'000);
    }
    return at_ == begin ? std::nullopt : std::optional(number);
  }

  // One character of the pattern's UTF-8, which is well-formed.
  uint32_t Character() {
    const auto first = static_cast<unsigned char>(text_[at_++]);
    if (first < 0x80) return first;
    const int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
    uint32_t character = first & (0x3FU >> more);
    for (int i = 0; i < more && !AtEnd(); ++i) {
      character = (character << 6) | (static_cast<unsigned char>(text_[at_++]) & 0x3FU);
    }
    return character;
  }

  CharacterSet Hex(size_t digits) {
    uint32_t character = 0;
    for (size_t i = 0; i < digits; ++i) {
      const char c = AtEnd() ? '?' : text_[at_++];
      constexpr std::string_view kHex = "0123456789abcdef";
      const size_t value = kHex.find(c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : c);
      if (value == std::string_view::npos) {
        Fail("a \\x or \\u without its hexadecimal digits");
        return {};
      }
      character = character * 16 + static_cast<uint32_t>(value);
    }
    return {{character, character}};
  }

  CharacterSet Escape(bool in_class) {
    if (AtEnd()) {
      Fail("it ends with \\");
      return {};
    }
    const char c = text_[at_];
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!letter && (c < '0' || c > '9')) {
      const uint32_t character = Character();
      return {{character, character}};
    }
    ++at_;
    const auto one = [](char character) {
      const auto code = static_cast<uint32_t>(character);
      return CharacterSet{{code, code}};
    };
    switch (c) {
      case 'd': return Digits();
      case 'D': return Digits().Opposite();
      case 'w': return WordCharacters();
      case 'W': return WordCharacters().Opposite();
      case 's': return Spaces();
      case 'S': return Spaces().Opposite();
      case 't': return one('\t');
      case 'n': return one('\n');
      case 'r': return one('\r');
      case 'f': return one('\f');
      case 'v': return one('\v');
      case '0': return one('\0');
      case 'x': return Hex(2);
      case 'u': return Hex(4);
      case 'b':
        if (in_class) return one('\b');
        break;
      default: break;
    }
    Fail(fmt::format("\\{} is not supported", c));
    return {};
  }

  CharacterSet Class() {
    const bool negated = Take("^");
    std::vector<CharacterSet::Range> ranges;
    while (!AtEnd() && text_[at_] != ']') {
      const CharacterSet first = ClassAtom();
      const bool range =
          !AtEnd() && text_[at_] == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
      if (!range) {
        ranges.insert(ranges.end(), first.ranges().begin(), first.ranges().end());
        continue;
      }
      ++at_;
      const CharacterSet last = ClassAtom();
      if (!error_.empty()) return {};
      const uint32_t from = first.ranges().front().first;
      const uint32_t to = last.ranges().front().first;
      const bool single = first.ranges().back().second == from && last.ranges().back().second == to;
      if (!single || to < from) {
        Fail("a class has a range that is none");
        return {};
      }
      ranges.emplace_back(from, to);
    }
    if (!Take("]")) Fail("there is a [ without its ]");
    const CharacterSet set(std::move(ranges));
    return negated ? set.Opposite() : set;
  }

  CharacterSet ClassAtom() {
    if (Take("\\")) return Escape(/*in_class=*/true);
    const uint32_t character = Character();
    return {{character, character}};
  }

  const std::string_view text_;
  size_t at_ = 0;
  std::string error_;
};

// --- building ----------------------------------------------------------------------------------

class Builder {
 public:
  explicit Builder(Grammar* grammar) : grammar_(*grammar) {}

  NodeId Build(const Part& part, NodeId next) {
    switch (part.kind) {
      case Part::Kind::kSet: return grammar_.Call(RuleOf(part.set), next);
      case Part::Kind::kSequence:
        for (size_t i = part.parts.size(); i-- > 0;) next = Build(part.parts[i], next);
        return next;
      case Part::Kind::kChoice: {
        NodeId any = Grammar::kNone;
        for (const Part& one : part.parts) any = Or(any, Build(one, next));
        return any;
      }
      case Part::Kind::kRepeat: return Repeat(part, next);
    }
    return next;
  }

 private:
  NodeId Or(NodeId a, NodeId b) { return a == Grammar::kNone ? b : grammar_.Either(a, b); }

  NodeId Repeat(const Part& part, NodeId next) {
    NodeId at = next;
    if (part.max) {
      for (uint32_t i = part.min; i < *part.max && !grammar_.full(); ++i) {
        at = grammar_.Either(next, Build(part.parts[0], at));
      }
    } else {
      at = grammar_.Placeholder();
      grammar_.SetEither(at, next, Build(part.parts[0], at));
    }
    for (uint32_t i = 0; i < part.min && !grammar_.full(); ++i) at = Build(part.parts[0], at);
    return at;
  }

  // A rule for one character of the set, as JSON writes it.
  NodeId RuleOf(const CharacterSet& set) {
    const auto [known, is_new] = rules_.emplace(set.ranges(), Grammar::kNone);
    if (!is_new) return known->second;
    const NodeId end = grammar_.Return();
    NodeId any = Grammar::kNone;
    ByteSet plain;
    for (const auto& [first, last] : set.ranges()) {
      for (uint32_t c = first; c <= last && c < 0x80; ++c) {
        if (c >= 0x20 && c != '"' && c != '\\') {
          plain.set(c);
        } else {
          any = Or(any, grammar_.Text(Escaped(c), end));
        }
      }
      AddUtf8(std::max<uint32_t>(first, 0x80), std::min<uint32_t>(last, 0xD7FF), end, &any);
      AddUtf8(std::max<uint32_t>(first, 0xE000), last, end, &any);
    }
    if (plain.any()) any = Or(any, grammar_.Byte(plain, end));
    // An empty class matches nothing: no byte is in it.
    if (any == Grammar::kNone) any = grammar_.Byte(ByteSet(), end);
    return known->second = any;
  }

  static std::string Escaped(uint32_t c) {
    switch (c) {
      case '"': return "\\\"";
      case '\\': return "\\\\";
      case '\b': return "\\b";
      case '\f': return "\\f";
      case '\n': return "\\n";
      case '\r': return "\\r";
      case '\t': return "\\t";
      default: return fmt::format("\\u{:04x}", c);
    }
  }

  // Splits until all characters of a range have as many bytes, and each byte but the last few is
  // the same in all of them.
  void AddUtf8(uint32_t first, uint32_t last, NodeId end, NodeId* any) {
    if (first > last) return;
    for (const uint32_t most : {0x7FFU, 0xFFFFU}) {
      if (first <= most && last > most) {
        AddUtf8(first, most, end, any);
        AddUtf8(most + 1, last, end, any);
        return;
      }
    }
    const int more = first > 0xFFFF ? 3 : first > 0x7FF ? 2 : 1;
    for (int i = 1; i <= more; ++i) {
      const uint32_t low = (1U << (6 * i)) - 1;
      if ((first & ~low) == (last & ~low)) continue;
      if ((first & low) != 0) {
        AddUtf8(first, first | low, end, any);
        AddUtf8((first | low) + 1, last, end, any);
        return;
      }
      if ((last & low) != low) {
        AddUtf8(first, (last & ~low) - 1, end, any);
        AddUtf8(last & ~low, last, end, any);
        return;
      }
    }
    NodeId at = end;
    for (int i = 0; i < more; ++i) {
      at = grammar_.Byte(
          ByteRange(0x80 | ((first >> (6 * i)) & 0x3F), 0x80 | ((last >> (6 * i)) & 0x3F)), at);
    }
    constexpr std::array<uint32_t, 4> kLead = {0, 0xC0, 0xE0, 0xF0};
    const uint32_t lead = kLead[static_cast<size_t>(more)];
    at = grammar_.Byte(ByteRange(lead | (first >> (6 * more)), lead | (last >> (6 * more))), at);
    *any = Or(*any, at);
  }

  Grammar& grammar_;
  std::map<std::vector<CharacterSet::Range>, NodeId> rules_;
};

// --- formats -----------------------------------------------------------------------------------

// Parts of what RFC 3339, 1123, 5322, 4122 and ISO 8601 allow.
std::map<std::string, std::string, std::less<>> MakeFormats() {
  const std::string date =
      "[12][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|"
      "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))";
  const std::string clock = "(?:[01][0-9]|2[0-3]):[0-5][0-9]";
  const std::string time = clock + ":[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-]" + clock + ")";
  const std::string number = "[0-9]{1,4}";
  const std::string of_hour = "(?:" + number + "M(?:" + number + "S)?|" + number + "S)";
  const std::string of_year = number + "M(?:" + number + "D)?";
  const std::string label = "(?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?";
  const std::string host = "[A-Za-z0-9]" + label + "(?:\\.[A-Za-z]" + label + "){1,4}";
  const std::string name = "[A-Za-z0-9_+-]{1,32}";
  const std::string octet = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
  return {{"date", date},
          {"time", time},
          {"date-time", date + "T" + time},
          {"duration", "P(?:" + number + "W|" + number + "D|" + number + "Y(?:" + of_year + ")?|" +
                           of_year + "|T(?:" + number + "H" + of_hour + "?|" + of_hour + "))"},
          {"email", name + "(?:\\." + name + "){0,3}@" + host},
          {"hostname", host},
          {"ipv4", octet + "(?:\\." + octet + "){3}"},
          {"ipv6", "(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"},
          {"uuid", "[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"}};
}

}  // namespace

Result<Grammar::NodeId> StringMatching(std::string_view pattern, Grammar* grammar,
                                       Grammar::NodeId next) {
  if (pattern.size() > kPatternBytesMax) {
    return InvalidArgument(fmt::format("longer than {} bytes", kPatternBytesMax));
  }
  Parser parser(pattern);
  const Part all = parser.All();
  if (!parser.error().empty()) return InvalidArgument(parser.error());
  return Builder(grammar).Build(all, next);
}

std::string PatternOfFormat(std::string_view format) {
  static const std::map<std::string, std::string, std::less<>> kFormats = MakeFormats();
  const auto found = kFormats.find(format);
  return found == kFormats.end() ? "" : "^" + found->second + "$";
}

}  // namespace expertflow

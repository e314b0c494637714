#include "model/tokenizer/regex_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace expertflow {
namespace {

// Sets as they are written inside a class. PCRE2's own \s also has U+180E, its \w all of \p{N} but
// no marks, its \h means blanks and its \v any vertical space.
constexpr std::string_view kSpaceSet = R"(\t-\r\x{85}\p{Z})";
constexpr std::string_view kNotSpaceSet = R"(\S\x{180E})";
// Oniguruma's \w and \b count all numbers as word characters (a half, a superscript two), but in a
// class only the decimal ones.
constexpr std::string_view kWordSet = R"(\p{Alphabetic}\p{M}\p{N}\p{Pc})";
constexpr std::string_view kWordSetInClass = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kHexDigitSet = "0-9A-Fa-f";

// PCRE2 takes \p{Han} for the script extensions; the files mean the script itself.
constexpr auto kScripts = std::to_array<std::string_view>(
    {"Arabic",   "Armenian", "Bengali",  "Common",    "Cyrillic",  "Devanagari",
     "Ethiopic", "Georgian", "Greek",    "Gujarati",  "Gurmukhi",  "Han",
     "Hangul",   "Hebrew",   "Hiragana", "Inherited", "Kannada",   "Katakana",
     "Khmer",    "Lao",      "Latin",    "Malayalam", "Mongolian", "Myanmar",
     "Sinhala",  "Tamil",    "Telugu",   "Thai",      "Tibetan"});

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> Run() {
    while (position_ < pattern_.size()) {
      RETURN_IF_ERROR(in_class_ ? ClassItem() : Item());
    }
    if (in_class_) return Refuse("a character class without end");
    return std::move(out_);
  }

 private:
  Status Refuse(std::string_view what) const {
    return InvalidArgument(fmt::format("cannot use regex '{}': {}", pattern_, what));
  }

  bool At(std::string_view text) const { return pattern_.substr(position_).starts_with(text); }

  void Copy(size_t bytes) {
    out_.append(pattern_.substr(position_, bytes));
    position_ += bytes;
  }

  void Replace(size_t bytes, std::string_view by) {
    out_.append(by);
    position_ += bytes;
  }

  Status Item() {
    switch (pattern_[position_]) {
      case '\\': return Escape();
      case '[':
        in_class_ = true;
        Copy(At("[^") ? 2 : 1);
        // A bracket in first place is a member, in both syntaxes.
        if (At("]")) Replace(1, "\\]");
        return OkStatus();
      case '(': return Group();
      case '{': return Interval();
      default: Copy(1); return OkStatus();
    }
  }

  Status ClassItem() {
    if (pattern_[position_] == '\\') return Escape();
    if (At("[:")) {
      const size_t end = pattern_.find(":]", position_);
      if (end == std::string_view::npos) return Refuse("'[:' without ':]'");
      Copy(end + 2 - position_);
      return OkStatus();
    }
    if (At("[")) return Refuse("a class inside a class is not supported");
    if (At("&&")) return Refuse("'&&' in a class is not supported");
    if (At("]")) in_class_ = false;
    Copy(1);
    return OkStatus();
  }

  Status Group() {
    if (At("(*")) return Refuse("'(*' is not supported");
    if (!At("(?")) {
      Copy(1);
      return OkStatus();
    }
    // Past the beginning, "(?i)" binds differently in the two syntaxes.
    if (position_ == 0 && At("(?i)")) {
      Copy(4);
      return OkStatus();
    }
    for (const std::string_view open :
         {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:"}) {
      if (!At(open)) continue;
      Copy(open.size());
      return OkStatus();
    }
    return Refuse(fmt::format("the group '{}' is not supported", pattern_.substr(position_, 4)));
  }

  // {n}, {n,}, {n,m} and {,m}; a brace that is none of these stands for itself.
  Status Interval() {
    const size_t end = pattern_.find('}', position_);
    const std::string_view inside =
        end == std::string_view::npos ? "" : pattern_.substr(position_ + 1, end - position_ - 1);
    const bool interval = !inside.empty() && inside != "," &&
                          std::count(inside.begin(), inside.end(), ',') <= 1 &&
                          inside.find_first_not_of("0123456789,") == std::string_view::npos;
    if (!interval) {
      Replace(1, "\\{");
      return OkStatus();
    }
    if (pattern_.substr(end + 1).starts_with('+')) {
      return Refuse("'+' after an interval is not supported");
    }
    if (inside.starts_with(',')) {
      Replace(1, "{0");
    }
    Copy(end + 1 - position_);
    return OkStatus();
  }

  Status Escape() {
    if (position_ + 1 == pattern_.size()) return Refuse("a backslash at its end");
    const char escaped = pattern_[position_ + 1];
    switch (escaped) {
      case 's': return ReplaceBySet(kSpaceSet);
      case 'w': return ReplaceBySet(in_class_ ? kWordSetInClass : kWordSet);
      case 'h': return ReplaceBySet(kHexDigitSet);
      case 'S':
        if (!in_class_) return ReplaceByComplement(kSpaceSet);
        Replace(2, kNotSpaceSet);
        return OkStatus();
      case 'W': return ReplaceByComplement(kWordSet);
      case 'H': return ReplaceByComplement(kHexDigitSet);
      case 'b':
      case 'B': return WordBoundary(escaped == 'B');
      case 'v': Replace(2, "\\x0B"); return OkStatus();
      case 'p':
      case 'P': return Property();
      case 'u': return FourDigits();
      case 'x': {
        const size_t end = pattern_.find('}', position_);
        const bool braced = pattern_.substr(position_ + 2).starts_with('{');
        if (braced && end == std::string_view::npos) return Refuse("'\\x{' without '}'");
        Copy(braced ? end + 1 - position_ : 2);
        return OkStatus();
      }
      case 'd':
      case 'D':
      case 't':
      case 'n':
      case 'r':
      case 'f':
      case 'a':
      case 'e': Copy(2); return OkStatus();
      case 'A':
      case 'z':
      case 'Z':
        if (in_class_) break;
        Copy(2);
        return OkStatus();
      default:
        if (std::isalnum(static_cast<unsigned char>(escaped)) != 0) break;
        Copy(2);
        return OkStatus();
    }
    return Refuse(
        fmt::format("'\\{}' is not supported{}", escaped, in_class_ ? " in a class" : ""));
  }

  Status ReplaceBySet(std::string_view set) {
    Replace(2, in_class_ ? std::string(set) : fmt::format("[{}]", set));
    return OkStatus();
  }

  Status ReplaceByComplement(std::string_view set) {
    if (in_class_) {
      return Refuse(fmt::format("'{}' in a class is not supported", pattern_.substr(position_, 2)));
    }
    Replace(2, fmt::format("[^{}]", set));
    return OkStatus();
  }

  Status WordBoundary(bool negated) {
    if (in_class_) {
      if (negated) return Refuse("'\\B' in a class is not supported");
      Replace(2, "\\x08");
      return OkStatus();
    }
    const std::string word = fmt::format("[{}]", kWordSet);
    Replace(2, negated ? fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word)
                       : fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word));
    return OkStatus();
  }

  Status Property() {
    const size_t end = pattern_.find('}', position_);
    if (position_ + 2 >= pattern_.size() || pattern_[position_ + 2] != '{' ||
        end == std::string_view::npos) {
      return Refuse("'\\p' needs a name in braces");
    }
    std::string_view name = pattern_.substr(position_ + 3, end - position_ - 3);
    out_.append(pattern_.substr(position_, 3));
    if (name.starts_with('^')) {
      out_.push_back('^');
      name.remove_prefix(1);
    }
    if (std::find(kScripts.begin(), kScripts.end(), name) != kScripts.end()) out_.append("sc:");
    out_.append(name);
    out_.push_back('}');
    position_ = end + 1;
    return OkStatus();
  }

  Status FourDigits() {
    const std::string_view digits = pattern_.substr(position_ + 2, 4);
    const auto is_hex = [](unsigned char c) { return std::isxdigit(c) != 0; };
    if (digits.size() < 4 || !std::all_of(digits.begin(), digits.end(), is_hex)) {
      return Refuse("'\\u' needs four hexadecimal digits");
    }
    Replace(6, fmt::format("\\x{{{}}}", digits));
    return OkStatus();
  }

  const std::string_view pattern_;
  size_t position_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

Result<std::string> TranslateRegex(std::string_view pattern) {
  return Translator(pattern).Run();
}

}  // namespace expertflow

#include "serving/chat_template/template_lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "serving/chat_template/template_value.h"

namespace expertflow {
namespace {

using TokenKind = TemplateTokenKind;

bool IsNameStart(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

// As the reference reads a template: "\n" ends lines, and one at the very end does not count.
std::string Normalized(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      text += '\n';
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(Normalized(source)) {}

  std::vector<TemplateToken> Run() {
    while (at_ < source_.size()) {
      const size_t tag = NextTag();
      Text(tag);
      if (tag == std::string::npos) break;
      Tag();
    }
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  size_t NextTag() const {
    for (size_t at = source_.find('{', at_); at != std::string::npos;
         at = source_.find('{', at + 1)) {
      const char next = at + 1 < source_.size() ? source_[at + 1] : ' ';
      if (next == '{' || next == '%' || next == '#') return at;
    }
    return std::string::npos;
  }

  void Add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void Advance(size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  // What stands before the tag at `tag`, without the white space that the tag takes away.
  void Text(size_t tag) {
    std::string_view text =
        std::string_view(source_).substr(at_, tag == std::string::npos ? tag : tag - at_);
    if (tag != std::string::npos) {
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
      if (sign == '-') {
        text = text.substr(0, text.find_last_not_of(kTemplateSpace) + 1);
      } else if (sign != '+' && source_[tag + 1] != '{') {
        const size_t line = text.rfind('\n') + 1;  // 0 without one
        const bool at_line_start = line > 0 || line_starting_;
        if (at_line_start &&
            text.find_first_not_of(kTemplateSpace, line) == std::string_view::npos) {
          text = text.substr(0, line);
        }
      }
    }
    if (!text.empty()) Add(TokenKind::kText, std::string(text));
    Advance(tag == std::string::npos ? source_.size() : tag);
  }

  void Tag() {
    const char kind = source_[at_ + 1];
    if (kind == '#') {
      const size_t end = source_.find("#}", at_ + 2);
      if (end == std::string::npos) throw TemplateError{line_, "a comment {# does not end"};
      Advance(end);
      EndTag(end > 0 && source_[end - 1] == '-', end > 0 && source_[end - 1] == '+', true);
      return;
    }
    Add(TokenKind::kTagBegin, std::string(source_, at_, 2));
    const int begin_line = line_;
    at_ += 2;
    if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) ++at_;
    const std::string_view close = kind == '%' ? "%}" : "}}";
    int depth = 0;  // of braces: "}}" may end an object in an object
    while (true) {
      Advance(std::min(source_.find_first_not_of(kTemplateSpace, at_), source_.size()));
      if (at_ == source_.size()) throw TemplateError{begin_line, "a tag does not end"};
      const std::string_view rest = std::string_view(source_).substr(at_);
      const bool minus = rest.starts_with('-') && rest.substr(1).starts_with(close);
      const bool plus = kind == '%' && rest.starts_with('+') && rest.substr(1).starts_with(close);
      if (depth == 0 && (minus || plus || rest.starts_with(close))) {
        Add(TokenKind::kTagEnd, std::string(close));
        if (minus || plus) ++at_;
        EndTag(minus, plus, kind == '%');
        return;
      }
      if (rest.front() == '{') ++depth;
      if (rest.front() == '}') depth = std::max(depth - 1, 0);
      Token(rest);
    }
  }

  // `at_` is at the two closing characters.
  void EndTag(bool minus, bool plus, bool is_block) {
    size_t end = at_ + 2;
    if (minus) {
      end = std::min(source_.find_first_not_of(kTemplateSpace, end), source_.size());
    } else if (is_block && !plus && end < source_.size() && source_[end] == '\n') {
      ++end;
    }
    Advance(end);
    line_starting_ = source_[end - 1] == '\n';
  }

  void Token(std::string_view rest) {
    const char c = rest.front();
    if (c == '"' || c == '\'') {
      String(rest);
    } else if (IsNameStart(c)) {
      size_t size = 1;
      while (size < rest.size() && (IsNameStart(rest[size]) || IsDigit(rest[size]))) ++size;
      Add(TokenKind::kName, std::string(rest.substr(0, size)));
      at_ += size;
    } else if (IsDigit(c)) {
      size_t size = 1;
      while (size < rest.size() && (IsDigit(rest[size]) || rest[size] == '_')) ++size;
      if (size + 1 < rest.size() && rest[size] == '.' && IsDigit(rest[size + 1])) {
        ++size;
        while (size < rest.size() && IsDigit(rest[size])) ++size;
      }
      std::string digits(rest.substr(0, size));
      std::erase(digits, '_');
      Add(TokenKind::kNumber, digits);
      at_ += size;
    } else {
      Operator(rest);
    }
  }

  void Operator(std::string_view rest) {
    static constexpr std::array<std::string_view, 6> kTwo = {"==", "!=", "<=", ">=", "//", "**"};
    for (const std::string_view two : kTwo) {
      if (!rest.starts_with(two)) continue;
      Add(TokenKind::kOperator, std::string(two));
      at_ += 2;
      return;
    }
    if (std::string_view("+-*/%~<>=()[]{},.:|").find(rest.front()) == std::string_view::npos) {
      throw TemplateError{
          line_, fmt::format("unexpected character '{}'", Characters(rest.substr(0, 4))[0])};
    }
    Add(TokenKind::kOperator, std::string(1, rest.front()));
    ++at_;
  }

  void String(std::string_view rest) {
    const char quote = rest.front();
    std::string text;
    for (size_t i = 1; i < rest.size(); ++i) {
      if (rest[i] == quote) {
        Add(TokenKind::kString, std::move(text));
        Advance(at_ + i + 1);
        return;
      }
      if (rest[i] != '\\' || i + 1 == rest.size()) {
        text += rest[i];
        continue;
      }
      switch (rest[++i]) {
        case 'n': text += '\n'; break;
        case 't': text += '\t'; break;
        case 'r': text += '\r'; break;
        case '\\': text += '\\'; break;
        case '\'': text += '\''; break;
        case '"': text += '"'; break;
        case '\n': break;
        case 'u':
        case 'x': throw TemplateError{line_, "\\u and \\x are not supported in a string"};
        default: text += '\\'; text += rest[i];
      }
    }
    throw TemplateError{line_, "a string does not end"};
  }

  const std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<TemplateToken> tokens_;
};

}  // namespace

std::vector<TemplateToken> LexTemplate(std::string_view source) {
  return Lexer(source).Run();
}

}  // namespace expertflow

#include "serving/chat_template/template_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <utility>

#include "serving/chat_template/template_lexer.h"

namespace expertflow {
namespace {

using Kind = TemplateNode::Kind;
using Token = TemplateTokenKind;
using Node = std::unique_ptr<TemplateNode>;

constexpr int kSyntaxDepthMax = 100;  // of expressions and blocks
constexpr int kHeightMax = 400;       // of a chain such as a + b + c

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(LexTemplate(source)) {}

  TemplateNodes Run() {
    TemplateNodes nodes = Body({});
    if (!Is(Token::kEnd)) throw Error(fmt::format("{{% {} %}} has nothing to end", Ahead(1).text));
    return nodes;
  }

 private:
  class Nested {
   public:
    explicit Nested(Parser* parser) : parser_(parser) {
      if (++parser_->depth_ > kSyntaxDepthMax) throw parser_->Error("nested too deep");
    }
    ~Nested() { --parser_->depth_; }

   private:
    Parser* parser_;
  };

  // --- tokens ----------------------------------------------------------------------------------

  const TemplateToken& Now() const { return tokens_[at_]; }
  const TemplateToken& Ahead(size_t count) const {
    return tokens_[std::min(at_ + count, tokens_.size() - 1)];
  }
  bool Is(Token kind) const { return Now().kind == kind; }
  bool Is(Token kind, std::string_view text) const { return Is(kind) && Now().text == text; }
  bool IsOperator(std::string_view text) const { return Is(Token::kOperator, text); }
  bool IsName(std::string_view text) const { return Is(Token::kName, text); }
  std::string Take() {
    std::string text = Now().text;
    if (at_ + 1 < tokens_.size()) ++at_;
    return text;
  }
  bool TakeOperator(std::string_view text) {
    if (!IsOperator(text)) return false;
    Take();
    return true;
  }
  bool TakeName(std::string_view text) {
    if (!IsName(text)) return false;
    Take();
    return true;
  }
  TemplateError Error(std::string message) const { return {Now().line, std::move(message)}; }
  TemplateError Expected(std::string_view what) const {
    return Error(fmt::format("expected {}, found {}", what,
                             Is(Token::kEnd)      ? "the end of the template"
                             : Is(Token::kTagEnd) ? "the end of the tag"
                                                  : "'" + Now().text + "'"));
  }
  void NeedOperator(std::string_view text) {
    if (!TakeOperator(text)) throw Expected(fmt::format("'{}'", text));
  }
  std::string NeedName() {
    if (!Is(Token::kName)) throw Expected("a name");
    return Take();
  }
  void NeedTagEnd() {
    if (!Is(Token::kTagEnd)) throw Expected("the end of the tag");
    Take();
  }

  Node Make(Kind kind, std::string text = "") const {
    return std::make_unique<TemplateNode>(
        TemplateNode{.kind = kind, .line = Now().line, .text = std::move(text)});
  }
  // With the line of its first child.
  template <typename... Children>
  Node Make(Kind kind, std::string text, Children... children) const {
    Node node = Make(kind, std::move(text));
    (node->children.push_back(std::move(children)), ...);
    if (node->children[0] != nullptr) node->line = node->children[0]->line;
    for (const Node& child : node->children) {
      if (child != nullptr) node->height = std::max(node->height, child->height + 1);
    }
    if (node->height > kHeightMax) throw Error("an expression is too long");
    return node;
  }

  // --- statements ------------------------------------------------------------------------------

  // Up to a tag with one of these names (its name is the current token then), or the end.
  TemplateNodes Body(std::initializer_list<std::string_view> ends) {
    const Nested nested(this);
    TemplateNodes nodes;
    while (!Is(Token::kEnd)) {
      if (Is(Token::kText)) {
        Node text = Make(Kind::kText);
        text->text = Take();
        nodes.push_back(std::move(text));
      } else if (Now().text == "{{") {
        Take();
        nodes.push_back(Make(Kind::kOutput, "", Tuple()));
        NeedTagEnd();
      } else {
        const std::string& name = Ahead(1).text;
        if (std::find(ends.begin(), ends.end(), name) != ends.end()) {
          Take();
          return nodes;
        }
        if (name.starts_with("end") || name == "else" || name == "elif") break;
        Take();
        nodes.push_back(Statement());
      }
    }
    if (ends.size() > 0) throw Error(fmt::format("{{% {} %}} is missing", *(ends.end() - 1)));
    return nodes;
  }

  Node Statement() {
    Node node = Make(Kind::kBody);
    const std::string name = NeedName();
    if (name == "if") return If(std::move(node));
    if (name == "for") return For(std::move(node));
    if (name == "set") return Set(std::move(node));
    if (name == "macro") return Macro(std::move(node));
    if (name == "filter") return FilterBlock(std::move(node));
    if (name == "generation") {
      NeedTagEnd();
      node->body = Body({"endgeneration"});
      EndOf("endgeneration");
      return node;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) throw TemplateError{node->line, fmt::format("{} outside of a loop", name)};
      node->kind = name == "break" ? Kind::kBreak : Kind::kContinue;
      NeedTagEnd();
      return node;
    }
    throw TemplateError{node->line, fmt::format("{{% {} %}} is not supported", name)};
  }

  void EndOf(std::string_view name) {
    if (!TakeName(name)) throw Expected(fmt::format("{{% {} %}}", name));
    NeedTagEnd();
  }

  Node If(Node node) {
    node->kind = Kind::kIf;
    node->children.push_back(Tuple());
    NeedTagEnd();
    node->body = Body({"elif", "else", "endif"});
    if (IsName("elif")) {
      const Nested nested(this);
      Node next = Make(Kind::kIf);
      Take();
      node->otherwise.push_back(If(std::move(next)));
      return node;
    }
    if (TakeName("else")) {
      NeedTagEnd();
      node->otherwise = Body({"endif"});
    }
    EndOf("endif");
    return node;
  }

  std::vector<std::string> Names() {
    const bool parenthesis = TakeOperator("(");
    std::vector<std::string> names = {NeedName()};
    while (TakeOperator(",")) names.push_back(NeedName());
    if (parenthesis) NeedOperator(")");
    return names;
  }

  Node For(Node node) {
    node->kind = Kind::kFor;
    node->names = Names();
    if (!TakeName("in")) throw Expected("'in'");
    node->children.push_back(Or());  // "if" belongs to the loop
    if (TakeName("if")) node->children.push_back(Expression());
    if (IsName("recursive")) throw Error("a recursive loop is not supported");
    NeedTagEnd();
    ++loops_;
    node->body = Body({"else", "endfor"});
    --loops_;
    if (TakeName("else")) {
      NeedTagEnd();
      node->otherwise = Body({"endfor"});
    }
    EndOf("endfor");
    return node;
  }

  Node Set(Node node) {
    node->names = Names();
    if (TakeOperator(".")) {
      node->kind = Kind::kSetField;
      node->text = NeedName();
      NeedOperator("=");
      node->children.push_back(Tuple());
      NeedTagEnd();
    } else if (TakeOperator("=")) {
      node->kind = Kind::kSet;
      node->children.push_back(Tuple());
      NeedTagEnd();
    } else {
      node->kind = Kind::kSetBlock;
      NeedTagEnd();
      node->body = Body({"endset"});
      EndOf("endset");
    }
    return node;
  }

  Node FilterBlock(Node node) {
    node->kind = Kind::kFilterBlock;
    Node first = Make(Kind::kFilter, NeedName(), Make(Kind::kCaptured));
    if (IsOperator("(")) first->arguments = Arguments();
    node->children.push_back(FiltersAndTests(std::move(first)));
    NeedTagEnd();
    node->body = Body({"endfilter"});
    EndOf("endfilter");
    return node;
  }

  Node Macro(Node node) {
    node->kind = Kind::kMacro;
    node->text = NeedName();
    NeedOperator("(");
    while (!IsOperator(")")) {
      TemplateArgument parameter{.name = NeedName(), .value = nullptr};
      if (TakeOperator("=")) parameter.value = Expression();
      node->arguments.push_back(std::move(parameter));
      if (!TakeOperator(",")) break;
    }
    NeedOperator(")");
    NeedTagEnd();
    const int loops = std::exchange(loops_, 0);
    node->body = Body({"endmacro"});
    loops_ = loops;
    EndOf("endmacro");
    return node;
  }

  // --- expressions, loosest first --------------------------------------------------------------

  // "a, b" is a list.
  Node Tuple() {
    Node first = Expression();
    if (!IsOperator(",")) return first;
    Node list = Make(Kind::kList, "", std::move(first));
    while (TakeOperator(",")) {
      if (Is(Token::kTagEnd) || IsOperator(")")) break;
      list->children.push_back(Expression());
    }
    return list;
  }

  Node Expression() {
    const Nested nested(this);
    Node value = Or();
    while (TakeName("if")) {
      Node condition = Or();
      Node otherwise = TakeName("else") ? Expression() : nullptr;
      value =
          Make(Kind::kCondition, "", std::move(value), std::move(condition), std::move(otherwise));
    }
    return value;
  }

  Node Or() {
    Node value = And();
    while (TakeName("or")) value = Make(Kind::kBinary, "or", std::move(value), And());
    return value;
  }

  Node And() {
    Node value = Not();
    while (TakeName("and")) value = Make(Kind::kBinary, "and", std::move(value), Not());
    return value;
  }

  Node Not() {
    const Nested nested(this);
    if (TakeName("not")) return Make(Kind::kUnary, "not", Not());
    return Compare();
  }

  Node Compare() {
    Node value = Sum();
    while (true) {
      std::string name;
      for (const char* sign : {"==", "!=", "<=", ">=", "<", ">"}) {
        if (name.empty() && TakeOperator(sign)) name = sign;
      }
      if (name.empty() && TakeName("in")) name = "in";
      if (name.empty() && IsName("not") && Ahead(1).text == "in") {
        Take();
        Take();
        name = "not in";
      }
      if (name.empty()) return value;
      if (value->kind == Kind::kBinary && value->text != "~" && compared_ == value.get()) {
        throw Error("comparisons in a chain are not supported");
      }
      value = Make(Kind::kBinary, name, std::move(value), Sum());
      compared_ = value.get();
    }
  }

  Node Sum() {
    Node value = Joined();
    while (IsOperator("+") || IsOperator("-")) {
      std::string sign = Take();
      value = Make(Kind::kBinary, sign, std::move(value), Joined());
    }
    return value;
  }

  Node Joined() {
    Node value = Product();
    while (TakeOperator("~")) value = Make(Kind::kBinary, "~", std::move(value), Product());
    return value;
  }

  Node Product() {
    Node value = Unary();
    while (IsOperator("*") || IsOperator("/") || IsOperator("//") || IsOperator("%")) {
      std::string sign = Take();
      value = Make(Kind::kBinary, sign, std::move(value), Unary());
    }
    return value;
  }

  Node Unary() {
    const Nested nested(this);
    Node value;
    if (IsOperator("-") || IsOperator("+")) {
      std::string sign = Take();
      value = Make(Kind::kUnary, sign, Postfix(Primary()));
    } else {
      value = Postfix(Primary());
    }
    return FiltersAndTests(std::move(value));
  }

  Node Primary() {
    if (Is(Token::kString)) {
      Node node = Make(Kind::kLiteral);
      std::string text = Take();
      while (Is(Token::kString)) text += Take();
      node->literal = TemplateValue(std::move(text));
      return node;
    }
    if (Is(Token::kNumber)) return Number();
    if (TakeOperator("(")) {
      Node value = IsOperator(")") ? Make(Kind::kList) : Tuple();
      NeedOperator(")");
      compared_ = nullptr;  // a parenthesis is a value of its own
      return value;
    }
    if (IsOperator("[")) return List();
    if (IsOperator("{")) return Dict();
    Node node = Make(Kind::kName);
    node->text = NeedName();
    const std::string& name = node->text;
    if (name == "true" || name == "True" || name == "false" || name == "False") {
      node->kind = Kind::kLiteral;
      node->literal = TemplateValue(name == "true" || name == "True");
    } else if (name == "none" || name == "None") {
      node->kind = Kind::kLiteral;
      node->literal = TemplateValue(TemplateValue::None{});
    }
    return node;
  }

  Node Number() {
    Node node = Make(Kind::kLiteral);
    const std::string text = Take();
    const char* end = text.data() + text.size();
    if (text.find('.') != std::string::npos) {
      double value = 0;
      std::from_chars(text.data(), end, value);
      node->literal = TemplateValue(value);
      return node;
    }
    int64_t value = 0;
    if (std::from_chars(text.data(), end, value).ec != std::errc()) {
      throw TemplateError{node->line, fmt::format("{} is too large for an integer", text)};
    }
    node->literal = TemplateValue(value);
    return node;
  }

  Node List() {
    Node node = Make(Kind::kList);
    Take();
    while (!IsOperator("]")) {
      node->children.push_back(Expression());
      if (!TakeOperator(",")) break;
    }
    NeedOperator("]");
    return node;
  }

  Node Dict() {
    Node node = Make(Kind::kDict);
    Take();
    while (!IsOperator("}")) {
      node->children.push_back(Expression());
      NeedOperator(":");
      node->children.push_back(Expression());
      if (!TakeOperator(",")) break;
    }
    NeedOperator("}");
    return node;
  }

  Node Postfix(Node value) {
    while (true) {
      if (TakeOperator(".")) {
        std::string name = Is(Token::kNumber) ? Take() : NeedName();
        value = Make(Kind::kAttribute, name, std::move(value));
      } else if (TakeOperator("[")) {
        value = Subscript(std::move(value));
      } else if (IsOperator("(")) {
        value = Make(Kind::kCall, "", std::move(value));
        value->arguments = Arguments();
      } else {
        return value;
      }
    }
  }

  Node Subscript(Node value) {
    Node parts[3];
    int count = 0;
    bool slice = false;
    while (!IsOperator("]")) {
      if (TakeOperator(":")) {
        slice = true;
        if (++count > 2) throw Error("too many ':'");
      } else {
        if (parts[count] != nullptr) throw Expected("']'");
        parts[count] = Expression();
      }
    }
    NeedOperator("]");
    if (slice) {
      return Make(Kind::kSlice, "", std::move(value), std::move(parts[0]), std::move(parts[1]),
                  std::move(parts[2]));
    }
    if (parts[0] == nullptr) throw Error("an index is missing");
    return Make(Kind::kItem, "", std::move(value), std::move(parts[0]));
  }

  std::vector<TemplateArgument> Arguments() {
    const Nested nested(this);
    std::vector<TemplateArgument> arguments;
    NeedOperator("(");
    while (!IsOperator(")")) {
      TemplateArgument argument;
      if (IsOperator("*") || IsOperator("**")) throw Error("* in a call is not supported");
      if (Is(Token::kName) && Ahead(1).kind == Token::kOperator && Ahead(1).text == "=") {
        argument.name = Take();
        Take();
      }
      argument.value = Expression();
      arguments.push_back(std::move(argument));
      if (!TakeOperator(",")) break;
    }
    NeedOperator(")");
    return arguments;
  }

  Node FiltersAndTests(Node value) {
    while (true) {
      if (TakeOperator("|")) {
        std::string name = NeedName();
        value = Make(Kind::kFilter, name, std::move(value));
        if (IsOperator("(")) value->arguments = Arguments();
      } else if (TakeName("is")) {
        const bool negated = TakeName("not");
        value = Test(std::move(value));
        if (negated) value = Make(Kind::kUnary, "not", std::move(value));
      } else if (IsOperator("(")) {
        value = Make(Kind::kCall, "", std::move(value));
        value->arguments = Arguments();
      } else {
        return value;
      }
    }
  }

  Node Test(Node value) {
    static constexpr std::string_view kWithArgument[] = {
        "divisibleby", "eq", "equalto", "ne", "lt", "gt", "le", "ge", "in", "sameas"};
    std::string name = NeedName();
    Node test = Make(Kind::kTest, name, std::move(value));
    if (IsOperator("(")) {
      test->arguments = Arguments();
    } else if (std::find(std::begin(kWithArgument), std::end(kWithArgument), name) !=
               std::end(kWithArgument)) {
      TemplateArgument argument;
      argument.value = Postfix(Primary());
      test->arguments.push_back(std::move(argument));
    }
    return test;
  }

  const std::vector<TemplateToken> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;
  const TemplateNode* compared_ = nullptr;  // the last comparison
};

}  // namespace

TemplateNodes ParseTemplate(std::string_view source) {
  return Parser(source).Run();
}

}  // namespace expertflow

#include "serving/chat_template/template_renderer.h"

#include <fmt/format.h>

#include <map>
#include <utility>
#include <vector>

#include "serving/chat_template/template_builtins.h"

namespace expertflow {
namespace {

using Kind = TemplateNode::Kind;

constexpr size_t kOutputMax = size_t{16} << 20;
constexpr uint64_t kStepsMax = 5'000'000;
constexpr uint64_t kTurnSteps = 10;  // that a turn of a loop counts for
constexpr int kMacroDepthMax = 60;

enum class Flow { kOn, kBreak, kContinue };

class Renderer {
 public:
  Renderer(TemplateDict&& variables, int64_t now_seconds) {
    Scope functions;
    for (auto& [name, function] : TemplateFunctions(now_seconds))
      functions[name] = std::move(function);
    Scope given;
    for (auto& [name, value] : variables) given[name] = std::move(value);
    scopes_ = {std::move(functions), std::move(given), {}};
  }

  std::string Run(const TemplateNodes& nodes) {
    std::string out;
    Body(nodes, &out);
    return out;
  }

 private:
  using Scope = std::map<std::string, TemplateValue, std::less<>>;

  // Functions, the caller's variables and those of the template itself: what a macro sees.
  static constexpr size_t kGlobalScopes = 3;

  // --- statements ------------------------------------------------------------------------------

  Flow Body(const TemplateNodes& nodes, std::string* out) {
    for (const auto& node : nodes) {
      if (const Flow flow = Statement(*node, out); flow != Flow::kOn) return flow;
    }
    return Flow::kOn;
  }

  Flow Statement(const TemplateNode& node, std::string* out) {
    Step(node);
    switch (node.kind) {
      case Kind::kText: Append(node.text, out); break;
      case Kind::kOutput: {
        const TemplateValue value = Evaluate(*node.children[0]);
        line_ = node.line;
        Append(value.Print(), out);
        break;
      }
      case Kind::kIf:
        return Body(Evaluate(*node.children[0]).Truthy() ? node.body : node.otherwise, out);
      case Kind::kFor: return For(node, out);
      case Kind::kSet: Set(node.names, Evaluate(*node.children[0])); break;
      case Kind::kSetField: SetField(node); break;
      case Kind::kSetBlock: {
        std::string text;
        Body(node.body, &text);
        scopes_.back()[node.names[0]] = TemplateValue(std::move(text));
        break;
      }
      case Kind::kFilterBlock: {
        std::string text;
        Body(node.body, &text);
        captured_ = TemplateValue(std::move(text));
        Append(Evaluate(*node.children[0]).Print(), out);
        break;
      }
      case Kind::kMacro:
        scopes_.back()[node.text] =
            TemplateValue(TemplateFunction([this, &node](const TemplateArguments& arguments) {
              return CallMacro(node, arguments);
            }));
        break;
      case Kind::kBody: return Body(node.body, out);
      case Kind::kBreak: return Flow::kBreak;
      case Kind::kContinue: return Flow::kContinue;
      default: break;
    }
    return Flow::kOn;
  }

  void Append(std::string_view text, std::string* out) {
    if (out->size() + text.size() > kOutputMax) throw Error("the text grows larger than 16 MiB");
    *out += text;
  }

  // Counted, so that no template runs for ever; remembers where it is, for messages.
  void Step(const TemplateNode& node, uint64_t steps = 1) {
    line_ = node.line;
    steps_ += steps;
    if (steps_ > kStepsMax) throw Error("the template runs too long");
  }
  TemplateError Error(std::string message) const { return {line_, std::move(message)}; }

  void Set(const std::vector<std::string>& names, TemplateValue value) {
    if (names.size() == 1) {
      scopes_.back()[names[0]] = std::move(value);
      return;
    }
    const TemplateList items = ItemsOf(value);
    if (items.size() != names.size()) {
      throw Error(fmt::format("{} names for {} values", names.size(), items.size()));
    }
    for (size_t i = 0; i < names.size(); ++i) scopes_.back()[names[i]] = items[i];
  }

  void SetField(const TemplateNode& node) {
    const TemplateValue target = Lookup(node.names[0]);
    const TemplateValue::Namespace* space = target.name_space();
    if (space == nullptr) throw Error(fmt::format("{} is not a namespace()", node.names[0]));
    TemplateValue value = Evaluate(*node.children[0]);
    if (value.name_space() != nullptr) throw Error("a namespace() in a namespace()");
    for (auto& [name, field] : *space->fields) {
      if (name != node.text) continue;
      field = std::move(value);
      return;
    }
    space->fields->emplace_back(node.text, std::move(value));
  }

  Flow For(const TemplateNode& node, std::string* out) {
    TemplateList items = ItemsOf(Evaluate(*node.children[0]));
    Step(node, items.size() * kTurnSteps);
    if (node.children.size() > 1) {
      TemplateList kept;
      for (TemplateValue& item : items) {
        scopes_.emplace_back();
        Set(node.names, item);
        if (Evaluate(*node.children[1]).Truthy()) kept.push_back(std::move(item));
        scopes_.pop_back();
      }
      items = std::move(kept);
    }
    if (items.empty()) return Body(node.otherwise, out);
    for (size_t i = 0; i < items.size(); ++i) {
      scopes_.emplace_back();
      Set(node.names, items[i]);
      scopes_.back()["loop"] = LoopOf(items, i);
      const Flow flow = Body(node.body, out);
      scopes_.pop_back();
      if (flow == Flow::kBreak) break;
    }
    return Flow::kOn;
  }

  static TemplateValue LoopOf(const TemplateList& items, size_t i) {
    const auto at = static_cast<int64_t>(i);
    const auto size = static_cast<int64_t>(items.size());
    TemplateDict loop;
    loop.emplace_back("index", TemplateValue(at + 1));
    loop.emplace_back("index0", TemplateValue(at));
    loop.emplace_back("revindex", TemplateValue(size - at));
    loop.emplace_back("revindex0", TemplateValue(size - at - 1));
    loop.emplace_back("first", TemplateValue(i == 0));
    loop.emplace_back("last", TemplateValue(i + 1 == items.size()));
    loop.emplace_back("length", TemplateValue(size));
    loop.emplace_back("previtem", i == 0 ? TemplateValue() : items[i - 1]);
    loop.emplace_back("nextitem", i + 1 == items.size() ? TemplateValue() : items[i + 1]);
    loop.emplace_back("cycle",
                      TemplateValue(TemplateFunction([i](const TemplateArguments& arguments) {
                        const TemplateList& choices = arguments.positional;
                        return choices.empty() ? TemplateValue() : choices[i % choices.size()];
                      })));
    return TemplateValue(std::move(loop));
  }

  TemplateValue CallMacro(const TemplateNode& node, const TemplateArguments& arguments) {
    if (++macro_depth_ > kMacroDepthMax) throw Error("macros call each other too deep");
    std::vector<Scope> outside(std::make_move_iterator(scopes_.begin() + kGlobalScopes),
                               std::make_move_iterator(scopes_.end()));
    scopes_.resize(kGlobalScopes);
    Scope own;
    for (size_t i = 0; i < node.arguments.size(); ++i) {
      const TemplateArgument& parameter = node.arguments[i];
      TemplateValue value(TemplateValue::Undefined{parameter.name});
      if (parameter.value != nullptr) value = Evaluate(*parameter.value);
      if (i < arguments.positional.size()) value = arguments.positional[i];
      for (const auto& [name, given] : arguments.named) {
        if (name == parameter.name) value = given;
      }
      own[parameter.name] = std::move(value);
    }
    scopes_.push_back(std::move(own));
    std::string text;
    Body(node.body, &text);
    scopes_.resize(kGlobalScopes);
    for (Scope& scope : outside) scopes_.push_back(std::move(scope));
    --macro_depth_;
    return TemplateValue(std::move(text));
  }

  // --- expressions -----------------------------------------------------------------------------

  TemplateValue Lookup(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto found = scope->find(name); found != scope->end()) return found->second;
    }
    return TemplateValue(TemplateValue::Undefined{name});
  }

  TemplateArguments Arguments(const TemplateNode& node) {
    TemplateArguments arguments;
    for (const TemplateArgument& argument : node.arguments) {
      TemplateValue value = Evaluate(*argument.value);
      if (argument.name.empty()) {
        arguments.positional.push_back(std::move(value));
      } else {
        arguments.named.emplace_back(argument.name, std::move(value));
      }
    }
    return arguments;
  }

  TemplateValue Evaluate(const TemplateNode& node) {
    Step(node);
    switch (node.kind) {
      case Kind::kLiteral: return node.literal;
      case Kind::kName: return Lookup(node.text);
      case Kind::kList: {
        TemplateList list;
        for (const auto& child : node.children) list.push_back(Evaluate(*child));
        return TemplateValue(std::move(list));
      }
      case Kind::kDict: return Dict(node);
      case Kind::kAttribute: return Attribute(node);
      case Kind::kItem: {
        const TemplateValue value = Evaluate(*node.children[0]);
        const TemplateValue index = Evaluate(*node.children[1]);
        line_ = node.line;
        return IndexOf(value, index);
      }
      case Kind::kSlice: {
        TemplateValue parts[4];
        for (size_t i = 0; i < 4; ++i) {
          parts[i] = node.children[i] == nullptr ? TemplateValue(TemplateValue::None{})
                                                 : Evaluate(*node.children[i]);
        }
        line_ = node.line;
        return SliceOf(parts[0], parts[1], parts[2], parts[3]);
      }
      case Kind::kCall: return Call(node);
      case Kind::kCaptured: return captured_;
      case Kind::kFilter: {
        const TemplateValue value = Evaluate(*node.children[0]);
        const TemplateArguments arguments = Arguments(node);
        line_ = node.line;
        return ApplyFilter(node.text, value, arguments);
      }
      case Kind::kTest: {
        const TemplateValue value = Evaluate(*node.children[0]);
        const TemplateArguments arguments = Arguments(node);
        line_ = node.line;
        return TemplateValue(ApplyTest(node.text, value, arguments));
      }
      case Kind::kUnary: return Unary(node);
      case Kind::kBinary: return Binary(node);
      case Kind::kCondition:
        if (Evaluate(*node.children[1]).Truthy()) return Evaluate(*node.children[0]);
        return node.children[2] == nullptr ? TemplateValue() : Evaluate(*node.children[2]);
      default: throw Error("not an expression");
    }
  }

  TemplateValue Dict(const TemplateNode& node) {
    TemplateDict dict;
    for (size_t i = 0; i + 1 < node.children.size(); i += 2) {
      std::string key = Evaluate(*node.children[i]).Print();
      TemplateValue value = Evaluate(*node.children[i + 1]);
      std::erase_if(dict, [&key](const auto& field) { return field.first == key; });
      dict.emplace_back(std::move(key), std::move(value));
    }
    return TemplateValue(std::move(dict));
  }

  TemplateValue Attribute(const TemplateNode& node) {
    const TemplateValue value = Evaluate(*node.children[0]);
    line_ = node.line;
    if (const TemplateValue::Undefined* undefined = value.undefined()) {
      throw Error(fmt::format("'{}' is undefined", undefined->name));
    }
    if (const TemplateValue* field = value.Field(node.text)) return *field;
    return TemplateValue(TemplateValue::Undefined{node.text});
  }

  TemplateValue Call(const TemplateNode& node) {
    const TemplateNode& callee = *node.children[0];
    if (callee.kind == Kind::kAttribute) {
      const TemplateValue object = Evaluate(*callee.children[0]);
      const TemplateArguments arguments = Arguments(node);
      line_ = node.line;
      if (object.undefined() != nullptr) {
        throw Error(fmt::format("'{}' is undefined", object.undefined()->name));
      }
      const TemplateValue* field = object.Field(callee.text);
      if (field != nullptr && field->function() != nullptr) return (*field->function())(arguments);
      return CallMethod(object, callee.text, arguments);
    }
    const TemplateValue function = Evaluate(callee);
    const TemplateArguments arguments = Arguments(node);
    line_ = node.line;
    if (function.function() == nullptr) {
      throw Error(callee.kind == Kind::kName && function.undefined() != nullptr
                      ? fmt::format("'{}' is undefined", callee.text)
                      : fmt::format("{} cannot be called", function.TypeName()));
    }
    return (*function.function())(arguments);
  }

  TemplateValue Unary(const TemplateNode& node) {
    const TemplateValue value = Evaluate(*node.children[0]);
    if (node.text == "not") return TemplateValue(!value.Truthy());
    line_ = node.line;
    if (node.text == "+") return value;
    return ApplyBinary("-", TemplateValue(int64_t{0}), value);
  }

  TemplateValue Binary(const TemplateNode& node) {
    TemplateValue left = Evaluate(*node.children[0]);
    if (node.text == "and") return left.Truthy() ? Evaluate(*node.children[1]) : left;
    if (node.text == "or") return left.Truthy() ? left : Evaluate(*node.children[1]);
    const TemplateValue right = Evaluate(*node.children[1]);
    line_ = node.line;
    return ApplyBinary(node.text, left, right);
  }

  // Errors of the built-in functions know no line; ours of the moment is the right one.
 public:
  int line() const { return line_; }

 private:
  std::vector<Scope> scopes_;
  int line_ = 0;
  uint64_t steps_ = 0;
  TemplateValue captured_;  // of the filter block that is applied
  int macro_depth_ = 0;
};

}  // namespace

std::string RenderTemplate(const TemplateNodes& nodes, TemplateDict variables,
                           int64_t now_seconds) {
  Renderer renderer(std::move(variables), now_seconds);
  try {
    return renderer.Run(nodes);
  } catch (TemplateError& error) {
    if (error.line == 0) error.line = renderer.line();
    throw;
  }
}

}  // namespace expertflow

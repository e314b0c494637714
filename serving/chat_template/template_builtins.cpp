#include "serving/chat_template/template_builtins.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>
#include <limits>
#include <memory>
#include <utility>

namespace expertflow {
namespace {

constexpr int64_t kRangeMax = 100'000;
constexpr size_t kTextMax = size_t{64} << 20;

[[noreturn]] void Fail(std::string message) {
  throw TemplateError{0, std::move(message)};
}

// An argument by place or name; null when it is not given.
const TemplateValue* Find(const TemplateArguments& arguments, size_t place,
                          std::string_view name = "") {
  if (place < arguments.positional.size()) return &arguments.positional[place];
  for (const auto& [given, value] : arguments.named) {
    if (!name.empty() && given == name) return &value;
  }
  return nullptr;
}

const TemplateValue& Need(const TemplateArguments& arguments, size_t place,
                          std::string_view function) {
  const TemplateValue* value = Find(arguments, place);
  if (value == nullptr) Fail(fmt::format("{}() needs more arguments", function));
  return *value;
}

const std::string& NeedText(const TemplateValue& value, std::string_view function) {
  if (value.string() == nullptr) {
    Fail(fmt::format("{} needs a string, found {}", function, value.TypeName()));
  }
  return *value.string();
}

int64_t NeedInteger(const TemplateValue& value, std::string_view function) {
  if (const bool* boolean = value.boolean()) return *boolean ? 1 : 0;
  if (value.integer() == nullptr) {
    Fail(fmt::format("{} needs an integer, found {}", function, value.TypeName()));
  }
  return *value.integer();
}

TemplateValue Text(std::string_view text) {
  return TemplateValue(std::string(text));
}

int64_t LengthOf(const TemplateValue& value) {
  if (const std::string* text = value.string()) {
    return static_cast<int64_t>(Characters(*text).size());
  }
  if (value.list() != nullptr) return static_cast<int64_t>(value.list()->size());
  if (value.dict() != nullptr) return static_cast<int64_t>(value.dict()->size());
  if (value.undefined() != nullptr) return 0;
  Fail(fmt::format("{} has no length", value.TypeName()));
}

bool Contains(const TemplateValue& container, const TemplateValue& item) {
  if (const std::string* text = container.string()) {
    return text->find(NeedText(item, "in")) != std::string::npos;
  }
  if (const TemplateList* list = container.list()) {
    return std::find(list->begin(), list->end(), item) != list->end();
  }
  if (container.dict() != nullptr || container.name_space() != nullptr) {
    return item.string() != nullptr && container.Field(*item.string()) != nullptr;
  }
  if (container.undefined() != nullptr) return false;
  Fail(fmt::format("{} contains nothing", container.TypeName()));
}

// Characters may be of the set in any order; an empty set means white space.
std::string_view Stripped(std::string_view text, const TemplateValue* set, bool left, bool right) {
  const std::string_view characters = set == nullptr || set->string() == nullptr
                                          ? kTemplateSpace
                                          : std::string_view(*set->string());
  if (left) text.remove_prefix(std::min(text.find_first_not_of(characters), text.size()));
  if (right) text = text.substr(0, text.find_last_not_of(characters) + 1);
  return text;
}

std::string WithCase(std::string text, bool upper) {
  for (char& c : text) {
    if (upper && c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    if (!upper && c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

std::string Title(const std::string& text) {
  std::string out = WithCase(text, false);
  bool start = true;
  for (char& c : out) {
    const bool letter = (c >= 'a' && c <= 'z') || (c & 0x80) != 0;
    if (start && c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    start = !letter;
  }
  return out;
}

std::string Capitalized(const std::string& text) {
  std::string out = WithCase(text, false);
  if (!out.empty()) out.replace(0, 1, WithCase(out.substr(0, 1), true));
  return out;
}

std::string Replaced(const std::string& text, const std::string& from, const std::string& to,
                     int64_t count) {
  if (from.empty()) Fail("replace() needs some text to look for");
  std::string out;
  size_t at = 0;
  for (size_t found = text.find(from); found != std::string::npos && count != 0;
       found = text.find(from, at), --count) {
    out.append(text, at, found - at).append(to);
    at = found + from.size();
    if (out.size() > kTextMax) Fail("a text grows too large");
  }
  return out.append(text, at);
}

// Python's str.format() with {}, {0} and {name}, each without a format of its own.
std::string Formatted(const std::string& text, const TemplateArguments& arguments) {
  std::string out;
  size_t next = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c != '{' && c != '}') {
      out += c;
      continue;
    }
    if (at + 1 < text.size() && text[at + 1] == c) {
      out += text[at++];
      continue;
    }
    const size_t end = c == '{' ? text.find('}', at) : std::string::npos;
    if (end == std::string::npos) Fail("format(): a brace is alone");
    const std::string field = text.substr(at + 1, end - at - 1);
    const bool number = field.size() < 4 && field.find_first_not_of("0123456789") == field.npos;
    const size_t place = field.empty() ? next++
                         : number      ? static_cast<size_t>(std::stoi(field))
                                       : std::numeric_limits<size_t>::max();
    const TemplateValue* value = Find(arguments, place, field);
    if (value == nullptr)
      Fail(fmt::format("format(): {{{}}} is not supported or not there", field));
    out += value->Print();
    if (out.size() > kTextMax) Fail("a text grows too large");
    at = end;
  }
  return out;
}

TemplateList Split(const std::string& text, const TemplateValue* separator, int64_t max) {
  TemplateList parts;
  if (separator == nullptr || separator->string() == nullptr) {
    for (size_t at = text.find_first_not_of(kTemplateSpace); at != std::string::npos;) {
      const bool last = max >= 0 && static_cast<int64_t>(parts.size()) == max;
      const size_t end = last ? std::string::npos : text.find_first_of(kTemplateSpace, at);
      parts.push_back(Text(std::string_view(text).substr(at, end - at)));
      at = end == std::string::npos ? end : text.find_first_not_of(kTemplateSpace, end);
    }
    return parts;
  }
  const std::string& by = *separator->string();
  if (by.empty()) Fail("split() needs some text to split at");
  size_t at = 0;
  while (max < 0 || static_cast<int64_t>(parts.size()) < max) {
    const size_t end = text.find(by, at);
    if (end == std::string::npos) break;
    parts.push_back(Text(std::string_view(text).substr(at, end - at)));
    at = end + by.size();
  }
  parts.push_back(Text(std::string_view(text).substr(at)));
  return parts;
}

TemplateList Pairs(const TemplateValue& value) {
  TemplateList pairs;
  if (value.undefined() != nullptr) return pairs;
  if (value.dict() == nullptr) Fail(fmt::format("{} has no items", value.TypeName()));
  for (const auto& [name, field] : *value.dict()) {
    pairs.emplace_back(TemplateList{Text(name), field});
  }
  return pairs;
}

bool Less(const TemplateValue& a, const TemplateValue& b) {
  if (a.IsNumber() && b.IsNumber()) return a.AsReal() < b.AsReal();
  if (a.string() != nullptr && b.string() != nullptr) return *a.string() < *b.string();
  if (a.list() != nullptr && b.list() != nullptr) {
    return std::lexicographical_compare(a.list()->begin(), a.list()->end(), b.list()->begin(),
                                        b.list()->end(), Less);
  }
  Fail(fmt::format("{} and {} have no order", a.TypeName(), b.TypeName()));
}

// "a.b" of an item; the item itself without a name.
TemplateValue AttributeOf(const TemplateValue& item, const TemplateValue* name) {
  if (name == nullptr) return item;
  TemplateValue value = item;
  std::string_view rest = NeedText(*name, "attribute");
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find('.'));
    const TemplateValue* field = value.Field(part);
    TemplateValue next = field == nullptr ? TemplateValue() : *field;
    value = std::move(next);
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
  }
  return value;
}

TemplateList Selected(const TemplateValue& value, const TemplateArguments& arguments,
                      bool by_attribute, bool wanted) {
  TemplateList selected;
  const size_t test = by_attribute ? 1 : 0;
  TemplateArguments rest;
  for (size_t i = test + 1; i < arguments.positional.size(); ++i) {
    rest.positional.push_back(arguments.positional[i]);
  }
  for (const TemplateValue& item : ItemsOf(value)) {
    const TemplateValue tested =
        by_attribute ? AttributeOf(item, &Need(arguments, 0, "selectattr")) : item;
    const TemplateValue* name = Find(arguments, test);
    const bool holds =
        name == nullptr ? tested.Truthy() : ApplyTest(NeedText(*name, "select"), tested, rest);
    if (holds == wanted) selected.push_back(item);
  }
  return selected;
}

TemplateList Mapped(const TemplateValue& value, const TemplateArguments& arguments) {
  TemplateList mapped;
  const TemplateValue* attribute = Find(arguments, std::numeric_limits<size_t>::max(), "attribute");
  TemplateArguments rest;
  for (size_t i = 1; i < arguments.positional.size(); ++i) {
    rest.positional.push_back(arguments.positional[i]);
  }
  for (const TemplateValue& item : ItemsOf(value)) {
    mapped.push_back(attribute != nullptr
                         ? AttributeOf(item, attribute)
                         : ApplyFilter(NeedText(Need(arguments, 0, "map"), "map"), item, rest));
  }
  return mapped;
}

TemplateValue Sorted(const TemplateValue& value, const TemplateArguments& arguments) {
  TemplateList items = ItemsOf(value);
  const TemplateValue* reverse = Find(arguments, 0, "reverse");
  const TemplateValue* attribute = Find(arguments, 2, "attribute");
  std::stable_sort(items.begin(), items.end(), [&](const auto& a, const auto& b) {
    const TemplateValue left = AttributeOf(a, attribute);
    const TemplateValue right = AttributeOf(b, attribute);
    const bool caseless = left.string() != nullptr && right.string() != nullptr;
    if (caseless) return WithCase(*left.string(), false) < WithCase(*right.string(), false);
    return Less(left, right);
  });
  if (reverse != nullptr && reverse->Truthy()) std::reverse(items.begin(), items.end());
  return TemplateValue(std::move(items));
}

std::string Joined(const TemplateValue& value, const TemplateArguments& arguments) {
  const TemplateValue* separator = Find(arguments, 0, "d");
  const TemplateValue* attribute = Find(arguments, 1, "attribute");
  std::string out;
  bool first = true;
  for (const TemplateValue& item : ItemsOf(value)) {
    if (!first && separator != nullptr) out += separator->Print();
    first = false;
    out += AttributeOf(item, attribute).Print();
  }
  return out;
}

std::string Indented(const std::string& text, const TemplateArguments& arguments) {
  const TemplateValue* width = Find(arguments, 0, "width");
  const TemplateValue* first = Find(arguments, 1, "first");
  const TemplateValue* blank = Find(arguments, 2, "blank");
  const std::string pad =
      width != nullptr && width->string() != nullptr
          ? *width->string()
          : std::string(static_cast<size_t>(std::clamp<int64_t>(
                            width == nullptr ? 4 : NeedInteger(*width, "indent"), 0, 1000)),
                        ' ');
  std::string out = first != nullptr && first->Truthy() ? pad : "";
  for (size_t i = 0; i < text.size(); ++i) {
    out += text[i];
    const bool next_blank = i + 1 == text.size() || text[i + 1] == '\n';
    if (text[i] == '\n' && (!next_blank || (blank != nullptr && blank->Truthy()))) out += pad;
  }
  return out;
}

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&#34;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

TemplateValue ToInteger(const TemplateValue& value, const TemplateArguments& arguments) {
  if (value.boolean() != nullptr || value.integer() != nullptr) {
    return TemplateValue(NeedInteger(value, "int"));
  }
  double number = std::numeric_limits<double>::quiet_NaN();
  if (value.real() != nullptr) number = *value.real();
  if (const std::string* text = value.string()) {
    const std::string_view digits = Stripped(*text, nullptr, true, true);
    int64_t integer = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), integer);
    if (error == std::errc() && end == digits.data() + digits.size()) return TemplateValue(integer);
    const auto [stop, bad] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (bad != std::errc() || stop != digits.data() + digits.size()) {
      number = std::numeric_limits<double>::quiet_NaN();
    }
  }
  if (std::fabs(number) < 9e18) return TemplateValue(static_cast<int64_t>(number));
  const TemplateValue* otherwise = Find(arguments, 0, "default");
  return otherwise == nullptr ? TemplateValue(int64_t{0}) : *otherwise;
}

TemplateValue ToReal(const TemplateValue& value) {
  if (value.IsNumber()) return TemplateValue(value.AsReal());
  double number = 0;
  if (const std::string* text = value.string()) {
    std::from_chars(text->data(), text->data() + text->size(), number);
  }
  return TemplateValue(number);
}

TemplateValue Rounded(const TemplateValue& value, const TemplateArguments& arguments) {
  if (!value.IsNumber()) Fail(fmt::format("round needs a number, found {}", value.TypeName()));
  const TemplateValue* places = Find(arguments, 0, "precision");
  const double scale =
      std::pow(10.0, static_cast<double>(places == nullptr ? 0 : NeedInteger(*places, "round")));
  return TemplateValue(std::nearbyint(value.AsReal() * scale) / scale);
}

TemplateValue Extreme(const TemplateValue& value, bool largest) {
  const TemplateList items = ItemsOf(value);
  if (items.empty()) return TemplateValue();
  return *(largest ? std::max_element(items.begin(), items.end(), Less)
                   : std::min_element(items.begin(), items.end(), Less));
}

TemplateValue Reversed(const TemplateValue& value) {
  if (const std::string* text = value.string()) {
    std::string out;
    const auto characters = Characters(*text);
    for (auto c = characters.rbegin(); c != characters.rend(); ++c) out += *c;
    return TemplateValue(std::move(out));
  }
  TemplateList items = ItemsOf(value);
  std::reverse(items.begin(), items.end());
  return TemplateValue(std::move(items));
}

}  // namespace

TemplateList ItemsOf(const TemplateValue& value) {
  TemplateList items;
  if (value.list() != nullptr) return *value.list();
  if (value.undefined() != nullptr) return items;
  if (const TemplateDict* dict = value.dict()) {
    for (const auto& [name, field] : *dict) items.push_back(Text(name));
    return items;
  }
  if (const std::string* text = value.string()) {
    for (const std::string_view character : Characters(*text)) items.push_back(Text(character));
    return items;
  }
  Fail(fmt::format("{} cannot be gone through", value.TypeName()));
}

TemplateValue ApplyFilter(std::string_view name, const TemplateValue& value,
                          const TemplateArguments& arguments) {
  if (name == "default" || name == "d") {
    const TemplateValue* otherwise = Find(arguments, 0, "default_value");
    const TemplateValue* falsy = Find(arguments, 1, "boolean");
    const bool missing =
        value.undefined() != nullptr || (falsy != nullptr && falsy->Truthy() && !value.Truthy());
    if (!missing) return value;
    return otherwise == nullptr ? Text("") : *otherwise;
  }
  if (name == "length" || name == "count") return TemplateValue(LengthOf(value));
  if (name == "tojson") {
    const TemplateValue* indent = Find(arguments, 1, "indent");
    const bool one_line = indent == nullptr || indent->is_none();
    return TemplateValue(TemplateJson(
        value, one_line
                   ? -1
                   : static_cast<int>(std::clamp<int64_t>(NeedInteger(*indent, "tojson"), 0, 16))));
  }
  if (name == "string") return TemplateValue(value.Print());
  if (name == "safe") return value;
  if (name == "trim") {
    return Text(Stripped(value.Print(), Find(arguments, 0, "chars"), true, true));
  }
  if (name == "upper" || name == "lower")
    return TemplateValue(WithCase(value.Print(), name == "upper"));
  if (name == "title") return TemplateValue(Title(value.Print()));
  if (name == "capitalize") return TemplateValue(Capitalized(value.Print()));
  if (name == "escape" || name == "e") return TemplateValue(Escaped(value.Print()));
  if (name == "indent") return TemplateValue(Indented(value.Print(), arguments));
  if (name == "replace") {
    return TemplateValue(Replaced(value.Print(), NeedText(Need(arguments, 0, name), name),
                                  NeedText(Need(arguments, 1, name), name), -1));
  }
  if (name == "join") return TemplateValue(Joined(value, arguments));
  if (name == "int") return ToInteger(value, arguments);
  if (name == "float") return ToReal(value);
  if (name == "abs") {
    if (value.integer() != nullptr)
      return TemplateValue(*value.integer() < 0 ? 0 - *value.integer() : *value.integer());
    return TemplateValue(std::fabs(ToReal(value).AsReal()));
  }
  if (name == "round") return Rounded(value, arguments);
  if (name == "items") return TemplateValue(Pairs(value));
  if (name == "dictsort") {
    const TemplateValue pairs(Pairs(value));
    return Sorted(pairs, {});
  }
  if (name == "list") return TemplateValue(ItemsOf(value));
  if (name == "reverse") return Reversed(value);
  if (name == "sort") return Sorted(value, arguments);
  if (name == "max" || name == "min") return Extreme(value, name == "max");
  if (name == "first" || name == "last") {
    const TemplateList items = ItemsOf(value);
    if (items.empty()) return TemplateValue();
    return name == "first" ? items.front() : items.back();
  }
  if (name == "unique") {
    TemplateList unique;
    for (const TemplateValue& item : ItemsOf(value)) {
      if (std::find(unique.begin(), unique.end(), item) == unique.end()) unique.push_back(item);
    }
    return TemplateValue(std::move(unique));
  }
  if (name == "sum") {
    TemplateValue sum(int64_t{0});
    for (const TemplateValue& item : ItemsOf(value)) {
      sum = ApplyBinary("+", sum, AttributeOf(item, Find(arguments, 0, "attribute")));
    }
    return sum;
  }
  if (name == "selectattr") return TemplateValue(Selected(value, arguments, true, true));
  if (name == "rejectattr") return TemplateValue(Selected(value, arguments, true, false));
  if (name == "select") return TemplateValue(Selected(value, arguments, false, true));
  if (name == "reject") return TemplateValue(Selected(value, arguments, false, false));
  if (name == "map") return TemplateValue(Mapped(value, arguments));
  Fail(fmt::format("the filter {} is not supported", name));
}

bool ApplyTest(std::string_view name, const TemplateValue& value,
               const TemplateArguments& arguments) {
  if (name == "defined") return value.undefined() == nullptr;
  if (name == "undefined") return value.undefined() != nullptr;
  if (name == "none") return value.is_none();
  if (name == "string") return value.string() != nullptr;
  if (name == "number") return value.IsNumber();
  if (name == "integer") return value.integer() != nullptr;
  if (name == "float") return value.real() != nullptr;
  if (name == "boolean") return value.boolean() != nullptr;
  if (name == "true") return value.boolean() != nullptr && *value.boolean();
  if (name == "false") return value.boolean() != nullptr && !*value.boolean();
  if (name == "mapping") return value.dict() != nullptr;
  if (name == "sequence" || name == "iterable") {
    return value.list() != nullptr || value.dict() != nullptr || value.string() != nullptr ||
           value.undefined() != nullptr;
  }
  if (name == "callable") return value.function() != nullptr;
  if (name == "odd") return NeedInteger(value, name) % 2 != 0;
  if (name == "even") return NeedInteger(value, name) % 2 == 0;
  if (name == "divisibleby") {
    const int64_t by = NeedInteger(Need(arguments, 0, name), name);
    if (by == 0) Fail("divisibleby 0");
    return by == -1 || NeedInteger(value, name) % by == 0;
  }
  if (name == "in") return Contains(Need(arguments, 0, name), value);
  if (name == "eq" || name == "equalto" || name == "sameas")
    return value == Need(arguments, 0, name);
  if (name == "ne") return !(value == Need(arguments, 0, name));
  if (name == "lt") return Less(value, Need(arguments, 0, name));
  if (name == "gt") return Less(Need(arguments, 0, name), value);
  if (name == "le") return !Less(Need(arguments, 0, name), value);
  if (name == "ge") return !Less(value, Need(arguments, 0, name));
  Fail(fmt::format("the test {} is not supported", name));
}

TemplateValue CallMethod(const TemplateValue& value, std::string_view name,
                         const TemplateArguments& arguments) {
  if (const std::string* text = value.string()) {
    if (name == "strip") return Text(Stripped(*text, Find(arguments, 0), true, true));
    if (name == "lstrip") return Text(Stripped(*text, Find(arguments, 0), true, false));
    if (name == "rstrip") return Text(Stripped(*text, Find(arguments, 0), false, true));
    if (name == "startswith" || name == "endswith") {
      const TemplateValue& parts = Need(arguments, 0, name);
      const TemplateList list = parts.list() != nullptr ? *parts.list() : TemplateList{parts};
      return TemplateValue(std::any_of(list.begin(), list.end(), [&](const TemplateValue& part) {
        const std::string& wanted = NeedText(part, name);
        return name == "startswith" ? text->starts_with(wanted) : text->ends_with(wanted);
      }));
    }
    if (name == "split") {
      const TemplateValue* max = Find(arguments, 1, "maxsplit");
      return TemplateValue(
          Split(*text, Find(arguments, 0, "sep"), max == nullptr ? -1 : NeedInteger(*max, name)));
    }
    if (name == "splitlines") {
      TemplateList lines;
      for (size_t at = 0; at < text->size();) {
        const size_t end = std::min(text->find('\n', at), text->size());
        lines.push_back(Text(std::string_view(*text).substr(at, end - at)));
        at = end + 1;
      }
      return TemplateValue(std::move(lines));
    }
    if (name == "replace") {
      const TemplateValue* count = Find(arguments, 2);
      return TemplateValue(Replaced(*text, NeedText(Need(arguments, 0, name), name),
                                    NeedText(Need(arguments, 1, name), name),
                                    count == nullptr ? -1 : NeedInteger(*count, name)));
    }
    if (name == "upper" || name == "lower") return TemplateValue(WithCase(*text, name == "upper"));
    if (name == "title") return TemplateValue(Title(*text));
    if (name == "format") return TemplateValue(Formatted(*text, arguments));
    if (name == "capitalize") return TemplateValue(Capitalized(*text));
    if (name == "join") {
      TemplateArguments by;
      by.positional.push_back(value);
      return TemplateValue(Joined(Need(arguments, 0, name), by));
    }
    if (name == "find") {
      const size_t at = text->find(NeedText(Need(arguments, 0, name), name));
      if (at == std::string::npos) return TemplateValue(int64_t{-1});
      return TemplateValue(static_cast<int64_t>(Characters(text->substr(0, at)).size()));
    }
    if (name == "count") {
      const std::string& part = NeedText(Need(arguments, 0, name), name);
      int64_t count = 0;
      for (size_t at = text->find(part); !part.empty() && at != std::string::npos;
           at = text->find(part, at + part.size())) {
        ++count;
      }
      return TemplateValue(count);
    }
    if (name == "isdigit") {
      return TemplateValue(!text->empty() && std::all_of(text->begin(), text->end(), [](char c) {
        return c >= '0' && c <= '9';
      }));
    }
  }
  if (const TemplateDict* dict = value.dict()) {
    if (name == "items") return TemplateValue(Pairs(value));
    if (name == "keys") return TemplateValue(ItemsOf(value));
    if (name == "values") {
      TemplateList values;
      for (const auto& field : *dict) values.push_back(field.second);
      return TemplateValue(std::move(values));
    }
    if (name == "get") {
      const TemplateValue* field = value.Field(Need(arguments, 0, name).Print());
      if (field != nullptr) return *field;
      const TemplateValue* otherwise = Find(arguments, 1);
      return otherwise == nullptr ? TemplateValue(TemplateValue::None{}) : *otherwise;
    }
  }
  if (const TemplateList* list = value.list()) {
    if (name == "index" || name == "count") {
      const TemplateValue& wanted = Need(arguments, 0, name);
      if (name == "count") {
        return TemplateValue(static_cast<int64_t>(std::count(list->begin(), list->end(), wanted)));
      }
      const auto found = std::find(list->begin(), list->end(), wanted);
      if (found == list->end()) Fail("index(): it is not in the list");
      return TemplateValue(static_cast<int64_t>(found - list->begin()));
    }
  }
  Fail(fmt::format("{} has no method {}", value.TypeName(), name));
}

// --- operators ---------------------------------------------------------------------------------

namespace {

TemplateValue Divided(std::string_view sign, const TemplateValue& left,
                      const TemplateValue& right) {
  if (right.AsReal() == 0) Fail("division by zero");
  if (sign == "/") return TemplateValue(left.AsReal() / right.AsReal());
  if (left.real() == nullptr && right.real() == nullptr) {
    const int64_t a = NeedInteger(left, sign);
    const int64_t b = NeedInteger(right, sign);
    if (b == -1)
      return sign == "%" ? TemplateValue(int64_t{0})
                         : TemplateValue(static_cast<int64_t>(0 - static_cast<uint64_t>(a)));
    int64_t quotient = a / b;
    int64_t rest = a % b;
    if (rest != 0 && (rest < 0) != (b < 0)) {  // Python rounds down
      --quotient;
      rest += b;
    }
    return TemplateValue(sign == "%" ? rest : quotient);
  }
  const double quotient = std::floor(left.AsReal() / right.AsReal());
  return TemplateValue(sign == "%" ? left.AsReal() - quotient * right.AsReal() : quotient);
}

TemplateValue Computed(std::string_view sign, const TemplateValue& left,
                       const TemplateValue& right) {
  if (sign == "/" || sign == "//" || sign == "%") return Divided(sign, left, right);
  if (left.real() != nullptr || right.real() != nullptr) {
    const double a = left.AsReal();
    const double b = right.AsReal();
    return TemplateValue(sign == "+" ? a + b : sign == "-" ? a - b : a * b);
  }
  const int64_t a = NeedInteger(left, sign);
  const int64_t b = NeedInteger(right, sign);
  int64_t result = 0;
  const bool overflow = sign == "+"   ? __builtin_add_overflow(a, b, &result)
                        : sign == "-" ? __builtin_sub_overflow(a, b, &result)
                                      : __builtin_mul_overflow(a, b, &result);
  if (overflow) Fail("a number grows too large");
  return TemplateValue(result);
}

}  // namespace

TemplateValue ApplyBinary(std::string_view sign, const TemplateValue& left,
                          const TemplateValue& right) {
  if (sign == "==") return TemplateValue(left == right);
  if (sign == "!=") return TemplateValue(!(left == right));
  if (sign == "<") return TemplateValue(Less(left, right));
  if (sign == ">") return TemplateValue(Less(right, left));
  if (sign == "<=") return TemplateValue(!Less(right, left));
  if (sign == ">=") return TemplateValue(!Less(left, right));
  if (sign == "in") return TemplateValue(Contains(right, left));
  if (sign == "not in") return TemplateValue(!Contains(right, left));
  if (sign == "~") return TemplateValue(left.Print() + right.Print());
  for (const TemplateValue* side : {&left, &right}) {
    if (side->undefined() != nullptr)
      Fail(fmt::format("'{}' is undefined", side->undefined()->name));
  }
  if (sign == "+" && left.string() != nullptr && right.string() != nullptr) {
    if (left.string()->size() + right.string()->size() > kTextMax) Fail("a text grows too large");
    return TemplateValue(*left.string() + *right.string());
  }
  if (sign == "+" && left.list() != nullptr && right.list() != nullptr) {
    TemplateList list = *left.list();
    list.insert(list.end(), right.list()->begin(), right.list()->end());
    return TemplateValue(std::move(list));
  }
  if (sign == "*" && left.string() != nullptr && right.integer() != nullptr) {
    const auto count = static_cast<size_t>(std::max<int64_t>(*right.integer(), 0));
    if (count > 0 && left.string()->size() > kTextMax / count) Fail("a text grows too large");
    std::string text;
    for (size_t i = 0; i < count && !left.string()->empty(); ++i) text += *left.string();
    return TemplateValue(std::move(text));
  }
  if (left.IsNumber() && right.IsNumber()) return Computed(sign, left, right);
  Fail(fmt::format("{} {} {} cannot be computed", left.TypeName(), sign, right.TypeName()));
}

TemplateValue IndexOf(const TemplateValue& value, const TemplateValue& index) {
  if (const TemplateValue::Undefined* undefined = value.undefined()) {
    Fail(fmt::format("'{}' is undefined", undefined->name));
  }
  if (index.string() != nullptr) {
    const TemplateValue* field = value.Field(*index.string());
    return field == nullptr ? TemplateValue(TemplateValue::Undefined{*index.string()}) : *field;
  }
  if (index.integer() == nullptr) return TemplateValue(TemplateValue::Undefined{index.Print()});
  int64_t at = *index.integer();
  const bool text = value.string() != nullptr;
  if (!text && value.list() == nullptr)
    return TemplateValue(TemplateValue::Undefined{index.Print()});
  const int64_t size = LengthOf(value);
  if (at < 0) at += size;
  if (at < 0 || at >= size) return TemplateValue(TemplateValue::Undefined{index.Print()});
  if (text) return Text(Characters(*value.string())[static_cast<size_t>(at)]);
  return (*value.list())[static_cast<size_t>(at)];
}

TemplateValue SliceOf(const TemplateValue& value, const TemplateValue& first,
                      const TemplateValue& last, const TemplateValue& step_value) {
  const bool text = value.string() != nullptr;
  if (!text && value.list() == nullptr) Fail(fmt::format("{} cannot be sliced", value.TypeName()));
  const TemplateList items = ItemsOf(value);
  const auto size = static_cast<int64_t>(items.size());
  const int64_t step = step_value.is_none() ? 1 : NeedInteger(step_value, "a slice");
  if (step == 0) Fail("a slice's step is 0");
  const auto bound = [&](const TemplateValue& given, int64_t otherwise) {
    if (given.is_none()) return otherwise;
    int64_t at = NeedInteger(given, "a slice");
    if (at < 0) at += size;
    return step > 0 ? std::clamp<int64_t>(at, 0, size) : std::clamp<int64_t>(at, -1, size - 1);
  };
  const int64_t from = bound(first, step > 0 ? 0 : size - 1);
  const int64_t to = bound(last, step > 0 ? size : -1);
  TemplateList slice;
  for (int64_t i = from; step > 0 ? i < to : i > to;) {
    slice.push_back(items[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  if (!text) return TemplateValue(std::move(slice));
  std::string joined;
  for (const TemplateValue& character : slice) joined += *character.string();
  return TemplateValue(std::move(joined));
}

// --- functions ---------------------------------------------------------------------------------

TemplateDict TemplateFunctions(int64_t now_seconds) {
  TemplateDict functions;
  const auto add = [&functions](const char* name, TemplateFunction function) {
    functions.emplace_back(name, TemplateValue(std::move(function)));
  };
  add("raise_exception", [](const TemplateArguments& arguments) -> TemplateValue {
    Fail(Need(arguments, 0, "raise_exception").Print());
  });
  add("strftime_now", [now_seconds](const TemplateArguments& arguments) {
    const std::string& format = NeedText(Need(arguments, 0, "strftime_now"), "strftime_now");
    const std::time_t now = now_seconds;
    std::tm local{};
    ::localtime_r(&now, &local);
    std::string text(4096, '\0');
    text.resize(std::strftime(text.data(), text.size(), format.c_str(), &local));
    return TemplateValue(std::move(text));
  });
  add("range", [](const TemplateArguments& arguments) {
    const int64_t one = NeedInteger(Need(arguments, 0, "range"), "range");
    const bool more = arguments.positional.size() > 1;
    const int64_t first = more ? one : 0;
    const int64_t last = more ? NeedInteger(arguments.positional[1], "range") : one;
    const int64_t step =
        arguments.positional.size() > 2 ? NeedInteger(arguments.positional[2], "range") : 1;
    if (step == 0) Fail("range() with step 0");
    TemplateList numbers;
    for (int64_t i = first; step > 0 ? i < last : i > last;) {
      if (static_cast<int64_t>(numbers.size()) >= kRangeMax) Fail("range() is too long");
      numbers.emplace_back(i);
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    return TemplateValue(std::move(numbers));
  });
  add("namespace", [](const TemplateArguments& arguments) {
    auto fields = std::make_shared<TemplateDict>(arguments.named);
    if (const TemplateValue* given = Find(arguments, 0);
        given != nullptr && given->dict() != nullptr) {
      fields->insert(fields->begin(), given->dict()->begin(), given->dict()->end());
    }
    return TemplateValue(TemplateValue::Namespace{std::move(fields)});
  });
  add("dict", [](const TemplateArguments& arguments) { return TemplateValue(arguments.named); });
  return functions;
}

}  // namespace expertflow

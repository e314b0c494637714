#include "model/checkpoint/json_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "common/mapped_file.h"
#include "model/checkpoint/json_stream.h"

namespace expertflow {
namespace {

constexpr size_t kConfigDepthMax = 16;

}  // namespace

struct JsonConfig::Value {
  struct Member;
  using Array = std::vector<Value>;
  using Object = std::vector<Member>;  // in the file's order

  bool IsNull() const { return std::holds_alternative<std::nullptr_t>(held); }
  std::string Describe() const;

  std::variant<std::nullptr_t, bool, int64_t, double, std::string, Array, Object> held;
  mutable bool read = false;    // by a typed reader, or ignored
  mutable bool opened = false;  // by Object()
};

struct JsonConfig::Value::Member {
  std::string key;
  Value value;
};

struct JsonConfig::Document {
  std::string name;
  std::string text;
  Value root;
};

namespace {

// Builds the tree of a JsonConfig; a template because JsonConfig::Value is private.
template <typename Value>
class TreeBuilder : public JsonHandler {
 public:
  explicit TreeBuilder(Value* root) : root_(root) {}

  Status BeginObject() override { return Open(typename Value::Object()); }
  Status BeginArray() override { return Open(typename Value::Array()); }
  Status EndArray() override {
    open_.pop_back();
    return OkStatus();
  }
  Status EndObject() override {
    std::vector<std::string_view> keys;
    for (const auto& member : std::get<typename Value::Object>(open_.back()->held)) {
      keys.push_back(member.key);
    }
    open_.pop_back();
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice == keys.end()) return OkStatus();
    return InvalidArgument(fmt::format("{}: the key is there twice", *twice));
  }
  Status Key(std::string_view key) override {
    std::get<typename Value::Object>(open_.back()->held).push_back({std::string(key), Value()});
    return OkStatus();
  }
  Status Scalar(const JsonScalar& value) override {
    Value* place = Place();
    std::visit(
        [place](const auto& held) {
          if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::string_view>) {
            place->held = std::string(held);
          } else {
            place->held = held;
          }
        },
        value);
    return OkStatus();
  }

 private:
  // Where the next value belongs. Every open container is the last element of the one around it,
  // so growing the innermost moves none of them.
  Value* Place() {
    if (open_.empty()) return root_;
    if (auto* object = std::get_if<typename Value::Object>(&open_.back()->held)) {
      return &object->back().value;
    }
    return &std::get<typename Value::Array>(open_.back()->held).emplace_back();
  }

  template <typename Container>
  Status Open(Container empty) {
    Value* place = Place();
    place->held = std::move(empty);
    open_.push_back(place);
    return OkStatus();
  }

  Value* root_;
  std::vector<Value*> open_;
};

template <typename Value>
void CollectUnread(const typename Value::Object& object, const std::string& prefix,
                   std::vector<std::string>* unread) {
  for (const auto& [key, value] : object) {
    if (value.IsNull()) continue;
    if (value.opened) {
      CollectUnread<Value>(std::get<typename Value::Object>(value.held), prefix + key + ".",
                           unread);
    } else if (!value.read) {
      unread->push_back(prefix + key);
    }
  }
}

}  // namespace

std::string JsonConfig::Value::Describe() const {
  return std::visit(
      [](const auto& value) -> std::string {
        using Held = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Held, Array>) {
          return "a list";
        } else if constexpr (std::is_same_v<Held, Object>) {
          return "an object";
        } else if constexpr (std::is_same_v<Held, std::string>) {
          return DescribeJson(std::string_view(value));
        } else {
          return DescribeJson(value);
        }
      },
      held);
}

Result<JsonConfig> JsonConfig::Load(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFileToString(path, kBytesMax));
  return Parse(text, path);
}

Result<JsonConfig> JsonConfig::Parse(std::string_view text, std::string name) {
  auto document = std::make_shared<Document>();
  document->name = std::move(name);
  if (text.size() > kBytesMax) {
    return InvalidArgument(fmt::format("{}: {} bytes, more than the limit of {} for this file",
                                       document->name, text.size(), kBytesMax));
  }
  document->text = text;
  TreeBuilder<Value> builder(&document->root);
  const Status parsed = ParseJson(text, kConfigDepthMax, builder);
  if (!parsed.ok()) return parsed.WithContext(document->name);
  const Value* root = &document->root;
  if (!std::holds_alternative<Value::Object>(root->held)) {
    return InvalidArgument(
        fmt::format("{}: expected an object, found {}", document->name, root->Describe()));
  }
  return JsonConfig(std::move(document), root, "");
}

JsonConfig::JsonConfig(std::shared_ptr<Document> document, const Value* object, std::string prefix)
    : document_(std::move(document)), object_(object), prefix_(std::move(prefix)) {}

const JsonConfig::Value* JsonConfig::Find(std::string_view key) const {
  for (const auto& member : std::get<Value::Object>(object_->held)) {
    if (member.key == key) return member.value.IsNull() ? nullptr : &member.value;
  }
  return nullptr;
}

bool JsonConfig::Has(std::string_view key) const {
  return Find(key) != nullptr;
}

Status JsonConfig::Error(std::string_view key, std::string_view what) const {
  return InvalidArgument(fmt::format("{}: {}{}: {}", document_->name, prefix_, key, what));
}

Result<const JsonConfig::Value*> JsonConfig::Need(std::string_view key,
                                                  std::string_view expected) const {
  const Value* value = Find(key);
  if (value == nullptr) return Error(key, fmt::format("expected {}, found nothing", expected));
  value->read = true;
  return value;
}

Result<int64_t> JsonConfig::Int(std::string_view key, int64_t min, int64_t max) const {
  const std::string expected = fmt::format("an integer in [{}, {}]", min, max);
  ASSIGN_OR_RETURN(const Value* value, Need(key, expected));
  const auto* number = std::get_if<int64_t>(&value->held);
  if (number == nullptr || *number < min || *number > max) {
    return Error(key, fmt::format("expected {}, found {}", expected, value->Describe()));
  }
  return *number;
}

Result<double> JsonConfig::Number(std::string_view key, double min, double max) const {
  const std::string expected = fmt::format("a number in [{}, {}]", min, max);
  ASSIGN_OR_RETURN(const Value* value, Need(key, expected));
  std::optional<double> number;
  if (const auto* real = std::get_if<double>(&value->held)) number = *real;
  if (const auto* whole = std::get_if<int64_t>(&value->held)) number = static_cast<double>(*whole);
  if (!number || !(*number >= min && *number <= max)) {
    return Error(key, fmt::format("expected {}, found {}", expected, value->Describe()));
  }
  return *number;
}

Result<bool> JsonConfig::Bool(std::string_view key) const {
  ASSIGN_OR_RETURN(const Value* value, Need(key, "true or false"));
  if (const auto* flag = std::get_if<bool>(&value->held)) return *flag;
  return Error(key, "expected true or false, found " + value->Describe());
}

Result<std::string> JsonConfig::String(std::string_view key) const {
  ASSIGN_OR_RETURN(const Value* value, Need(key, "a text"));
  if (const auto* text = std::get_if<std::string>(&value->held)) return *text;
  return Error(key, "expected a text, found " + value->Describe());
}

Result<int64_t> JsonConfig::IntOr(std::string_view key, int64_t min, int64_t max,
                                  int64_t otherwise) const {
  return Has(key) ? Int(key, min, max) : otherwise;
}

Result<double> JsonConfig::NumberOr(std::string_view key, double min, double max,
                                    double otherwise) const {
  return Has(key) ? Number(key, min, max) : otherwise;
}

Result<bool> JsonConfig::BoolOr(std::string_view key, bool otherwise) const {
  return Has(key) ? Bool(key) : otherwise;
}

Result<std::string> JsonConfig::StringOr(std::string_view key, std::string otherwise) const {
  if (!Has(key)) return otherwise;
  return String(key);
}

Result<std::vector<int64_t>> JsonConfig::IntList(std::string_view key, int64_t min,
                                                 int64_t max) const {
  if (!Has(key)) return std::vector<int64_t>();
  const std::string expected = fmt::format("integers in [{}, {}]", min, max);
  ASSIGN_OR_RETURN(const Value* value, Need(key, expected));
  std::vector<int64_t> list;
  const auto append = [&](const Value& item) {
    const auto* number = std::get_if<int64_t>(&item.held);
    if (number == nullptr || *number < min || *number > max) {
      return Error(key, fmt::format("expected {}, found {}", expected, item.Describe()));
    }
    list.push_back(*number);
    return OkStatus();
  };
  const auto* array = std::get_if<Value::Array>(&value->held);
  if (array == nullptr) {
    RETURN_IF_ERROR(append(*value));
    return list;
  }
  for (const Value& item : *array) RETURN_IF_ERROR(append(item));
  return list;
}

Result<std::vector<std::string>> JsonConfig::StringList(std::string_view key) const {
  if (!Has(key)) return std::vector<std::string>();
  ASSIGN_OR_RETURN(const Value* value, Need(key, "a list of texts"));
  const auto* array = std::get_if<Value::Array>(&value->held);
  if (array == nullptr) return Error(key, "expected a list of texts, found " + value->Describe());
  std::vector<std::string> list;
  for (const Value& item : *array) {
    const auto* text = std::get_if<std::string>(&item.held);
    if (text == nullptr) return Error(key, "expected a list of texts, found " + item.Describe());
    list.push_back(*text);
  }
  return list;
}

Result<JsonConfig> JsonConfig::Object(std::string_view key) const {
  ASSIGN_OR_RETURN(const Value* value, Need(key, "an object"));
  if (!std::holds_alternative<Value::Object>(value->held)) {
    return Error(key, "expected an object, found " + value->Describe());
  }
  value->opened = true;
  return JsonConfig(document_, value, fmt::format("{}{}.", prefix_, key));
}

void JsonConfig::Ignore(std::string_view key) const {
  if (const Value* value = Find(key)) value->read = true;
}

std::vector<std::string> JsonConfig::UnreadKeys() const {
  std::vector<std::string> unread;
  CollectUnread<Value>(std::get<Value::Object>(object_->held), prefix_, &unread);
  return unread;
}

const std::string& JsonConfig::text() const {
  return document_->text;
}

}  // namespace expertflow

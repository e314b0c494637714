// A value of a chat template: what JSON has, and what Python shows of it. Lists and objects are
// shared, not copied, and change only while they are built; a namespace() is the exception. One
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace expertflow {

class TemplateValue;
using TemplateList = std::vector<TemplateValue>;
// In the order of insertion.
using TemplateDict = std::vector<std::pair<std::string, TemplateValue>>;

// What counts as white space in templates.
inline constexpr std::string_view kTemplateSpace = " \t\n\r\f\v";

struct TemplateArguments;
using TemplateFunction = std::function<TemplateValue(const TemplateArguments&)>;

class TemplateValue {
 public:
  struct Undefined {
    std::string name;  // for messages
  };
  struct None {};
  struct Namespace {
    std::shared_ptr<TemplateDict> fields;
  };

  TemplateValue() : value_(Undefined{}) {}
  TemplateValue(Undefined undefined) : value_(std::move(undefined)) {}  // NOLINT: implicit
  TemplateValue(None none) : value_(none) {}                            // NOLINT: implicit
  TemplateValue(bool value) : value_(value) {}                          // NOLINT: implicit
  TemplateValue(int64_t value) : value_(value) {}                       // NOLINT: implicit
  TemplateValue(double value) : value_(value) {}                        // NOLINT: implicit
  TemplateValue(std::string value) : value_(std::move(value)) {}        // NOLINT: implicit
  TemplateValue(TemplateList value)                                     // NOLINT: implicit
      : value_(std::make_shared<const TemplateList>(std::move(value))) {}
  TemplateValue(TemplateDict value)  // NOLINT: implicit
      : value_(std::make_shared<const TemplateDict>(std::move(value))) {}
  TemplateValue(Namespace value) : value_(std::move(value)) {}  // NOLINT: implicit
  TemplateValue(TemplateFunction value)                         // NOLINT: implicit
      : value_(std::make_shared<const TemplateFunction>(std::move(value))) {}
  TemplateValue(const char*) = delete;  // would be a bool

  // Null when it is of another type.
  const Undefined* undefined() const { return std::get_if<Undefined>(&value_); }
  bool is_none() const { return std::holds_alternative<None>(value_); }
  const bool* boolean() const { return std::get_if<bool>(&value_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&value_); }
  const double* real() const { return std::get_if<double>(&value_); }
  const std::string* string() const { return std::get_if<std::string>(&value_); }
  const TemplateList* list() const { return Shared<TemplateList>(); }
  const TemplateDict* dict() const { return Shared<TemplateDict>(); }
  const Namespace* name_space() const { return std::get_if<Namespace>(&value_); }
  const TemplateFunction* function() const { return Shared<TemplateFunction>(); }

  bool Truthy() const;
  bool IsNumber() const {
    return boolean() != nullptr || integer() != nullptr || real() != nullptr;
  }
  // REQUIRES: IsNumber()
  double AsReal() const;
  // A field of a dict or namespace; null when there is none.
  const TemplateValue* Field(std::string_view name) const;
  // As Python prints it: str(), and repr() for what is inside of something.
  std::string Print() const;
  std::string Repr() const;
  // "string", "list", ...: for messages.
  std::string_view TypeName() const;

  friend bool operator==(const TemplateValue& a, const TemplateValue& b);

 private:
  template <typename T>
  const T* Shared() const {
    const auto* shared = std::get_if<std::shared_ptr<const T>>(&value_);
    return shared == nullptr ? nullptr : shared->get();
  }

  std::variant<Undefined, None, bool, int64_t, double, std::string,
               std::shared_ptr<const TemplateList>, std::shared_ptr<const TemplateDict>, Namespace,
               std::shared_ptr<const TemplateFunction>>
      value_;
};

struct TemplateArguments {
  TemplateList positional;
  TemplateDict named;
};

// Thrown inside of the template engine only; ChatTemplate turns it into a Status.
struct TemplateError {
  int line = 0;  // 0: of whatever runs
  std::string message;
};

// Python's json.dumps without escaping of non-ASCII characters. `indent` < 0: one line.
std::string TemplateJson(const TemplateValue& value, int indent);

// Characters of well-formed UTF-8, as views into `text`.
std::vector<std::string_view> Characters(std::string_view text);

}  // namespace expertflow

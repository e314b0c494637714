// A model's config.json, read by key with types and ranges. It records which keys were read, so
// that an architecture can refuse the settings that it does not honour. A key whose value is null
// counts as absent. Not thread-safe; copies share the record of what was read.
//
// Errors: "<file>: <key>: expected an integer in [1, 4096], found "x"".
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace expertflow {

class JsonConfig {
 public:
  static constexpr size_t kBytesMax = 1'000'000;
  // Files above kBytesMax, deep nesting and duplicate keys are refused.
  static Result<JsonConfig> Load(const std::string& path);
  static Result<JsonConfig> Parse(std::string_view text, std::string name);

  bool Has(std::string_view key) const;

  // The plain forms need the key; the Or forms give `otherwise` when it is absent.
  Result<int64_t> Int(std::string_view key, int64_t min, int64_t max) const;
  Result<int64_t> IntOr(std::string_view key, int64_t min, int64_t max, int64_t otherwise) const;
  // An integer is a number, too.
  Result<double> Number(std::string_view key, double min, double max) const;
  Result<double> NumberOr(std::string_view key, double min, double max, double otherwise) const;
  Result<bool> Bool(std::string_view key) const;
  Result<bool> BoolOr(std::string_view key, bool otherwise) const;
  Result<std::string> String(std::string_view key) const;
  Result<std::string> StringOr(std::string_view key, std::string otherwise) const;
  // A single integer counts as a list of one; an absent key as an empty list.
  Result<std::vector<int64_t>> IntList(std::string_view key, int64_t min, int64_t max) const;
  // An absent key counts as an empty list.
  Result<std::vector<std::string>> StringList(std::string_view key) const;
  // A nested object, such as rope_scaling; its keys are named "rope_scaling.<key>".
  Result<JsonConfig> Object(std::string_view key) const;

  // Marks a key as known without reading it (metadata such as transformers_version).
  void Ignore(std::string_view key) const;
  // Full names of the keys, this object's and those of nested objects that were opened, that
  // nobody read or ignored; in the file's order.
  std::vector<std::string> UnreadKeys() const;
  // "<file>: <key>: <what>", for an architecture's own checks.
  Status Error(std::string_view key, std::string_view what) const;

  const std::string& text() const;  // as it was parsed

 private:
  struct Document;
  struct Value;
  JsonConfig(std::shared_ptr<Document> document, const Value* object, std::string prefix);
  const Value* Find(std::string_view key) const;
  Result<const Value*> Need(std::string_view key, std::string_view expected) const;

  std::shared_ptr<Document> document_;
  const Value* object_;
  std::string prefix_;  // "rope_scaling.", empty at the top
};

}  // namespace expertflow

// Vectors of numbers one after the other in a string: what the predictors' files are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace expertflow {

template <typename T>
void AppendVector(const std::vector<T>& values, std::string* out) {
  out->append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// Takes `count` values off the front; false when they are not there.
template <typename T>
bool TakeVector(std::string_view* bytes, uint64_t count, std::vector<T>* values) {
  if (count > bytes->size() / sizeof(T)) return false;
  values->resize(count);
  if (count > 0) std::memcpy(values->data(), bytes->data(), count * sizeof(T));
  bytes->remove_prefix(count * sizeof(T));
  return true;
}

}  // namespace expertflow

// Random messages for the wire tests: every field of every type, filled by the same Fields() that
// the codec walks.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "transport/message_fields.h"
#include "transport/messages.h"

namespace expertflow {

class MessageGenerator {
 public:
  explicit MessageGenerator(uint64_t seed) : random_(seed) {}

  // A message of type `index` (its alternative in Message).
  Message Make(size_t index) {
    Message message =
        MakeDefault(index, std::make_index_sequence<std::variant_size_v<Message::Any>>());
    std::visit([this](auto& payload) { Fill(payload); }, message);
    return message;
  }

 private:
  template <size_t... kIndex>
  static Message MakeDefault(size_t index, std::index_sequence<kIndex...>) {
    Message message;
    ((kIndex == index ? static_cast<void>(message.emplace<kIndex>()) : void()), ...);
    return message;
  }

  template <typename T>
  void Fill(T&& value) {
    using Value = std::remove_cvref_t<T>;
    if constexpr (wire::IsBounded<Value>::value) {
      value.value = static_cast<uint8_t>(random_() % (value.max + 1u));
    } else if constexpr (std::is_enum_v<Value>) {
      const uint64_t count = static_cast<uint64_t>(wire::EnumMax<Value>::kValue) + 1;
      value = static_cast<Value>(random_() % count);
    } else if constexpr (std::is_same_v<Value, bool>) {
      value = random_() % 2 == 1;
    } else if constexpr (std::is_floating_point_v<Value>) {
      value = static_cast<Value>(random_()) / 1e12f;
    } else if constexpr (std::is_integral_v<Value>) {
      value = static_cast<Value>(random_());
    } else if constexpr (std::is_same_v<Value, std::string> || wire::IsVector<Value>::value) {
      value.resize(random_() % 6);
      for (auto& element : value) Fill(element);
    } else {
      std::apply([&](auto&&... field) { (Fill(field), ...); }, Fields(value));
    }
  }

  std::mt19937_64 random_;
};

}  // namespace expertflow

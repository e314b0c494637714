// The byte format under wire.h and rendezvous.h: encoder, decoder and frame header. Internal to
// transport/.
//
// A struct is described once, by a Fields() overload that ties its members in wire order; encoder,
// decoder, minimum size and the tests all walk that tie, so the directions cannot diverge. A struct
// whose Fields() misses a member does not compile.
//
// Little-endian. bool and enums are one byte, strings and lists a 32-bit count and the elements,
// structs their fields. The decoder checks every count against the bytes that are left before it
// allocates, and every bool and enum against its range.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/check.h"

namespace expertflow::wire {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

// A byte whose values above `max` are refused; ties as Bounded(member, max).
template <typename Byte>
struct BoundedByte {
  Byte& value;
  uint8_t max;
};
template <typename Byte>
BoundedByte<Byte> Bounded(Byte& value, uint8_t max) {
  return {value, max};
}

// The largest enumerator; each enum that travels specialises it.
template <typename Enum>
struct EnumMax;

template <typename T, typename Struct>
concept Is = std::same_as<std::remove_const_t<T>, Struct>;

template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};
template <typename T>
struct IsBounded : std::false_type {};
template <typename T>
struct IsBounded<BoundedByte<T>> : std::true_type {};

// Numbers whose memory is their encoding.
template <typename T>
concept Plain = (std::integral<T> && !std::same_as<T, bool>) || std::same_as<T, float> ||
                std::same_as<T, double>;

// How many members an aggregate has: the longest initialiser list that it accepts.
struct AnyMember {
  template <typename T>
  operator T&() const;
  template <typename T>
  operator T&&() const;
};
template <typename T, typename... Members>
consteval size_t MemberCount() {
  if constexpr (requires { T{Members{}..., AnyMember{}}; }) {
    return MemberCount<T, Members..., AnyMember>();
  } else {
    return sizeof...(Members);
  }
}

template <typename T>
constexpr size_t MinEncodedBytes() {
  if constexpr (IsBounded<T>::value || std::same_as<T, bool> || std::is_enum_v<T>) {
    return 1;
  } else if constexpr (Plain<T>) {
    return sizeof(T);
  } else if constexpr (std::same_as<T, std::string> || IsVector<T>::value) {
    return sizeof(uint32_t);
  } else {
    using Tie = decltype(Fields(std::declval<T&>()));
    static_assert(std::tuple_size_v<Tie> == MemberCount<T>(), "Fields() must tie every member");
    return []<typename... F>(std::type_identity<std::tuple<F...>>) {
      return (size_t{0} + ... + MinEncodedBytes<std::remove_cvref_t<F>>());
    }(std::type_identity<Tie>{});
  }
}

class Encoder {
 public:
  explicit Encoder(std::vector<uint8_t>* out) : out_(out) {}

  template <typename T>
  void Put(const T& value) {
    if constexpr (IsBounded<T>::value) {
      PutPlain(static_cast<uint8_t>(value.value));
    } else if constexpr (std::same_as<T, bool> || std::is_enum_v<T>) {
      PutPlain(static_cast<uint8_t>(value));
    } else if constexpr (Plain<T>) {
      PutPlain(value);
    } else if constexpr (std::same_as<T, std::string>) {
      PutCount(value.size());
      PutBytes(value.data(), value.size());
    } else if constexpr (IsVector<T>::value) {
      PutCount(value.size());
      if constexpr (Plain<typename T::value_type>) {
        PutBytes(value.data(), value.size() * sizeof(typename T::value_type));
      } else {
        for (const auto& element : value) Put(element);
      }
    } else {
      static_assert(MinEncodedBytes<T>() + 1 > 0);  // checks that Fields() is complete
      std::apply([&](const auto&... field) { (Put(field), ...); }, Fields(value));
    }
  }

 private:
  template <typename T>
  void PutPlain(T value) {
    PutBytes(&value, sizeof(value));
  }
  void PutCount(size_t count) { PutPlain(static_cast<uint32_t>(count)); }
  void PutBytes(const void* data, size_t size) {
    const auto* bytes = static_cast<const uint8_t*>(data);
    out_->insert(out_->end(), bytes, bytes + size);
  }

  std::vector<uint8_t>* out_;
};

// After a failure every further Get() fails too; the values got are then meaningless.
class Decoder {
 public:
  explicit Decoder(std::span<const uint8_t> bytes) : rest_(bytes) {}

  template <typename T>
  bool Get(T& value) {
    if constexpr (IsBounded<std::remove_cvref_t<T>>::value) {
      return GetPlain(&value.value) && (value.value <= value.max || Fail("a code out of range"));
    } else if constexpr (std::same_as<T, bool>) {
      uint8_t byte = 0;
      if (!GetPlain(&byte)) return false;
      if (byte > 1) return Fail("a flag that is neither 0 nor 1");
      value = byte == 1;
      return true;
    } else if constexpr (std::is_enum_v<T>) {
      uint8_t byte = 0;
      if (!GetPlain(&byte)) return false;
      if (byte > static_cast<uint8_t>(EnumMax<T>::kValue)) return Fail("an enum out of range");
      value = static_cast<T>(byte);
      return true;
    } else if constexpr (Plain<T>) {
      return GetPlain(&value);
    } else if constexpr (std::same_as<T, std::string>) {
      size_t size = 0;
      if (!GetCount(1, &size)) return false;
      value.assign(reinterpret_cast<const char*>(rest_.data()), size);
      rest_ = rest_.subspan(size);
      return true;
    } else if constexpr (IsVector<T>::value) {
      return GetVector(&value);
    } else {
      return std::apply([&](auto&&... field) { return (Get(field) && ...); }, Fields(value));
    }
  }

  size_t remaining() const { return rest_.size(); }
  // What was wrong, for a sentence that starts "message has".
  const char* problem() const { return problem_; }
  bool Fail(const char* problem) {
    if (problem_ == nullptr) problem_ = problem;
    rest_ = {};
    return false;
  }

 private:
  template <typename T>
  bool GetPlain(T* value) {
    if (rest_.size() < sizeof(T)) return Fail("fewer bytes than its fields need");
    std::memcpy(value, rest_.data(), sizeof(T));
    rest_ = rest_.subspan(sizeof(T));
    return true;
  }
  bool GetCount(size_t element_bytes_min, size_t* count) {
    uint32_t value = 0;
    if (!GetPlain(&value)) return false;
    if (value > rest_.size() / element_bytes_min) return Fail("a count larger than its bytes");
    *count = value;
    return true;
  }
  template <typename T>
  bool GetVector(std::vector<T>* value) {
    size_t count = 0;
    if (!GetCount(MinEncodedBytes<T>(), &count)) return false;
    value->clear();
    value->resize(count);
    if constexpr (Plain<T>) {
      if (count > 0) std::memcpy(value->data(), rest_.data(), count * sizeof(T));
      rest_ = rest_.subspan(count * sizeof(T));
    } else {
      for (T& element : *value) {
        if (!Get(element)) return false;
      }
    }
    return true;
  }

  std::span<const uint8_t> rest_;
  const char* problem_ = nullptr;
};

struct FrameHeader {
  static constexpr size_t kBytes = 12;

  uint32_t magic = 0;
  uint16_t version = 0;
  uint16_t type = 0;
  uint32_t payload_bytes = 0;
};
template <Is<FrameHeader> T>
auto Fields(T& m) {
  return std::tie(m.magic, m.version, m.type, m.payload_bytes);
}

template <typename T>
std::vector<uint8_t> EncodeFrame(FrameHeader header, const T& payload) {
  std::vector<uint8_t> out;
  Encoder encoder(&out);
  encoder.Put(header);
  encoder.Put(payload);
  header.payload_bytes = static_cast<uint32_t>(out.size() - FrameHeader::kBytes);
  std::memcpy(out.data() + offsetof(FrameHeader, payload_bytes), &header.payload_bytes,
              sizeof(header.payload_bytes));
  return out;
}

}  // namespace expertflow::wire

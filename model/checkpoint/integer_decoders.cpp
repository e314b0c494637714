// Weights of small integers with a scale and a zero point for each group of inputs: GPTQ as
// AutoGPTQ and GPTQModel write it, and AWQ in AutoAWQ's GEMM order. Both pack them into 32-bit
// words of a matrix that is transposed, [inputs, outputs]; a weight is (integer - zero point) *
// scale.
#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <utility>

#include "model/checkpoint/decoder_tools.h"

namespace expertflow {
namespace {

constexpr int32_t kWordBits = 32;
// Outputs whose words are unpacked together, so that neither side jumps over a page for each.
constexpr uint64_t kTile = 64;

Status ReadWords(TensorReader& reader, const TensorInfo& tensor, std::vector<uint32_t>* out) {
  out->resize(tensor.bytes / sizeof(uint32_t));
  return reader.Read(tensor, 0,
                     {reinterpret_cast<uint8_t*>(out->data()), out->size() * sizeof(uint32_t)});
}

// Scales and zero points by [group, output].
struct Groups {
  std::vector<float> scales;
  std::vector<int32_t> zeros;
  std::vector<uint32_t> of_input;
};

// What both formats make of their integers: Derived has ForEach(reader, rows, fn), which calls
// fn(row of the output, input, integer - zero point, scale) for each weight.
template <typename Derived>
class GroupDecoder : public TensorDecoder, public CodeDecoder {
 public:
  bool reads_all() const final { return true; }

  Status Decode(TensorReader& reader, const RowRange& rows, std::span<float> out) const final {
    RETURN_IF_ERROR(derived().ForEach(
        reader, rows, [&](uint64_t r, uint64_t input, int32_t integer, float scale) {
          out[r * inputs_ + input] = static_cast<float>(integer) * scale;
        }));
    return CheckFinite(*parts_.scales, out);
  }

  const CodeDecoder* codes() const final { return kept_as_ ? this : nullptr; }
  DType kept_as() const final { return *kept_as_; }
  Status DecodeCodes(TensorReader& reader, const RowRange& rows,
                     const GroupedCodes& out) const final {
    RETURN_IF_ERROR(derived().ForEach(
        reader, rows, [&](uint64_t r, uint64_t input, int32_t integer, float scale) {
          const uint64_t at = r * inputs_ + input;
          out.codes[at] = static_cast<int8_t>(integer);
          out.scales[at / kQuantisedGroup] = scale;
        }));
    return CheckProducts(*parts_.scales, out.scales, 256);
  }

 protected:
  GroupDecoder(const QuantisedParts& parts, uint64_t outputs, uint64_t inputs, uint64_t group_size)
      : parts_(parts), outputs_(outputs), inputs_(inputs), group_size_(group_size) {}

  // Zero points in the middle give signed integers.
  void KeepIfPossible(uint32_t bits, uint32_t stored_middle) {
    if (inputs_ % kQuantisedGroup != 0 || !GroupsAreWhole()) return;
    uint32_t word = 0;
    for (uint32_t at = 0; at < kWordBits; at += bits) word |= stored_middle << at;
    const std::span<const uint8_t> zeros = parts_.zeros->data;
    bool centred = true;
    for (size_t at = 0; centred && at + sizeof(word) <= zeros.size(); at += sizeof(word)) {
      centred = std::memcmp(zeros.data() + at, &word, sizeof(word)) == 0;
    }
    if (bits == 4) {
      kept_as_ = centred ? DType::kInt4 : DType::kUInt4;
    } else if (centred) {
      kept_as_ = DType::kInt8;
    }
  }

  const QuantisedParts parts_;
  const uint64_t outputs_;
  const uint64_t inputs_;
  const uint64_t group_size_;

 private:
  const Derived& derived() const { return static_cast<const Derived&>(*this); }

  // Each kQuantisedGroup inputs that lie together have one scale.
  bool GroupsAreWhole() const {
    if (parts_.group_index == nullptr) return group_size_ % kQuantisedGroup == 0;
    const std::span<const uint8_t> index = parts_.group_index->data;
    for (uint64_t i = 0; i < inputs_; ++i) {
      const uint64_t first = i / kQuantisedGroup * kQuantisedGroup;
      if (std::memcmp(index.data() + i * sizeof(int32_t), index.data() + first * sizeof(int32_t),
                      sizeof(int32_t)) != 0) {
        return false;
      }
    }
    return true;
  }

  std::optional<DType> kept_as_;
};

class GptqDecoder final : public GroupDecoder<GptqDecoder> {
 public:
  GptqDecoder(const QuantisedParts& parts, uint64_t outputs, uint64_t inputs, uint64_t group_size,
              const Quantisation& quantisation)
      : GroupDecoder(parts, outputs, inputs, group_size), quantisation_(quantisation) {
    const auto bits = static_cast<uint32_t>(quantisation.bits);
    KeepIfPossible(bits, (1u << (bits - 1)) - static_cast<uint32_t>(quantisation.zero_offset));
  }

  template <typename Fn>
  Status ForEach(TensorReader& reader, const RowRange& rows, const Fn& fn) const {
    Groups groups;
    RETURN_IF_ERROR(ReadGroups(reader, &groups));
    std::vector<uint32_t> words;
    RETURN_IF_ERROR(ReadWords(reader, *parts_.values, &words));
    const auto bits = static_cast<uint32_t>(quantisation_.bits);
    const uint32_t mask = (1u << bits) - 1;
    const uint64_t in_word = kWordBits / bits;
    for (uint64_t tile = 0; tile < rows.count; tile += kTile) {
      for (uint64_t word_row = 0; word_row < inputs_ / in_word; ++word_row) {
        for (uint64_t r = tile; r < std::min(tile + kTile, rows.count); ++r) {
          const uint64_t output = rows.first + r * rows.step;
          const uint32_t word = words[word_row * outputs_ + output];
          for (uint64_t i = 0; i < in_word; ++i) {
            const uint64_t input = word_row * in_word + i;
            const uint64_t at = groups.of_input[input] * outputs_ + output;
            const auto integer = static_cast<int32_t>((word >> (i * bits)) & mask);
            fn(r, input, integer - groups.zeros[at], groups.scales[at]);
          }
        }
      }
    }
    return OkStatus();
  }

 private:
  Status ReadGroups(TensorReader& reader, Groups* groups) const {
    RETURN_IF_ERROR(ReadNumbers(reader, *parts_.scales, &groups->scales));
    RETURN_IF_ERROR(CheckFinite(*parts_.scales, groups->scales));
    std::vector<uint32_t> words;
    RETURN_IF_ERROR(ReadWords(reader, *parts_.zeros, &words));
    const auto bits = static_cast<uint32_t>(quantisation_.bits);
    const uint32_t mask = (1u << bits) - 1;
    const uint64_t in_word = kWordBits / bits;
    groups->zeros.resize(groups->scales.size());
    for (size_t at = 0; at < groups->zeros.size(); ++at) {
      const uint32_t zero = (words[at / in_word] >> (at % in_word * bits)) & mask;
      if (zero == mask && quantisation_.zero_offset > 0) {
        return InvalidArgument(fmt::format(
            "tensor {}: a stored zero point is {}: published codes disagree whether that is {} or "
            "0 in checkpoint_format \"gptq\"; convert it to \"gptq_v2\"",
            parts_.zeros->Where(), mask, mask + 1));
      }
      groups->zeros[at] = static_cast<int32_t>(zero) + quantisation_.zero_offset;
    }
    return ReadGroupIndex(reader, &groups->of_input);
  }

  Status ReadGroupIndex(TensorReader& reader, std::vector<uint32_t>* of_input) const {
    if (parts_.group_index == nullptr) {
      for (uint64_t i = 0; i < inputs_; ++i) {
        of_input->push_back(static_cast<uint32_t>(i / group_size_));
      }
      return OkStatus();
    }
    RETURN_IF_ERROR(ReadWords(reader, *parts_.group_index, of_input));
    const uint64_t count = inputs_ / group_size_;
    for (size_t i = 0; i < of_input->size(); ++i) {
      if ((*of_input)[i] < count) continue;
      return InvalidArgument(fmt::format("tensor {}: input {} is of group {}, but there are {}",
                                         parts_.group_index->Where(), i,
                                         static_cast<int32_t>((*of_input)[i]), count));
    }
    return OkStatus();
  }

  const Quantisation quantisation_;
};

class AwqDecoder final : public GroupDecoder<AwqDecoder> {
 public:
  AwqDecoder(const QuantisedParts& parts, uint64_t outputs, uint64_t inputs, uint64_t group_size)
      : GroupDecoder(parts, outputs, inputs, group_size) {
    KeepIfPossible(4, 8);
  }

  template <typename Fn>
  Status ForEach(TensorReader& reader, const RowRange& rows, const Fn& fn) const {
    std::vector<float> scales;
    RETURN_IF_ERROR(ReadNumbers(reader, *parts_.scales, &scales));
    RETURN_IF_ERROR(CheckFinite(*parts_.scales, scales));
    std::vector<uint32_t> words;
    std::vector<uint32_t> zeros;
    RETURN_IF_ERROR(ReadWords(reader, *parts_.values, &words));
    RETURN_IF_ERROR(ReadWords(reader, *parts_.zeros, &zeros));
    const uint64_t word_cols = outputs_ / 8;
    for (uint64_t tile = 0; tile < inputs_; tile += kTile) {
      for (uint64_t r = 0; r < rows.count; ++r) {
        const uint64_t output = rows.first + r * rows.step;
        for (uint64_t input = tile; input < std::min(tile + kTile, inputs_); ++input) {
          const uint64_t group = input / group_size_;
          const int32_t zero = Unpack(zeros[group * word_cols + output / 8], output);
          const int32_t integer = Unpack(words[input * word_cols + output / 8], output);
          fn(r, input, integer - zero, scales[group * outputs_ + output]);
        }
      }
    }
    return OkStatus();
  }

 private:
  // The eight outputs of a word lie in it in the order 0, 2, 4, 6, 1, 3, 5, 7.
  static int32_t Unpack(uint32_t word, uint64_t output) {
    static constexpr uint32_t kPlace[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    return static_cast<int32_t>((word >> (4 * kPlace[output % 8])) & 15u);
  }
};

// The inputs of a group, which must divide all of them.
Result<int64_t> GroupSize(const QuantisedParts& parts, const Quantisation& quantisation,
                          const std::vector<int64_t>& shape) {
  if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1) {
    return InvalidArgument(fmt::format("tensor {}: expected a matrix, found {}",
                                       parts.values->Where(), FormatShape(shape)));
  }
  const int64_t size = quantisation.group_size < 0 ? shape[1] : quantisation.group_size;
  if (shape[1] % size == 0) return size;
  return InvalidArgument(fmt::format("tensor {}: groups of {} do not divide its {} inputs",
                                     parts.values->Where(), size, shape[1]));
}

Status CheckPacking(const QuantisedParts& parts, int64_t inputs, int64_t outputs, int64_t in_word) {
  if (inputs % in_word == 0 && outputs % in_word == 0) return OkStatus();
  return InvalidArgument(
      fmt::format("tensor {}: words of {} do not divide its {} inputs and {} outputs",
                  parts.values->Where(), in_word, inputs, outputs));
}

Status CheckScales(const QuantisedParts& parts, int64_t groups, int64_t outputs) {
  return CheckPart(*parts.scales, {ElementType::kF16, ElementType::kBF16, ElementType::kF32},
                   {groups, outputs});
}

}  // namespace

Result<std::unique_ptr<TensorDecoder>> MakeGptqDecoder(const QuantisedParts& parts,
                                                       const Quantisation& quantisation,
                                                       const std::vector<int64_t>& shape) {
  ASSIGN_OR_RETURN(const int64_t group_size, GroupSize(parts, quantisation, shape));
  const int64_t outputs = shape[0], inputs = shape[1], groups = inputs / group_size;
  const int64_t in_word = kWordBits / quantisation.bits;
  RETURN_IF_ERROR(CheckPacking(parts, inputs, outputs, in_word));
  RETURN_IF_ERROR(CheckPart(*parts.values, {ElementType::kI32}, {inputs / in_word, outputs}));
  RETURN_IF_ERROR(CheckPart(*parts.zeros, {ElementType::kI32}, {groups, outputs / in_word}));
  RETURN_IF_ERROR(CheckScales(parts, groups, outputs));
  if (parts.group_index != nullptr) {
    RETURN_IF_ERROR(CheckPart(*parts.group_index, {ElementType::kI32}, {inputs}));
  } else if (quantisation.act_order) {
    return InvalidArgument(
        fmt::format("tensor {}: its g_idx is missing, which desc_act in config.json calls for",
                    parts.values->Where()));
  }
  return std::unique_ptr<TensorDecoder>(std::make_unique<GptqDecoder>(
      parts, static_cast<uint64_t>(outputs), static_cast<uint64_t>(inputs),
      static_cast<uint64_t>(group_size), quantisation));
}

Result<std::unique_ptr<TensorDecoder>> MakeAwqDecoder(const QuantisedParts& parts,
                                                      const Quantisation& quantisation,
                                                      const std::vector<int64_t>& shape) {
  ASSIGN_OR_RETURN(const int64_t group_size, GroupSize(parts, quantisation, shape));
  const int64_t outputs = shape[0], inputs = shape[1], groups = inputs / group_size;
  RETURN_IF_ERROR(CheckPacking(parts, 8, outputs, 8));
  RETURN_IF_ERROR(CheckPart(*parts.values, {ElementType::kI32}, {inputs, outputs / 8}));
  RETURN_IF_ERROR(CheckPart(*parts.zeros, {ElementType::kI32}, {groups, outputs / 8}));
  RETURN_IF_ERROR(CheckScales(parts, groups, outputs));
  return std::unique_ptr<TensorDecoder>(std::make_unique<AwqDecoder>(
      parts, static_cast<uint64_t>(outputs), static_cast<uint64_t>(inputs),
      static_cast<uint64_t>(group_size)));
}

}  // namespace expertflow

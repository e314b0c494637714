// Weights of small integers with a scale and a zero point for each group of inputs: GPTQ as
// AutoGPTQ and GPTQModel write it, and AWQ in AutoAWQ's GEMM order. Both pack them into 32-bit
// words of a matrix that is transposed, [inputs, outputs]; a weight is (integer - zero point) *
// scale.
#include <fmt/format.h>

#include <cstring>
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

// Scales and zero points by [group, output], as floats.
struct Groups {
  std::vector<float> scales;
  std::vector<float> zeros;
  std::vector<uint32_t> of_input;
};

class GroupDecoder : public TensorDecoder {
 public:
  bool reads_all() const final { return true; }
  bool evenly_spaced() const final { return true; }

 protected:
  GroupDecoder(const QuantisedParts& parts, uint64_t outputs, uint64_t inputs, uint64_t group_size)
      : parts_(parts), outputs_(outputs), inputs_(inputs), group_size_(group_size) {}

  const QuantisedParts parts_;
  const uint64_t outputs_;
  const uint64_t inputs_;
  const uint64_t group_size_;
};

class GptqDecoder final : public GroupDecoder {
 public:
  GptqDecoder(const QuantisedParts& parts, uint64_t outputs, uint64_t inputs, uint64_t group_size,
              const Quantisation& quantisation)
      : GroupDecoder(parts, outputs, inputs, group_size), quantisation_(quantisation) {}

  Status Decode(TensorReader& reader, const RowRange& rows, std::span<float> out) const override {
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
          float* to = out.data() + r * inputs_ + word_row * in_word;
          for (uint64_t i = 0; i < in_word; ++i) {
            const uint64_t at = groups.of_input[word_row * in_word + i] * outputs_ + output;
            const auto integer = static_cast<float>((word >> (i * bits)) & mask);
            to[i] = (integer - groups.zeros[at]) * groups.scales[at];
          }
        }
      }
    }
    return CheckFinite(*parts_.scales, out);
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
      groups->zeros[at] = static_cast<float>(zero) + static_cast<float>(quantisation_.zero_offset);
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

class AwqDecoder final : public GroupDecoder {
 public:
  AwqDecoder(const QuantisedParts& parts, uint64_t outputs, uint64_t inputs, uint64_t group_size)
      : GroupDecoder(parts, outputs, inputs, group_size) {}

  Status Decode(TensorReader& reader, const RowRange& rows, std::span<float> out) const override {
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
          const float zero = Unpack(zeros[group * word_cols + output / 8], output);
          const float integer = Unpack(words[input * word_cols + output / 8], output);
          out[r * inputs_ + input] = (integer - zero) * scales[group * outputs_ + output];
        }
      }
    }
    return CheckFinite(*parts_.scales, out);
  }

 private:
  // The eight outputs of a word lie in it in the order 0, 2, 4, 6, 1, 3, 5, 7.
  static float Unpack(uint32_t word, uint64_t output) {
    static constexpr uint32_t kPlace[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    return static_cast<float>((word >> (4 * kPlace[output % 8])) & 15u);
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

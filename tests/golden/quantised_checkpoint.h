// Quantises a checkpoint for tests, in the layouts in which such checkpoints are published, and
// writes what it means as float32 beside it: the encoder knows integers, zero points and scales, so
// what it says does not rest on a decoder. One folder is the quantised model, one the same model
// without quantisation.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/half.h"
#include "common/mapped_file.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/safetensors_writer.h"

namespace expertflow::testing {

struct TestTensor {
  ElementType type = ElementType::kF32;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;
};
using TestTensors = std::map<std::string, TestTensor>;

template <typename T>
TestTensor MakeTestTensor(ElementType type, std::vector<int64_t> shape,
                          const std::vector<T>& values) {
  TestTensor tensor{type, std::move(shape), std::vector<uint8_t>(values.size() * sizeof(T))};
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

template <typename T>
std::vector<T> ValuesOf(const TestTensor& tensor) {
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

inline TestTensors ReadTestTensors(const std::string& folder) {
  TestTensors tensors;
  const auto checkpoint = Checkpoint::Open(folder);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  for (const TensorInfo* info : checkpoint->tensors()) {
    tensors[info->name] = {info->type, info->shape, {info->data.begin(), info->data.end()}};
  }
  return tensors;
}

inline void WriteTestCheckpoint(const std::string& folder, const TestTensors& tensors,
                                const nlohmann::json& config) {
  std::filesystem::create_directories(folder);
  std::vector<TensorDeclaration> declared;
  for (const auto& [name, tensor] : tensors) declared.push_back({name, tensor.type, tensor.shape});
  auto writer = SafetensorsWriter::Create(folder + "/model.safetensors", declared);
  ASSERT_TRUE(writer.ok()) << writer.status().ToString();
  for (const auto& [name, tensor] : tensors) ASSERT_TRUE(writer->Append(tensor.bytes).ok());
  ASSERT_TRUE(writer->Finish().ok());
  std::ofstream(folder + "/config.json") << config.dump(2);
}

// bf16 or float32 values as float32.
inline std::vector<float> FloatsOf(const TestTensor& tensor) {
  if (tensor.type == ElementType::kF32) return ValuesOf<float>(tensor);
  std::vector<float> floats;
  for (const uint16_t bits : ValuesOf<uint16_t>(tensor)) floats.push_back(FloatFromBFloat16(bits));
  return floats;
}

// Numbers that are the same everywhere; in [0, n).
class TestNumbers {
 public:
  explicit TestNumbers(uint64_t seed) : state_(seed * 2 + 1) {}
  uint32_t Below(uint32_t n) {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<uint32_t>((state_ >> 33) % n);
  }

 private:
  uint64_t state_;
};

// A matrix [rows, cols] as it is published and what it means.
struct QuantisedMatrix {
  TestTensors parts;          // by what follows the layer's name: ".qweight"
  std::vector<float> values;  // [rows, cols]
};
struct MatrixToQuantise {
  std::vector<float> values;
  int64_t rows = 0;
  int64_t cols = 0;
};
using Quantiser = std::function<QuantisedMatrix(const MatrixToQuantise&)>;

inline float AbsMax(const std::vector<float>& values) {
  float largest = 1e-6f;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

struct IntegerForm {
  int64_t group_size = 8;
  int bits = 4;
  bool symmetric = false;
  bool act_order = false;
  int zero_offset = 1;  // what a reader adds to a stored zero point
  bool awq = false;
};

// GPTQ and AWQ: integers 0 .. 2^bits - 1; a float16 scale and a zero point for each group of
// inputs.
inline QuantisedMatrix QuantiseIntegers(const MatrixToQuantise& matrix, const IntegerForm& form) {
  const int64_t size = form.group_size < 0 ? matrix.cols : form.group_size;
  const int64_t groups = matrix.cols / size;
  const int levels = 1 << form.bits;
  const int64_t in_word = 32 / form.bits;
  std::vector<int32_t> group_of(matrix.cols);
  for (int64_t i = 0; i < matrix.cols; ++i) {
    // With act-order the inputs of a group lie anywhere.
    group_of[i] = static_cast<int32_t>((form.act_order ? (i * 7 + 3) % matrix.cols : i) / size);
  }
  const auto word = [&](int64_t count) { return std::vector<uint32_t>(count / in_word); };
  std::vector<uint32_t> weights = word(matrix.rows * matrix.cols);
  std::vector<uint32_t> zeros = word(groups * matrix.rows);
  std::vector<uint16_t> scales(groups * matrix.rows);
  QuantisedMatrix result;
  result.values.resize(matrix.values.size());
  static constexpr int64_t kAwqOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  const auto awq_place = [&](int64_t output) {
    for (int64_t place = 0; place < 8; ++place) {
      if (kAwqOrder[place] == output % 8) return place;
    }
    return int64_t{-1};
  };
  for (int64_t o = 0; o < matrix.rows; ++o) {
    for (int64_t g = 0; g < groups; ++g) {
      float low = 0, high = 0;
      for (int64_t i = 0; i < matrix.cols; ++i) {
        if (group_of[i] != g) continue;
        low = std::min(low, matrix.values[o * matrix.cols + i]);
        high = std::max(high, matrix.values[o * matrix.cols + i]);
      }
      if (form.symmetric) low = -(high = std::max(high, -low));
      const uint16_t scale_bits =
          HalfFromFloat(std::max((high - low) / static_cast<float>(levels - 1), 1e-4f));
      const float scale = FloatFromHalf(scale_bits);
      // Stored 0 .. levels - 2, so that no reader can take it for another.
      const int zero = form.symmetric
                           ? levels / 2
                           : std::clamp(static_cast<int>(std::lround(-low / scale)), 1, levels - 1);
      scales[g * matrix.rows + o] = scale_bits;
      const auto stored = static_cast<uint32_t>(zero - form.zero_offset);
      const int64_t zero_place = form.awq ? awq_place(o) : o % in_word;
      zeros[(g * matrix.rows + o) / in_word] |= stored << (zero_place * form.bits);
      for (int64_t i = 0; i < matrix.cols; ++i) {
        if (group_of[i] != g) continue;
        const float value = matrix.values[o * matrix.cols + i];
        const int integer =
            std::clamp(static_cast<int>(std::lround(value / scale)) + zero, 0, levels - 1);
        result.values[o * matrix.cols + i] = static_cast<float>(integer - zero) * scale;
        if (form.awq) {
          weights[(i * matrix.rows + o) / 8] |= static_cast<uint32_t>(integer)
                                                << (4 * awq_place(o));
        } else {
          weights[i / in_word * matrix.rows + o] |= static_cast<uint32_t>(integer)
                                                    << (i % in_word * form.bits);
        }
      }
    }
  }
  const std::vector<int64_t> weight_shape =
      form.awq ? std::vector<int64_t>{matrix.cols, matrix.rows / 8}
               : std::vector<int64_t>{matrix.cols / in_word, matrix.rows};
  result.parts[".qweight"] = MakeTestTensor(ElementType::kI32, weight_shape, weights);
  result.parts[".qzeros"] =
      MakeTestTensor(ElementType::kI32, {groups, matrix.rows / in_word}, zeros);
  result.parts[".scales"] = MakeTestTensor(ElementType::kF16, {groups, matrix.rows}, scales);
  if (!form.awq) {
    result.parts[".g_idx"] = MakeTestTensor(ElementType::kI32, {matrix.cols}, group_of);
  }
  return result;
}

// e4m3: the nearest of all 256 codes. Blocks of 0: one scale.
inline QuantisedMatrix QuantiseFp8(const MatrixToQuantise& matrix, int64_t block_rows,
                                   int64_t block_cols, const std::string& scale_suffix) {
  std::vector<float> codes(256, INFINITY);
  for (int bits = 0; bits < 256; ++bits) {
    const int exponent = bits / 8 % 16, mantissa = bits % 8;
    if (exponent == 15 && mantissa == 7) continue;
    const double magnitude =
        exponent == 0 ? mantissa / 512.0 : (1 + mantissa / 8.0) * std::pow(2.0, exponent - 7);
    codes[bits] = static_cast<float>(bits >= 128 ? -magnitude : magnitude);
  }
  const bool whole = block_rows == 0;
  if (whole) {
    block_rows = matrix.rows;
    block_cols = matrix.cols;
  }
  const int64_t down = (matrix.rows + block_rows - 1) / block_rows;
  const int64_t across = (matrix.cols + block_cols - 1) / block_cols;
  std::vector<float> scales(down * across, 0);
  for (int64_t r = 0; r < matrix.rows; ++r) {
    for (int64_t c = 0; c < matrix.cols; ++c) {
      float& scale = scales[r / block_rows * across + c / block_cols];
      scale = std::max(scale, std::fabs(matrix.values[r * matrix.cols + c]) / 448.0f);
    }
  }
  QuantisedMatrix result;
  std::vector<uint8_t> bytes;
  for (int64_t r = 0; r < matrix.rows; ++r) {
    for (int64_t c = 0; c < matrix.cols; ++c) {
      const float scale = scales[r / block_rows * across + c / block_cols];
      const float wanted = matrix.values[r * matrix.cols + c] / scale;
      size_t best = 0;
      for (size_t bits = 0; bits < codes.size(); ++bits) {
        if (std::fabs(codes[bits] - wanted) < std::fabs(codes[best] - wanted)) best = bits;
      }
      bytes.push_back(static_cast<uint8_t>(best));
      result.values.push_back(codes[best] * scale);
    }
  }
  result.parts[".weight"] = MakeTestTensor(ElementType::kF8E4M3, {matrix.rows, matrix.cols}, bytes);
  result.parts[".weight" + scale_suffix] =
      MakeTestTensor(ElementType::kF32,
                     whole ? std::vector<int64_t>{} : std::vector<int64_t>{down, across}, scales);
  return result;
}

// The linear layers but for embedding, head, routers and gates, as the published checkpoints leave
// them out.
inline bool IsQuantisedLayer(const std::string& name, const TestTensor& tensor) {
  return tensor.shape.size() == 2 && name.ends_with(".weight") &&
         name.find("embed_tokens") == std::string::npos &&
         name.find("lm_head") == std::string::npos && !name.ends_with("gate.weight");
}

// Writes FOLDER/quantised and FOLDER/plain from the checkpoint at `source`.
inline void WriteQuantisedPair(const std::string& source, const std::string& folder,
                               const nlohmann::json& quantization_config,
                               const Quantiser& quantise) {
  TestTensors quantised = ReadTestTensors(source);
  TestTensors plain = quantised;
  for (const auto& [name, tensor] : ReadTestTensors(source)) {
    const bool expert = name.find(".experts.") != std::string::npos;
    if (!IsQuantisedLayer(name, tensor)) continue;
    const QuantisedMatrix made = quantise({FloatsOf(tensor), tensor.shape[0], tensor.shape[1]});
    if (made.parts.empty()) {  // this one is left as it is
      if (expert) plain[name] = MakeTestTensor(ElementType::kF32, tensor.shape, FloatsOf(tensor));
      continue;
    }
    quantised.erase(name);
    const std::string base = name.substr(0, name.size() - std::string(".weight").size());
    for (const auto& [suffix, part] : made.parts) quantised[base + suffix] = part;
    plain[name] = MakeTestTensor(ElementType::kF32, tensor.shape, made.values);
  }
  auto config = nlohmann::json::parse(*ReadFileToString(source + "/config.json", 1 << 20));
  WriteTestCheckpoint(folder + "/plain", plain, config);
  config["quantization_config"] = quantization_config;
  WriteTestCheckpoint(folder + "/quantised", quantised, config);
}

}  // namespace expertflow::testing

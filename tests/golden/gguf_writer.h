// Writes GGUF files for tests: metadata and tensors by hand, and a reference checkpoint as the
// published converters lay it out.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/golden/quantised_checkpoint.h"
#include "tests/golden/quantised_values.h"

namespace expertflow::testing {

template <typename T>
void AppendRaw(std::string* out, const T& value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}
inline void AppendText(std::string* out, std::string_view text) {
  AppendRaw(out, static_cast<uint64_t>(text.size()));
  out->append(text);
}

class GgufWriter {
 public:
  struct Tensor {
    uint32_t type = 0;
    std::vector<int64_t> shape;  // outermost first
    std::string bytes;
  };

  void Int(const std::string& key, uint32_t value) {
    values_[key] = Value(4);
    AppendRaw(&values_[key], value);
  }
  void Float(const std::string& key, float value) {
    values_[key] = Value(6);
    AppendRaw(&values_[key], value);
  }
  void Bool(const std::string& key, bool value) { values_[key] = Value(7) + (value ? '\1' : '\0'); }
  void Text(const std::string& key, std::string_view text) {
    values_[key] = Value(8);
    AppendText(&values_[key], text);
  }
  void Texts(const std::string& key, const std::vector<std::string>& texts) {
    values_[key] = Array(8, texts.size());
    for (const std::string& text : texts) AppendText(&values_[key], text);
  }
  template <typename T>
  void Numbers(const std::string& key, uint32_t type, const std::vector<T>& numbers) {
    values_[key] = Array(type, numbers.size());
    for (const T number : numbers) AppendRaw(&values_[key], number);
  }
  void Erase(const std::string& key) { values_.erase(key); }
  std::map<std::string, Tensor>& tensors() { return tensors_; }

  std::string Content() const {
    std::string file;
    AppendRaw(&file, uint32_t{0x46554747});
    AppendRaw(&file, uint32_t{3});
    AppendRaw(&file, static_cast<uint64_t>(tensors_.size()));
    AppendRaw(&file, static_cast<uint64_t>(values_.size()));
    for (const auto& [key, value] : values_) {
      AppendText(&file, key);
      file += value;
    }
    std::string data;
    for (const auto& [name, tensor] : tensors_) {
      AppendText(&file, name);
      AppendRaw(&file, static_cast<uint32_t>(tensor.shape.size()));
      for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size) {
        AppendRaw(&file, *size);
      }
      AppendRaw(&file, tensor.type);
      AppendRaw(&file, static_cast<uint64_t>(data.size()));
      data += tensor.bytes;
      data.resize((data.size() + 31) / 32 * 32);
    }
    file.resize((file.size() + 31) / 32 * 32);
    return file + data;
  }

 private:
  static std::string Value(uint32_t type) {
    std::string value;
    AppendRaw(&value, type);
    return value;
  }
  static std::string Array(uint32_t type, size_t count) {
    std::string value = Value(9);
    AppendRaw(&value, type);
    AppendRaw(&value, static_cast<uint64_t>(count));
    return value;
  }

  std::map<std::string, std::string> values_;
  std::map<std::string, Tensor> tensors_;
};

// --- block types: bytes for values, and what the bytes mean
// ---------------------------------------

struct GgufForm {
  uint32_t type = 0;
  int64_t block = 1;
  // Appends one block; `values` become what it means.
  std::function<void(float* values, std::string* bytes)> encode;
};

inline uint16_t AppendHalf(std::string* bytes, float value) {
  const uint16_t half = HalfFromFloat(value);
  AppendRaw(bytes, half);
  return half;
}

inline float LargestOf(const float* values, int64_t count) {
  return AbsMax({values, values + count});
}

inline GgufForm GgufQ8_0() {
  return {8, 32, [](float* values, std::string* bytes) {
            const float d = FloatFromHalf(AppendHalf(bytes, LargestOf(values, 32) / 101));
            for (int i = 0; i < 32; ++i) {
              const long q = std::clamp(std::lround(values[i] / d), -128L, 127L);
              bytes->push_back(static_cast<char>(q));
              values[i] = static_cast<float>(q) * d;
            }
          }};
}

inline GgufForm GgufQ4_0() {
  return {2, 32, [](float* values, std::string* bytes) {
            const float d = FloatFromHalf(AppendHalf(bytes, LargestOf(values, 32) / 5));
            uint8_t nibbles[16] = {};
            for (int i = 0; i < 32; ++i) {
              const long q = std::clamp(std::lround(values[i] / d) + 8, 0L, 15L);
              nibbles[i % 16] |= static_cast<uint8_t>(q << (i / 16 * 4));
              values[i] = static_cast<float>(q - 8) * d;
            }
            bytes->append(reinterpret_cast<const char*>(nibbles), sizeof(nibbles));
          }};
}

inline GgufForm GgufMxfp4() {
  return {39, 32, [](float* values, std::string* bytes) {
            static constexpr float kCodes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
            const int exponent = static_cast<int>(std::ceil(std::log2(LargestOf(values, 32) / 6)));
            bytes->push_back(static_cast<char>(exponent + 127));
            uint8_t nibbles[16] = {};
            for (int i = 0; i < 32; ++i) {
              const float wanted = std::ldexp(std::fabs(values[i]), -exponent);
              int best = 0;
              for (int code = 1; code < 8; ++code) {
                if (std::fabs(kCodes[code] - wanted) < std::fabs(kCodes[best] - wanted))
                  best = code;
              }
              const bool negative = std::signbit(values[i]);
              nibbles[i % 16] |= static_cast<uint8_t>((best | (negative ? 8 : 0)) << (i / 16 * 4));
              const float value = std::ldexp(kCodes[best], exponent);
              values[i] = negative ? -value : value;
            }
            bytes->append(reinterpret_cast<const char*>(nibbles), sizeof(nibbles));
          }};
}

inline GgufForm GgufPlain(uint32_t type) {  // 0 F32, 1 F16, 30 BF16
  return {type, 1, [type](float* value, std::string* bytes) {
            if (type == 0) {
              AppendRaw(bytes, *value);
            } else if (type == 1) {
              *value = FloatFromHalf(AppendHalf(bytes, *value));
            } else {
              const auto bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(*value) >> 16);
              AppendRaw(bytes, bits);
              *value = FloatFromBFloat16(bits);
            }
          }};
}

// Random blocks of a type that a store keeps, whatever the values were: `values` becomes what they
// stand for, of the size of ordinary weights.
inline GgufForm GgufRandomBlocks(DType dtype) {
  const auto size = static_cast<int64_t>(GroupElements(dtype));
  const uint32_t types[] = {3, 7, 12, 13, 14};
  return {types[static_cast<int>(dtype) - static_cast<int>(DType::kQ4_1)], size,
          [dtype, size, numbers = std::make_shared<TestNumbers>(11)](float* values,
                                                                     std::string* bytes) {
            std::string block(BlockBytes(dtype), '\0');
            for (char& byte : block) byte = static_cast<char>(numbers->Below(256));
            const auto put = [&](size_t at, double value) {
              const uint16_t half =
                  HalfFromFloat(static_cast<float>(value * (1 + numbers->Below(8) / 8.0)));
              std::memcpy(block.data() + at, &half, sizeof(half));
            };
            switch (dtype) {
              case DType::kQ4_1: put(0, 0.01), put(2, -0.08); break;
              case DType::kQ5_1: put(0, 0.005), put(2, -0.08); break;
              case DType::kQ6K: put(208, 2e-5); break;
              case DType::kQ4K: put(0, 1e-4), put(2, 8e-4); break;
              default: put(0, 5e-5), put(2, 8e-4);
            }
            for (int64_t i = 0; i < size; ++i) {
              values[i] = QuantisedValue(reinterpret_cast<const uint8_t*>(block.data()), dtype,
                                         static_cast<uint64_t>(size), static_cast<uint64_t>(i));
            }
            *bytes += block;
          }};
}

// --- a checkpoint as GGUF ------------------------------------------------------------------------

// A reference checkpoint written as GGUF, and the same values as a plain folder.
struct GgufPair {
  GgufWriter gguf;
  TestTensors plain;
  nlohmann::json config;
};

class GgufConverter {
 public:
  // `form` is of matrices, `of_some` of values and the experts' last; what their blocks do not
  // divide, and vectors and routers, are F32.
  GgufConverter(const std::string& source, const std::string& architecture, GgufForm form,
                const std::optional<GgufForm>& of_some = std::nullopt)
      : architecture_(architecture), form_(std::move(form)), of_some_(of_some.value_or(form_)) {
    pair_.plain = ReadTestTensors(source);
    pair_.config = nlohmann::json::parse(*ReadFileToString(source + "/config.json", 1 << 20));
    pair_.gguf.Text("general.architecture", architecture);
    pair_.gguf.Text("general.name", "test");
  }

  GgufPair& pair() { return pair_; }
  int64_t Config(const char* key) const { return pair_.config.at(key).get<int64_t>(); }
  void Int(const std::string& name, int64_t value) {
    pair_.gguf.Int(architecture_ + "." + name, static_cast<uint32_t>(value));
  }
  void Float(const std::string& name, double value) {
    pair_.gguf.Float(architecture_ + "." + name, static_cast<float>(value));
  }

  // One tensor under another name. Rows of queries and keys of "llama" change places.
  void Move(const std::string& from, const std::string& to, int64_t rotated_head = 0,
            bool squeeze = false) {
    TestTensor& tensor = pair_.plain.at(from);
    std::vector<float> values = FloatsOf(tensor);
    const int64_t cols = tensor.shape.back();
    GgufWriter::Tensor made = Encode(&values, tensor.shape, from);
    tensor = MakeTestTensor(ElementType::kF32, tensor.shape, values);
    if (rotated_head > 0) {
      std::string rows(made.bytes.size(), '\0');
      const size_t row = made.bytes.size() / static_cast<size_t>(tensor.shape[0]);
      for (int64_t r = 0; r < tensor.shape[0]; ++r) {
        const int64_t in_head = r % rotated_head;
        const int64_t place =
            r - in_head + in_head % (rotated_head / 2) * 2 + in_head / (rotated_head / 2);
        rows.replace(static_cast<size_t>(place) * row, row, made.bytes,
                     static_cast<size_t>(r) * row, row);
      }
      made.bytes = rows;
    }
    if (squeeze) made.shape = {cols};
    pair_.gguf.tensors()[to] = made;
  }
  void MoveIfThere(const std::string& from, const std::string& to, int64_t rotated_head = 0) {
    if (pair_.plain.contains(from)) Move(from, to, rotated_head);
  }
  // All experts of a layer in one tensor.
  void MoveExperts(const std::function<std::string(int64_t expert)>& from, const std::string& to,
                   int64_t experts) {
    GgufWriter::Tensor all;
    for (int64_t e = 0; e < experts; ++e) {
      TestTensor& tensor = pair_.plain.at(from(e));
      std::vector<float> values = FloatsOf(tensor);
      const GgufWriter::Tensor made = Encode(&values, tensor.shape, from(e));
      tensor = MakeTestTensor(ElementType::kF32, tensor.shape, values);
      all.type = made.type;
      all.shape = made.shape;
      all.bytes += made.bytes;
    }
    all.shape.insert(all.shape.begin(), experts);
    pair_.gguf.tensors()[to] = all;
  }
  GgufWriter::Tensor Encode(std::vector<float>* values, const std::vector<int64_t>& shape,
                            const std::string& name) const {
    const bool some = name.find("w2") != std::string::npos ||
                      name.find("v_proj") != std::string::npos ||
                      name.find("lm_head") != std::string::npos;
    const GgufForm& chosen = some ? of_some_ : form_;
    const bool matrix = shape.size() >= 2 && shape.back() % chosen.block == 0 &&
                        name.find("gate.weight") == std::string::npos &&
                        name.find("router") == std::string::npos;
    const GgufForm& form = matrix ? chosen : float_;
    GgufWriter::Tensor made{form.type, shape, ""};
    for (size_t at = 0; at < values->size(); at += static_cast<size_t>(form.block)) {
      form.encode(values->data() + at, &made.bytes);
    }
    return made;
  }

 private:
  const std::string architecture_;
  const GgufForm form_;
  const GgufForm of_some_;
  const GgufForm float_ = GgufPlain(0);
  GgufPair pair_;
};

// The tokenizer of the reference checkpoints.
inline void WriteGgufTokenizer(const std::string& tokenizer_json, const std::string& pre,
                               GgufWriter* gguf) {
  const auto json = nlohmann::json::parse(tokenizer_json);
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  const auto put = [&](const std::string& token, size_t id, int32_t type) {
    if (tokens.size() <= id) tokens.resize(id + 1), types.resize(id + 1, 5);
    tokens[id] = token;
    types[id] = type;
  };
  for (const auto& [token, id] : json["model"]["vocab"].items()) put(token, id, 1);
  for (const auto& added : json["added_tokens"]) {
    put(added["content"], added["id"], added["special"] ? 3 : 4);
  }
  std::vector<std::string> merges;
  for (const auto& merge : json["model"]["merges"]) {
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  gguf->Text("tokenizer.ggml.model", "gpt2");
  gguf->Text("tokenizer.ggml.pre", pre);
  gguf->Texts("tokenizer.ggml.tokens", tokens);
  gguf->Numbers("tokenizer.ggml.token_type", 5, types);
  gguf->Texts("tokenizer.ggml.merges", merges);
}

// The SentencePiece vocabulary that a tokenizer.json was converted from: a token's score is as good
// as its merges are early.
inline void WriteGgufSentencePiece(const std::string& tokenizer_json, GgufWriter* gguf) {
  const auto json = nlohmann::json::parse(tokenizer_json);
  std::vector<std::string> tokens(json["model"]["vocab"].size());
  std::vector<int32_t> types(tokens.size(), 1);
  std::vector<float> scores(tokens.size());
  for (const auto& [token, id] : json["model"]["vocab"].items()) {
    const size_t at = id;
    tokens.at(at) = token;
    if (token.starts_with("<0x")) types[at] = 6;
  }
  const auto& merges = json["model"]["merges"];
  for (size_t i = merges.size(); i > 0; --i) {
    const std::string text = merges[i - 1];
    const size_t space = text.find(' ');
    const size_t id = json["model"]["vocab"][text.substr(0, space) + text.substr(space + 1)];
    scores.at(id) = -static_cast<float>(i);
  }
  for (const auto& added : json["added_tokens"]) {
    const size_t at = added["id"];
    types.at(at) = added["content"] == json["model"]["unk_token"] ? 2 : 3;
  }
  gguf->Text("tokenizer.ggml.model", "llama");
  gguf->Texts("tokenizer.ggml.tokens", tokens);
  gguf->Numbers("tokenizer.ggml.token_type", 5, types);
  gguf->Numbers("tokenizer.ggml.scores", 6, scores);
  gguf->Int("tokenizer.ggml.bos_token_id", 1);
}

}  // namespace expertflow::testing

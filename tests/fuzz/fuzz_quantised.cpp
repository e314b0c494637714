// A line of JSON {"shape": [rows, columns], "quantization_config": {...}}, then a safetensors file
// with the parts of one matrix: decoded to finite values, or refused; its codes, if a store can
// keep them, stand for the same values.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "common/mapped_file.h"
#include "common/small_floats.h"
#include "model/checkpoint/json_config.h"
#include "model/checkpoint/tensor_decoder.h"

namespace expertflow {
namespace {

constexpr int64_t kElementsMax = 1 << 16;

// Reads what is in memory, and ends the program when a decoder asks for more.
class MemoryReader final : public TensorReader {
 public:
  Status Read(const TensorInfo& tensor, uint64_t from, std::span<uint8_t> into) override {
    if (from > tensor.data.size() || into.size() > tensor.data.size() - from) std::abort();
    std::copy_n(tensor.data.begin() + static_cast<ptrdiff_t>(from), into.size(), into.begin());
    return OkStatus();
  }
};

Result<std::unique_ptr<TensorDecoder>> MakeDecoder(const QuantisedParts& parts,
                                                   const Quantisation& quantisation,
                                                   const std::vector<int64_t>& shape) {
  if (parts.values == nullptr || parts.scales == nullptr) return InvalidArgument("parts");
  switch (quantisation.method) {
    case Quantisation::Method::kFp8: return MakeFp8Decoder(parts, quantisation, shape);
    case Quantisation::Method::kMxfp4: return MakeMxfp4Decoder(parts, shape);
    default: break;
  }
  if (parts.zeros == nullptr) return InvalidArgument("parts");
  if (quantisation.method == Quantisation::Method::kGptq) {
    return MakeGptqDecoder(parts, quantisation, shape);
  }
  return MakeAwqDecoder(parts, quantisation, shape);
}

float ValueOf(DType type, int8_t code, float scale) {
  if (type == DType::kMxfp4) return kE2m1[code & 15] * scale;
  if (type == DType::kFp8) return FloatFromE4m3(static_cast<uint8_t>(code)) * scale;
  return static_cast<float>(code) * scale;
}

void ExpectSameValues(const CodeDecoder& decoder, uint64_t rows, std::span<const float> values) {
  std::vector<int8_t> codes(values.size());
  std::vector<float> scales(values.size() / kQuantisedGroup);
  MemoryReader reader;
  if (!decoder.DecodeCodes(reader, {.count = rows}, {codes, scales}).ok()) return;
  for (size_t i = 0; i < codes.size(); ++i) {
    const float value = ValueOf(decoder.kept_as(), codes[i], scales[i / kQuantisedGroup]);
    if (value != values[i]) std::abort();
  }
}

void Decode(std::string_view line, std::span<const uint8_t> file) {
  static const auto kNamed = MappedFile::Open("/proc/self/exe");  // only its name is used
  const auto json = JsonConfig::Parse(line, "config");
  if (!json.ok() || !kNamed.ok()) return;
  const auto quantisation = ReadQuantisation(*json);
  const auto shape = json->IntList("shape", 1, kElementsMax);
  const auto entries = ParseSafetensors(file, "input");
  if (!quantisation.ok() || !shape.ok() || !entries.ok()) return;
  if (shape->size() != 2 || (*shape)[0] * (*shape)[1] > kElementsMax) return;
  std::vector<TensorInfo> tensors;
  for (const SafetensorsEntry& entry : *entries) {
    TensorInfo& info = tensors.emplace_back();
    static_cast<SafetensorsEntry&>(info) = entry;
    info.data = file.subspan(entry.file_offset, entry.bytes);
    info.file = &*kNamed;
  }
  QuantisedParts parts;
  for (const TensorInfo& info : tensors) {
    if (info.name == "values") parts.values = &info;
    if (info.name == "scales") parts.scales = &info;
    if (info.name == "zeros") parts.zeros = &info;
    if (info.name == "index") parts.group_index = &info;
  }
  const auto decoder = MakeDecoder(parts, *quantisation, *shape);
  if (!decoder.ok()) return;
  const auto rows = static_cast<uint64_t>((*shape)[0]);
  std::vector<float> values(rows * static_cast<uint64_t>((*shape)[1]));
  MemoryReader reader;
  if (!(*decoder)->Decode(reader, {.count = rows}, values).ok()) return;
  for (const float value : values) {
    if (!std::isfinite(value)) std::abort();
  }
  if (const CodeDecoder* codes = (*decoder)->codes()) ExpectSameValues(*codes, rows, values);
}

}  // namespace
}  // namespace expertflow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* end = static_cast<const uint8_t*>(std::memchr(data, '\n', size));
  if (end == nullptr) return 0;
  const auto line = static_cast<size_t>(end - data);
  expertflow::Decode({reinterpret_cast<const char*>(data), line}, {end + 1, size - line - 1});
  return 0;
}

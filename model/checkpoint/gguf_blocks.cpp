// The block types of GGUF. Each block has a float16 scale (the K types: for scales of 4 to 8 bits
// of sub-blocks, and the same for minima), and the low and high nibbles of a byte are 16, or 32,
// elements apart.
#include <cstring>
#include <utility>

#include "common/half.h"
#include "common/small_floats.h"
#include "model/checkpoint/decoder_tools.h"
#include "model/checkpoint/gguf_decoder.h"

namespace expertflow {
namespace {

constexpr size_t kQ6KScale = 208;  // where a block has it

float HalfAt(const uint8_t* bytes) {
  uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof(bits));
  return FloatFromHalf(bits);
}

// value = (q - zero) * d, or q * d + m.
void DecodeQ4_0(const uint8_t* block, float* out) {
  const float d = HalfAt(block);
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<float>((block[2 + i] & 15) - 8) * d;
    out[16 + i] = static_cast<float>((block[2 + i] >> 4) - 8) * d;
  }
}

void DecodeQ4_1(const uint8_t* block, float* out) {
  const float d = HalfAt(block), m = HalfAt(block + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<float>(block[4 + i] & 15) * d + m;
    out[16 + i] = static_cast<float>(block[4 + i] >> 4) * d + m;
  }
}

// The fifth bits of all 32 elements lie in a word.
int FifthBit(const uint8_t* word, int i) {
  return (word[i / 8] >> (i % 8) & 1) << 4;
}

void DecodeQ5_0(const uint8_t* block, float* out) {
  const float d = HalfAt(block);
  const uint8_t *high = block + 2, *low = block + 6;
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<float>(((low[i] & 15) | FifthBit(high, i)) - 16) * d;
    out[16 + i] = static_cast<float>(((low[i] >> 4) | FifthBit(high, 16 + i)) - 16) * d;
  }
}

void DecodeQ5_1(const uint8_t* block, float* out) {
  const float d = HalfAt(block), m = HalfAt(block + 2);
  const uint8_t *high = block + 4, *low = block + 8;
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<float>((low[i] & 15) | FifthBit(high, i)) * d + m;
    out[16 + i] = static_cast<float>((low[i] >> 4) | FifthBit(high, 16 + i)) * d + m;
  }
}

void DecodeQ8_0(const uint8_t* block, float* out) {
  const float d = HalfAt(block);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * d;
}

// Scale and minimum of sub-block j: 6 bits each, in 12 bytes.
std::pair<float, float> ScaleAndMin(const uint8_t* packed, int j) {
  int scale = 0, minimum = 0;
  if (j < 4) {
    scale = packed[j] & 63;
    minimum = packed[j + 4] & 63;
  } else {
    scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
    minimum = (packed[j + 4] >> 4) | (packed[j] >> 6) << 4;
  }
  return {static_cast<float>(scale), static_cast<float>(minimum)};
}

// Q4_K and Q5_K: eight sub-blocks of 32; two of them share the nibbles of 32 bytes. `high` has the
// fifth bits, a bit for each sub-block, or is null.
void DecodeSubBlocks(const uint8_t* block, const uint8_t* high, const uint8_t* low, float* out) {
  const float d = HalfAt(block), d_min = HalfAt(block + 2);
  for (int j = 0; j < 8; ++j) {
    const auto [scale, minimum] = ScaleAndMin(block + 4, j);
    const float step = d * scale, base = d_min * minimum;
    for (int i = 0; i < 32; ++i) {
      const uint8_t byte = low[j / 2 * 32 + i];
      int q = j % 2 == 0 ? byte & 15 : byte >> 4;
      if (high != nullptr) q |= (high[i] >> j & 1) << 4;
      out[j * 32 + i] = step * static_cast<float>(q) - base;
    }
  }
}

void DecodeQ4K(const uint8_t* block, float* out) {
  DecodeSubBlocks(block, nullptr, block + 16, out);
}

void DecodeQ5K(const uint8_t* block, float* out) {
  DecodeSubBlocks(block, block + 16, block + 48, out);
}

// Sixteen sub-blocks of 16 with 8-bit scales; four bits of each element, then two, in halves of
// 128.
void DecodeQ6K(const uint8_t* block, float* out) {
  const float d = HalfAt(block + kQ6KScale);
  const uint8_t* scales = block + 192;
  for (int half = 0; half < 2; ++half) {
    const uint8_t *low = block + 64 * half, *high = block + 128 + 32 * half;
    for (int i = 0; i < 128; ++i) {
      const int quarter = i / 32, place = i % 32;
      const uint8_t byte = low[i % 64];
      const int q = (quarter < 2 ? byte & 15 : byte >> 4) | (high[place] >> (2 * quarter) & 3) << 4;
      const auto scale = static_cast<int8_t>(scales[8 * half + i / 16]);
      out[128 * half + i] = d * static_cast<float>(scale) * static_cast<float>(q - 32);
    }
  }
}

void DecodeMxfp4(const uint8_t* block, float* out) {
  const float scale = PowerOfTwo(block[0]);
  for (int i = 0; i < 16; ++i) {
    out[i] = kE2m1[block[1 + i] & 15] * scale;
    out[16 + i] = kE2m1[block[1 + i] >> 4] * scale;
  }
}

// The codes of a block that has one scale; of 4 bits as they are. `bits5` has fifth bits, or is
// null.
void NibbleCodes(const uint8_t* low, const uint8_t* bits5, int offset, int8_t* codes) {
  for (int i = 0; i < 32; ++i) {
    int code = i < 16 ? low[i] & 15 : low[i - 16] >> 4;
    if (bits5 != nullptr) code |= FifthBit(bits5, i);
    codes[i] = static_cast<int8_t>(code - offset);
  }
}

}  // namespace

std::optional<DType> KeptGgufType(ElementType type) {
  switch (type) {
    case ElementType::kGgufQ4_0: return DType::kInt4;
    case ElementType::kGgufQ5_0:
    case ElementType::kGgufQ8_0: return DType::kInt8;
    case ElementType::kGgufMxfp4: return DType::kMxfp4;
    case ElementType::kGgufQ4_1: return DType::kQ4_1;
    case ElementType::kGgufQ5_1: return DType::kQ5_1;
    case ElementType::kGgufQ4K: return DType::kQ4K;
    case ElementType::kGgufQ5K: return DType::kQ5K;
    case ElementType::kGgufQ6K: return DType::kQ6K;
    default: return std::nullopt;
  }
}

std::vector<float> GgufBlockScales(ElementType type, std::span<const uint8_t> blocks) {
  std::vector<float> scales;
  for (size_t at = 0; at < blocks.size(); at += ElementTypeBytes(type)) {
    if (type == ElementType::kGgufQ6K) {
      scales.push_back(HalfAt(blocks.data() + at + kQ6KScale));
    } else {
      scales.push_back(HalfAt(blocks.data() + at));
      scales.push_back(HalfAt(blocks.data() + at + sizeof(uint16_t)));
    }
  }
  return scales;
}

void DecodeGgufCodes(ElementType type, std::span<const uint8_t> bytes, const GroupedCodes& out) {
  const uint64_t width = ElementTypeBytes(type);
  for (size_t g = 0; g < out.scales.size(); ++g) {
    const uint8_t* block = bytes.data() + g * width;
    int8_t* codes = out.codes.data() + g * kQuantisedGroup;
    out.scales[g] = type == ElementType::kGgufMxfp4 ? PowerOfTwo(block[0]) : HalfAt(block);
    switch (type) {
      case ElementType::kGgufQ4_0: NibbleCodes(block + 2, nullptr, 8, codes); break;
      case ElementType::kGgufQ5_0: NibbleCodes(block + 6, block + 2, 16, codes); break;
      case ElementType::kGgufMxfp4: NibbleCodes(block + 1, nullptr, 0, codes); break;
      default: std::memcpy(codes, block + 2, kQuantisedGroup);  // Q8_0
    }
  }
}

void DecodeGgufBlocks(ElementType type, std::span<const uint8_t> bytes, std::span<float> out) {
  void (*decode)(const uint8_t*, float*) = nullptr;
  switch (type) {
    case ElementType::kGgufQ4_0: decode = DecodeQ4_0; break;
    case ElementType::kGgufQ4_1: decode = DecodeQ4_1; break;
    case ElementType::kGgufQ5_0: decode = DecodeQ5_0; break;
    case ElementType::kGgufQ5_1: decode = DecodeQ5_1; break;
    case ElementType::kGgufQ8_0: decode = DecodeQ8_0; break;
    case ElementType::kGgufQ4K: decode = DecodeQ4K; break;
    case ElementType::kGgufQ5K: decode = DecodeQ5K; break;
    case ElementType::kGgufQ6K: decode = DecodeQ6K; break;
    case ElementType::kGgufMxfp4: decode = DecodeMxfp4; break;
    default: WidenNumbers(bytes, type, out); return;
  }
  const uint64_t block = ElementTypeBlock(type), width = ElementTypeBytes(type);
  for (uint64_t i = 0; i < out.size() / block; ++i) {
    decode(bytes.data() + i * width, out.data() + i * block);
  }
}

}  // namespace expertflow

#include "common/trace/trace_codec.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

#include "common/check.h"

namespace expertflow::trace_codec {
namespace {

constexpr size_t kLabelBytes = 64;

template <typename T>
void Put(std::vector<uint8_t>* out, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
  out->insert(out->end(), bytes, bytes + sizeof(T));
}

void PutText(std::vector<uint8_t>* out, const std::string& text) {
  Put(out, static_cast<uint32_t>(text.size()));
  out->insert(out->end(), text.begin(), text.end());
}

// Reads from the front; `ok` is false once something was missing.
struct Cursor {
  std::span<const uint8_t> left;
  bool ok = true;

  template <typename T>
  T Take() {
    T value{};
    if (left.size() < sizeof(T)) {
      ok = false;
      left = {};
      return value;
    }
    std::memcpy(&value, left.data(), sizeof(T));
    left = left.subspan(sizeof(T));
    return value;
  }
  std::string TakeText() {
    const auto size = Take<uint32_t>();
    if (size > left.size()) {
      ok = false;
      return {};
    }
    std::string text(reinterpret_cast<const char*>(left.data()), size);
    left = left.subspan(size);
    return text;
  }
};

// The bytes of equal significance lie together: counters and half floats shrink much better so.
template <typename T>
void PutPlanes(const std::vector<T>& values, size_t planes, uint8_t** out) {
  for (size_t b = 0; b < planes; ++b) {
    for (const T value : values) {
      *(*out)++ = static_cast<uint8_t>(static_cast<std::make_unsigned_t<T>>(value) >> (8 * b));
    }
  }
}

template <typename T>
void TakePlanes(size_t count, size_t planes, const uint8_t** in, std::vector<T>* values) {
  values->assign(count, 0);
  for (size_t b = 0; b < planes; ++b) {
    for (T& value : *values) {
      value = static_cast<T>(static_cast<std::make_unsigned_t<T>>(value) |
                             static_cast<std::make_unsigned_t<T>>(*(*in)++) << (8 * b));
    }
  }
}

// [rows, groups, width] <-> [groups, rows, width]
std::vector<uint16_t> Swapped(const std::vector<uint16_t>& values, size_t rows, size_t groups,
                              size_t width) {
  std::vector<uint16_t> out(values.size());
  for (size_t r = 0; r < rows; ++r) {
    for (size_t g = 0; g < groups; ++g) {
      std::copy_n(values.begin() + static_cast<ptrdiff_t>((r * groups + g) * width), width,
                  out.begin() + static_cast<ptrdiff_t>((g * rows + r) * width));
    }
  }
  return out;
}

size_t ExpertPlanes(const TraceShape& shape) {
  return shape.experts_widest() <= 256 ? 1 : 2;
}

}  // namespace

uint64_t Hash(std::span<const uint8_t> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint64_t BlockHash(BlockHeader header, std::span<const uint8_t> frame) {
  header.hash = 0;
  return XXH3_64bits_withSeed(frame.data(), frame.size(), XXH3_64bits(&header, sizeof(header)));
}

uint32_t VersionOf(const TraceShape& shape) {
  return shape.block_bytes.empty() ? 1 : 2;
}

std::vector<uint8_t> EncodeShape(const TraceShape& shape) {
  std::vector<uint8_t> out;
  Put(&out, static_cast<uint32_t>(shape.experts.size()));
  Put(&out, shape.top_k);
  Put(&out, shape.hidden);
  Put(&out, shape.columns);
  Put(&out, shape.expert_bytes);
  Put(&out, shape.fingerprint);
  for (size_t l = 0; l < shape.experts.size(); ++l) {
    Put(&out, shape.experts[l]);
    Put(&out, shape.layer_ids[l]);
  }
  PutText(&out, shape.model);
  PutText(&out, shape.config);
  for (const uint64_t bytes : shape.block_bytes) Put(&out, bytes);
  return out;
}

Result<TraceShape> DecodeShape(std::span<const uint8_t> bytes, uint32_t version) {
  Cursor cursor{bytes};
  TraceShape shape;
  const auto layers = cursor.Take<uint32_t>();
  shape.top_k = cursor.Take<int32_t>();
  shape.hidden = cursor.Take<int32_t>();
  shape.columns = cursor.Take<uint32_t>();
  shape.expert_bytes = cursor.Take<uint64_t>();
  shape.fingerprint = cursor.Take<std::array<uint8_t, 16>>();
  if (layers > kTraceLayersMax) return InvalidArgument(fmt::format("{} MoE layers", layers));
  for (uint32_t l = 0; l < layers && cursor.ok; ++l) {
    shape.experts.push_back(cursor.Take<int32_t>());
    shape.layer_ids.push_back(cursor.Take<int32_t>());
  }
  shape.model = cursor.TakeText();
  shape.config = cursor.TakeText();
  // What is left; CheckTraceShape() looks at how many there are.
  while (version > 1 && cursor.ok && !cursor.left.empty()) {
    shape.block_bytes.push_back(cursor.Take<uint64_t>());
  }
  if (!cursor.ok || !cursor.left.empty() || (version > 1 && shape.block_bytes.empty())) {
    return InvalidArgument("the description has a wrong size");
  }
  RETURN_IF_ERROR(CheckTraceShape(shape));
  return shape;
}

uint64_t RowBytes(const TraceShape& shape) {
  const auto layers = static_cast<uint64_t>(shape.layers());
  const auto k = static_cast<uint64_t>(shape.top_k);
  const auto hidden = static_cast<uint64_t>(shape.hidden);
  uint64_t bytes = 4 * 4 + 1 + layers * k * (ExpertPlanes(shape) + 2);
  if (shape.columns & kTraceRouterScores) bytes += 2 * static_cast<uint64_t>(shape.experts_total());
  if (shape.columns & kTraceRouterHidden) bytes += 2 * layers * hidden;
  if (shape.columns & kTraceExpertResidual) bytes += 2 * layers * hidden;
  return bytes;
}

std::vector<uint8_t> EncodeRows(const TraceShape& shape, const TraceRows& rows) {
  const size_t n = rows.size();
  const auto layers = static_cast<size_t>(shape.layers());
  const auto k = static_cast<size_t>(shape.top_k);
  const auto hidden = static_cast<size_t>(shape.hidden);
  std::vector<uint8_t> bytes(n * RowBytes(shape));
  uint8_t* out = bytes.data();
  PutPlanes(rows.step, 4, &out);
  PutPlanes(rows.sequence, 4, &out);
  PutPlanes(rows.position, 4, &out);
  PutPlanes(rows.token, 4, &out);
  PutPlanes(rows.flags, 1, &out);
  PutPlanes(Swapped(rows.experts, n, layers, k), ExpertPlanes(shape), &out);
  PutPlanes(Swapped(rows.weights, n, layers, k), 2, &out);
  PutPlanes(rows.scores, 2, &out);
  if (!rows.router_hidden.empty()) {
    PutPlanes(Swapped(rows.router_hidden, n, layers, hidden), 2, &out);
  }
  if (!rows.expert_residual.empty()) {
    PutPlanes(Swapped(rows.expert_residual, n, layers, hidden), 2, &out);
  }
  CHECK(out == bytes.data() + bytes.size());
  return bytes;
}

TraceRows DecodeRows(const TraceShape& shape, size_t n, std::span<const uint8_t> bytes) {
  CHECK(bytes.size() == n * RowBytes(shape));
  const auto layers = static_cast<size_t>(shape.layers());
  const auto k = static_cast<size_t>(shape.top_k);
  const auto hidden = static_cast<size_t>(shape.hidden);
  TraceRows rows;
  std::vector<uint16_t> grouped;
  const uint8_t* in = bytes.data();
  TakePlanes(n, 4, &in, &rows.step);
  TakePlanes(n, 4, &in, &rows.sequence);
  TakePlanes(n, 4, &in, &rows.position);
  TakePlanes(n, 4, &in, &rows.token);
  TakePlanes(n, 1, &in, &rows.flags);
  TakePlanes(n * layers * k, ExpertPlanes(shape), &in, &grouped);
  rows.experts = Swapped(grouped, layers, n, k);
  TakePlanes(n * layers * k, 2, &in, &grouped);
  rows.weights = Swapped(grouped, layers, n, k);
  if (shape.columns & kTraceRouterScores) {
    TakePlanes(n * static_cast<size_t>(shape.experts_total()), 2, &in, &rows.scores);
  }
  if (shape.columns & kTraceRouterHidden) {
    TakePlanes(n * layers * hidden, 2, &in, &grouped);
    rows.router_hidden = Swapped(grouped, layers, n, hidden);
  }
  if (shape.columns & kTraceExpertResidual) {
    TakePlanes(n * layers * hidden, 2, &in, &grouped);
    rows.expert_residual = Swapped(grouped, layers, n, hidden);
  }
  return rows;
}

std::vector<uint8_t> EncodeSequences(std::span<const TraceSequence> sequences) {
  std::vector<uint8_t> out;
  for (const TraceSequence& sequence : sequences) {
    Put(&out, sequence.id);
    Put(&out, sequence.seed);
    Put(&out, sequence.prompt_tokens);
    Put(&out, sequence.temperature);
    Put(&out, sequence.top_p);
    Put(&out, sequence.top_k);
    std::string label = sequence.label.substr(0, kLabelBytes - 1);
    label.resize(kLabelBytes, '\0');
    out.insert(out.end(), label.begin(), label.end());
  }
  return out;
}

Result<std::vector<TraceSequence>> DecodeSequences(std::span<const uint8_t> bytes) {
  CHECK(bytes.size() % kSequenceBytes == 0);
  std::vector<TraceSequence> sequences;
  Cursor cursor{bytes};
  while (!cursor.left.empty()) {
    TraceSequence sequence;
    sequence.id = cursor.Take<uint64_t>();
    sequence.seed = cursor.Take<uint64_t>();
    sequence.prompt_tokens = cursor.Take<int32_t>();
    sequence.temperature = cursor.Take<float>();
    sequence.top_p = cursor.Take<float>();
    sequence.top_k = cursor.Take<int32_t>();
    const auto label = cursor.Take<std::array<char, kLabelBytes>>();
    if (label.back() != '\0') return InvalidArgument("a sequence's label has no end");
    sequence.label = label.data();
    if (sequence.prompt_tokens < 0) return InvalidArgument("a prompt of negative length");
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

}  // namespace expertflow::trace_codec

namespace expertflow {

std::array<uint8_t, 16> ModelIdentity(const TraceShape& shape) {
  if (shape.fingerprint != std::array<uint8_t, 16>{}) return shape.fingerprint;
  TraceShape bare;
  bare.experts = shape.experts;
  bare.layer_ids = shape.layer_ids;
  bare.top_k = shape.top_k;
  bare.model = shape.model;
  const uint64_t hash = trace_codec::Hash(trace_codec::EncodeShape(bare));
  std::array<uint8_t, 16> identity = {};
  std::memcpy(identity.data(), &hash, sizeof(hash));
  return identity;
}

}  // namespace expertflow

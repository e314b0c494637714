#include "model/checkpoint/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>

namespace expertflow {
namespace {

// Of a file in parts.
constexpr const char* kPartCount = "split.count";
constexpr const char* kPartNumber = "split.no";
constexpr const char* kPartTensors = "split.tensors.count";
constexpr int64_t kPartsMax = 1 << 16;

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kAlignmentMax = 1 << 20;
constexpr uint64_t kNameBytesMax = 1024;
constexpr uint32_t kGgufRankMax = 4;
constexpr uint64_t kValueBytesMin = 8 + 4 + 1;           // key length, type, a byte
constexpr uint64_t kTensorBytesMin = 8 + 4 + 8 + 4 + 8;  // name length, rank, a size, type, offset

struct TypeRow {
  uint32_t number;
  ElementType type;
};
constexpr TypeRow kTypes[] = {
    {0, ElementType::kF32},      {1, ElementType::kF16},      {2, ElementType::kGgufQ4_0},
    {3, ElementType::kGgufQ4_1}, {6, ElementType::kGgufQ5_0}, {7, ElementType::kGgufQ5_1},
    {8, ElementType::kGgufQ8_0}, {12, ElementType::kGgufQ4K}, {13, ElementType::kGgufQ5K},
    {14, ElementType::kGgufQ6K}, {30, ElementType::kBF16},    {39, ElementType::kGgufMxfp4},
};

uint64_t ValueBytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool: return 1;
    case GgufType::kU16:
    case GgufType::kI16: return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32: return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64: return 8;
    default: return 0;
  }
}

class Parser {
 public:
  explicit Parser(std::span<const uint8_t> file) : file_(file) {}

  Result<GgufContent> Parse();

 private:
  template <typename T>
  Status Take(T* value) {
    if (file_.size() - at_ < sizeof(T)) return Truncated();
    std::memcpy(value, file_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return OkStatus();
  }
  Status Truncated() const {
    return InvalidArgument(
        fmt::format("{} ends after {} bytes inside its header: the file is truncated or damaged",
                    what_, file_.size()));
  }
  // Advances over a text and gives it, without its length.
  Result<std::string_view> TakeText(uint64_t bytes_max) {
    uint64_t bytes = 0;
    RETURN_IF_ERROR(Take(&bytes));
    if (bytes > file_.size() - at_) return Truncated();
    if (bytes > bytes_max) {
      return InvalidArgument(fmt::format("{}: a text of {} bytes", what_, bytes));
    }
    const std::string_view text(reinterpret_cast<const char*>(file_.data()) + at_, bytes);
    at_ += bytes;
    return text;
  }
  Status TakeValue();
  Status TakeTensor();
  Status PlaceTensors();
  Status CheckSorted();

  std::span<const uint8_t> file_;
  uint64_t at_ = 0;
  std::string what_ = "the file";
  GgufContent content_;
};

Status Parser::TakeValue() {
  what_ = "a metadata key";
  ASSIGN_OR_RETURN(const std::string_view key, TakeText(kNameBytesMax));
  GgufValue value;
  value.key = key;
  what_ = fmt::format("metadata '{}'", key);
  uint32_t type = 0;
  RETURN_IF_ERROR(Take(&type));
  if (type == static_cast<uint32_t>(GgufType::kArray)) {
    value.is_array = true;
    RETURN_IF_ERROR(Take(&type));
    RETURN_IF_ERROR(Take(&value.count));
  }
  value.type = static_cast<GgufType>(type);
  const uint64_t begin = at_;
  if (value.type == GgufType::kText) {
    if (value.count > (file_.size() - at_) / sizeof(uint64_t)) return Truncated();
    for (uint64_t i = 0; i < value.count; ++i) RETURN_IF_ERROR(TakeText(file_.size()).status());
  } else {
    const uint64_t width = ValueBytes(value.type);
    if (width == 0) {
      return InvalidArgument(fmt::format("{}: type {} is not supported", what_, type));
    }
    if (value.count > (file_.size() - at_) / width) return Truncated();
    at_ += value.count * width;
  }
  value.bytes = file_.subspan(begin, at_ - begin);
  content_.values.push_back(std::move(value));
  return OkStatus();
}

Status Parser::TakeTensor() {
  what_ = "a tensor's name";
  ASSIGN_OR_RETURN(const std::string_view name, TakeText(kNameBytesMax));
  SafetensorsEntry entry;
  entry.name = name;
  what_ = fmt::format("tensor '{}'", name);
  uint32_t rank = 0;
  RETURN_IF_ERROR(Take(&rank));
  if (rank == 0 || rank > kGgufRankMax) {
    return InvalidArgument(
        fmt::format("{}: {} dimensions; 1 to {} are possible", what_, rank, kGgufRankMax));
  }
  for (uint32_t i = 0; i < rank; ++i) {
    int64_t size = 0;
    RETURN_IF_ERROR(Take(&size));
    if (size < 1) return InvalidArgument(fmt::format("{}: a dimension is {}", what_, size));
    entry.shape.insert(entry.shape.begin(), size);
  }
  uint32_t type = 0;
  RETURN_IF_ERROR(Take(&type));
  RETURN_IF_ERROR(Take(&entry.file_offset));
  const auto* row =
      std::find_if(std::begin(kTypes), std::end(kTypes),
                   [&](const TypeRow& candidate) { return candidate.number == type; });
  if (row == std::end(kTypes)) {
    std::string known;
    for (const TypeRow& candidate : kTypes) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", ElementTypeName(candidate.type));
    }
    return InvalidArgument(
        fmt::format("{}: ggml type {} is not supported; known are {}", what_, type, known));
  }
  entry.type = row->type;
  const auto block = static_cast<int64_t>(ElementTypeBlock(entry.type));
  if (entry.shape.back() % block != 0) {
    return InvalidArgument(fmt::format("{}: blocks of {} ({}) do not divide rows of {}", what_,
                                       block, ElementTypeName(entry.type), entry.shape.back()));
  }
  std::vector<int64_t> blocks = entry.shape;
  blocks.back() /= block;
  const auto bytes = TensorBytes(blocks, ElementTypeBytes(entry.type));
  if (!bytes.ok()) return bytes.status().WithContext(what_);
  entry.bytes = *bytes;
  content_.tensors.push_back(std::move(entry));
  return OkStatus();
}

// Offsets count from the first aligned byte after the header.
Status Parser::PlaceTensors() {
  uint64_t alignment = kDefaultAlignment;
  for (const GgufValue& value : content_.values) {
    if (value.key != "general.alignment") continue;
    uint32_t stated = 0;
    if (value.type == GgufType::kU32 && !value.is_array) {
      std::memcpy(&stated, value.bytes.data(), sizeof(stated));
    }
    if (!std::has_single_bit(stated) || stated > kAlignmentMax) {
      return InvalidArgument("metadata 'general.alignment': expected a power of two");
    }
    alignment = stated;
  }
  const uint64_t data = (at_ + alignment - 1) / alignment * alignment;
  const uint64_t data_bytes = data < file_.size() ? file_.size() - data : 0;
  std::vector<SafetensorsEntry*> by_offset;
  for (SafetensorsEntry& entry : content_.tensors) {
    if (entry.file_offset % alignment != 0) {
      return InvalidArgument(fmt::format("tensor '{}': offset {} is not a multiple of {}",
                                         entry.name, entry.file_offset, alignment));
    }
    if (entry.file_offset > data_bytes || entry.bytes > data_bytes - entry.file_offset) {
      return InvalidArgument(fmt::format(
          "tensor '{}': {} bytes at {} lie past the end of the data ({} bytes): the file is "
          "truncated",
          entry.name, entry.bytes, entry.file_offset, data_bytes));
    }
    by_offset.push_back(&entry);
  }
  std::sort(by_offset.begin(), by_offset.end(), [](const auto* a, const auto* b) {
    return std::tie(a->file_offset, a->name) < std::tie(b->file_offset, b->name);
  });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    if (by_offset[i]->file_offset >= by_offset[i - 1]->file_offset + by_offset[i - 1]->bytes) {
      continue;
    }
    return InvalidArgument(fmt::format("tensor '{}' lies inside tensor '{}'", by_offset[i]->name,
                                       by_offset[i - 1]->name));
  }
  for (SafetensorsEntry& entry : content_.tensors) entry.file_offset += data;
  return OkStatus();
}

Status Parser::CheckSorted() {
  auto& values = content_.values;
  std::sort(values.begin(), values.end(),
            [](const auto& a, const auto& b) { return a.key < b.key; });
  const auto key = std::adjacent_find(values.begin(), values.end(),
                                      [](const auto& a, const auto& b) { return a.key == b.key; });
  if (key != values.end())
    return InvalidArgument(fmt::format("metadata '{}' is there twice", key->key));
  auto& tensors = content_.tensors;
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  const auto tensor =
      std::adjacent_find(tensors.begin(), tensors.end(),
                         [](const auto& a, const auto& b) { return a.name == b.name; });
  if (tensor == tensors.end()) return OkStatus();
  return InvalidArgument(fmt::format("tensor '{}' is described twice", tensor->name));
}

Result<GgufContent> Parser::Parse() {
  uint32_t magic = 0, version = 0;
  uint64_t tensors = 0, values = 0;
  RETURN_IF_ERROR(Take(&magic));
  if (magic != kMagic) return InvalidArgument("not a GGUF file");
  RETURN_IF_ERROR(Take(&version));
  if (version != 2 && version != 3) {
    return InvalidArgument(
        (version & 0xffff) == 0
            ? "a GGUF file of a big-endian machine, which is not supported"
            : fmt::format("GGUF version {} is not supported; 2 and 3 are", version));
  }
  RETURN_IF_ERROR(Take(&tensors));
  RETURN_IF_ERROR(Take(&values));
  const uint64_t rest = file_.size() - at_;
  if (values > rest / kValueBytesMin || tensors > rest / kTensorBytesMin) return Truncated();
  for (uint64_t i = 0; i < values; ++i) RETURN_IF_ERROR(TakeValue());
  for (uint64_t i = 0; i < tensors; ++i) RETURN_IF_ERROR(TakeTensor());
  RETURN_IF_ERROR(CheckSorted());
  RETURN_IF_ERROR(PlaceTensors());
  return std::move(content_);
}

template <typename T>
T Load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// Nothing for what is no integer, or too large for one.
std::optional<int64_t> IntegerAt(GgufType type, const uint8_t* at) {
  switch (type) {
    case GgufType::kU8: return *at;
    case GgufType::kI8: return Load<int8_t>(at);
    case GgufType::kU16: return Load<uint16_t>(at);
    case GgufType::kI16: return Load<int16_t>(at);
    case GgufType::kU32: return Load<uint32_t>(at);
    case GgufType::kI32: return Load<int32_t>(at);
    case GgufType::kI64: return Load<int64_t>(at);
    case GgufType::kU64: {
      const auto value = Load<uint64_t>(at);
      if (value > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default: return std::nullopt;
  }
}

}  // namespace

Result<GgufContent> ParseGguf(std::span<const uint8_t> file, std::string_view file_name) {
  auto content = Parser(file).Parse();
  if (!content.ok()) return content.status().WithContext(file_name);
  return content;
}

Result<GgufFile> GgufFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(GgufFile result, OpenOne(path));
  RETURN_IF_ERROR(result.AddParts());
  return result;
}

Result<GgufFile> GgufFile::OpenOne(const std::string& path) {
  GgufFile result;
  ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  const auto& file = result.files_.emplace_back(std::make_unique<MappedFile>(std::move(mapped)));
  ASSIGN_OR_RETURN(result.content_, ParseGguf(file->bytes(), path));
  for (const SafetensorsEntry& entry : result.content_.tensors) {
    TensorInfo info;
    static_cast<SafetensorsEntry&>(info) = entry;
    info.data = file->bytes().subspan(info.file_offset, info.bytes);
    info.file = file.get();
    result.tensors_.push_back(std::move(info));
  }
  return result;
}

// Names and keys are those of llama-gguf-split.
Status GgufFile::AddParts() {
  ASSIGN_OR_RETURN(const int64_t count, IntOr(kPartCount, 0, kPartsMax, 1));
  if (count <= 1) return OkStatus();
  ASSIGN_OR_RETURN(const int64_t number, Int(kPartNumber, 0, count - 1));
  const std::string ending = fmt::format("-{:05}-of-{:05}.gguf", 1, count);
  if (number != 0 || !path().ends_with(ending)) {
    return Error(kPartNumber, fmt::format("part {} of {}; expected the first, with a name that "
                                          "ends in {} and the others beside it",
                                          number + 1, count, ending));
  }
  const std::string stem = path().substr(0, path().size() - ending.size());
  for (int64_t i = 1; i < count; ++i) {
    ASSIGN_OR_RETURN(GgufFile part,
                     OpenOne(fmt::format("{}-{:05}-of-{:05}.gguf", stem, i + 1, count)));
    ASSIGN_OR_RETURN(const int64_t its_count, part.Int(kPartCount, 0, kPartsMax));
    ASSIGN_OR_RETURN(const int64_t its_number, part.Int(kPartNumber, 0, kPartsMax));
    if (its_count != count || its_number != i) {
      return part.Error(kPartNumber, fmt::format("expected part {} of {}, found part {} of {}",
                                                 i + 1, count, its_number + 1, its_count));
    }
    std::move(part.files_.begin(), part.files_.end(), std::back_inserter(files_));
    std::move(part.tensors_.begin(), part.tensors_.end(), std::back_inserter(tensors_));
  }
  std::sort(tensors_.begin(), tensors_.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  const auto twice =
      std::adjacent_find(tensors_.begin(), tensors_.end(),
                         [](const auto& a, const auto& b) { return a.name == b.name; });
  if (twice != tensors_.end()) {
    return InvalidArgument(fmt::format("tensor '{}' is in two files: {} and {}", twice->name,
                                       twice->file->path(), std::next(twice)->file->path()));
  }
  const auto found = static_cast<int64_t>(tensors_.size());
  ASSIGN_OR_RETURN(const int64_t tensors, IntOr(kPartTensors, 0, INT32_MAX, found));
  if (tensors == found) return OkStatus();
  return Error(kPartTensors, fmt::format("expected {} tensors, the parts hold {}", tensors, found));
}

uint64_t GgufFile::file_bytes() const {
  uint64_t bytes = 0;
  for (const auto& file : files_) bytes += file->bytes().size();
  return bytes;
}

const TensorInfo* GgufFile::Find(std::string_view name) const {
  const auto at = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const TensorInfo& info, std::string_view wanted) { return info.name < wanted; });
  return at != tensors_.end() && at->name == name ? &*at : nullptr;
}

const GgufValue* GgufFile::FindValue(std::string_view key) const {
  const auto& values = content_.values;
  const auto at = std::lower_bound(
      values.begin(), values.end(), key,
      [](const GgufValue& value, std::string_view wanted) { return value.key < wanted; });
  return at != values.end() && at->key == key ? &*at : nullptr;
}

Status GgufFile::Error(std::string_view key, std::string_view what) const {
  return InvalidArgument(fmt::format("{}: {}: {}", path(), key, what));
}

Result<const GgufValue*> GgufFile::Need(std::string_view key, bool is_array) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return Error(key, "is missing");
  if (value->is_array == is_array) return value;
  return Error(key, is_array ? "expected an array" : "expected one value, found an array");
}

Result<int64_t> GgufFile::Int(std::string_view key, int64_t min, int64_t max) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Need(key, false));
  const auto number = IntegerAt(value->type, value->bytes.data());
  if (number && *number >= min && *number <= max) return *number;
  return Error(key, fmt::format("expected an integer in [{}, {}]{}", min, max,
                                number ? fmt::format(", found {}", *number) : ""));
}

Result<int64_t> GgufFile::IntOr(std::string_view key, int64_t min, int64_t max,
                                int64_t otherwise) const {
  return FindValue(key) == nullptr ? otherwise : Int(key, min, max);
}

Result<bool> GgufFile::BoolOr(std::string_view key, bool otherwise) const {
  if (FindValue(key) == nullptr) return otherwise;
  ASSIGN_OR_RETURN(const GgufValue* value, Need(key, false));
  if (value->type != GgufType::kBool) return Error(key, "expected true or false");
  return value->bytes[0] != 0;
}

Result<std::string> GgufFile::Text(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Need(key, false));
  if (value->type != GgufType::kText) return Error(key, "expected a text");
  const auto text = value->bytes.subspan(sizeof(uint64_t));
  return std::string(text.begin(), text.end());
}

Result<std::string> GgufFile::TextOr(std::string_view key, std::string otherwise) const {
  if (FindValue(key) == nullptr) return otherwise;
  return Text(key);
}

Result<std::string> GgufFile::Decimal(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Need(key, false));
  const uint8_t* at = value->bytes.data();
  if (const auto integer = IntegerAt(value->type, at)) return fmt::format("{}", *integer);
  if (value->type == GgufType::kF32 && std::isfinite(Load<float>(at))) {
    return fmt::format("{}", Load<float>(at));
  }
  if (value->type == GgufType::kF64 && std::isfinite(Load<double>(at))) {
    return fmt::format("{}", Load<double>(at));
  }
  return Error(key, "expected a finite number");
}

Result<std::vector<std::string_view>> GgufFile::Texts(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Need(key, true));
  if (value->type != GgufType::kText) return Error(key, "expected texts");
  std::vector<std::string_view> texts;
  const uint8_t* at = value->bytes.data();
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto bytes = Load<uint64_t>(at);
    texts.emplace_back(reinterpret_cast<const char*>(at) + sizeof(bytes), bytes);
    at += sizeof(bytes) + bytes;
  }
  return texts;
}

Result<std::vector<int64_t>> GgufFile::Ints(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Need(key, true));
  const uint64_t width = ValueBytes(value->type);
  std::vector<int64_t> numbers;
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto number =
        width == 0 ? std::nullopt : IntegerAt(value->type, value->bytes.data() + i * width);
    if (!number) return Error(key, "expected integers");
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace expertflow

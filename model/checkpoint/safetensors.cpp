#include "model/checkpoint/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "model/checkpoint/json_stream.h"

namespace expertflow {
namespace {

constexpr uint64_t kLengthBytes = 8;  // little-endian length of the JSON that follows
constexpr size_t kJsonDepthMax = 4;   // file, tensor, shape, and one to name the tensor in errors
constexpr size_t kRankMax = 16;

// {"__metadata__": {text: text}, "<tensor>": {"dtype", "shape", "data_offsets"}, ...}
class HeaderHandler : public JsonHandler {
 public:
  std::vector<SafetensorsEntry> TakeEntries() { return std::move(entries_); }

  Status BeginObject() override {
    switch (state_) {
      case State::kStart: return Enter(State::kFile);
      case State::kMetadataValue: return Enter(State::kMetadata);
      case State::kTensorValue: return Enter(State::kTensor);
      default: return Unexpected("an object");
    }
  }

  Status EndObject() override {
    if (state_ == State::kTensor) RETURN_IF_ERROR(FinishTensor());
    state_ = State::kFile;
    return OkStatus();
  }

  Status BeginArray() override {
    if (state_ == State::kShape && !shape_) {
      shape_.emplace();
      return Enter(State::kShapeItems);
    }
    if (state_ == State::kOffsets && !offsets_) {
      offsets_.emplace();
      return Enter(State::kOffsetItems);
    }
    return Unexpected("an array");
  }

  Status EndArray() override { return Enter(State::kTensor); }

  Status Key(std::string_view key) override {
    if (state_ == State::kFile) {
      if (key == "__metadata__") return Enter(State::kMetadataValue);
      entry_ = {};
      entry_.name = key;
      type_.reset();
      shape_.reset();
      offsets_.reset();
      return Enter(State::kTensorValue);
    }
    if (state_ == State::kMetadata) return Enter(State::kMetadataItem);
    if (key == "dtype") return Enter(State::kType);
    if (key == "shape") return Enter(State::kShape);
    if (key == "data_offsets") return Enter(State::kOffsets);
    return InTensor(fmt::format("unknown field {}", DescribeJson(key)));
  }

  Status Scalar(const JsonScalar& value) override {
    switch (state_) {
      case State::kMetadataItem:
        if (!std::holds_alternative<std::string_view>(value))
          return Unexpected(DescribeJson(value));
        return Enter(State::kMetadata);
      case State::kType: {
        const auto* text = std::get_if<std::string_view>(&value);
        if (text == nullptr || type_) return Unexpected(DescribeJson(value));
        const auto type = ParseElementType(*text);
        if (!type.ok()) return InTensor(type.status().message());
        type_ = *type;
        return Enter(State::kTensor);
      }
      case State::kShapeItems: return AppendTo(*shape_, kRankMax, value);
      case State::kOffsetItems: return AppendTo(*offsets_, 2, value);
      default: return Unexpected(DescribeJson(value));
    }
  }

 private:
  enum class State {
    kStart,
    kFile,
    kMetadataValue,
    kMetadata,
    kMetadataItem,
    kTensorValue,
    kTensor,
    kType,
    kShape,
    kShapeItems,
    kOffsets,
    kOffsetItems,
  };

  Status Enter(State state) {
    state_ = state;
    return OkStatus();
  }

  Status InTensor(std::string_view what) const {
    return InvalidArgument(fmt::format("tensor '{}': {}", entry_.name, what));
  }

  Status Unexpected(std::string_view found) const {
    switch (state_) {
      case State::kType: return InTensor(fmt::format("dtype: expected one type, found {}", found));
      case State::kShape:
      case State::kShapeItems:
        return InTensor(
            fmt::format("shape: expected one list of at most {} sizes, found {}", kRankMax, found));
      case State::kOffsets:
      case State::kOffsetItems:
        return InTensor(fmt::format("data_offsets: expected [begin, end], found {}", found));
      case State::kTensorValue:
      case State::kTensor: return InTensor(fmt::format("expected an object, found {}", found));
      default: return InvalidArgument(fmt::format("header: unexpected {}", found));
    }
  }

  Status AppendTo(std::vector<int64_t>& list, size_t limit, const JsonScalar& value) const {
    const auto* number = std::get_if<int64_t>(&value);
    if (number == nullptr || *number < 0) return Unexpected(DescribeJson(value));
    if (list.size() == limit) return Unexpected("more");
    list.push_back(*number);
    return OkStatus();
  }

  // `file_offset` is from the start of the data here; the caller knows where that is.
  Status FinishTensor() {
    if (!type_) return InTensor("no dtype");
    if (!shape_) return InTensor("no shape");
    if (!offsets_ || offsets_->size() != 2) return InTensor("data_offsets: expected [begin, end]");
    const auto [begin, end] = std::pair((*offsets_)[0], (*offsets_)[1]);
    if (begin > end) {
      return InTensor(fmt::format("data_offsets [{}, {}] run backwards", begin, end));
    }
    entry_.type = *type_;
    entry_.shape = std::move(*shape_);
    entry_.file_offset = static_cast<uint64_t>(begin);
    entry_.bytes = static_cast<uint64_t>(end - begin);
    entries_.push_back(std::move(entry_));
    return OkStatus();
  }

  State state_ = State::kStart;
  std::vector<SafetensorsEntry> entries_;
  SafetensorsEntry entry_;
  std::optional<ElementType> type_;
  std::optional<std::vector<int64_t>> shape_;
  std::optional<std::vector<int64_t>> offsets_;
};

Status CheckExtents(const std::vector<SafetensorsEntry>& entries, uint64_t data_bytes) {
  std::vector<const SafetensorsEntry*> by_offset;
  for (const SafetensorsEntry& entry : entries) {
    const auto in_tensor = [&](std::string_view what) {
      return InvalidArgument(fmt::format("tensor '{}': {}", entry.name, what));
    };
    const auto needed = TensorBytes(entry.shape, ElementTypeBytes(entry.type));
    if (!needed.ok()) return in_tensor(needed.status().message());
    if (*needed != entry.bytes) {
      return in_tensor(fmt::format("{} of shape {} takes {} bytes, but its extent has {}",
                                   ElementTypeName(entry.type), FormatShape(entry.shape), *needed,
                                   entry.bytes));
    }
    if (entry.file_offset > data_bytes || entry.bytes > data_bytes - entry.file_offset) {
      return in_tensor(
          fmt::format("bytes {} to {} lie past the end of the data ({} bytes): the file is "
                      "truncated",
                      entry.file_offset, entry.file_offset + entry.bytes, data_bytes));
    }
    by_offset.push_back(&entry);
  }
  std::sort(by_offset.begin(), by_offset.end(), [](const auto* a, const auto* b) {
    return std::tie(a->file_offset, a->bytes, a->name) <
           std::tie(b->file_offset, b->bytes, b->name);
  });
  uint64_t end = 0;
  for (const SafetensorsEntry* entry : by_offset) {
    if (entry->file_offset != end) {
      return InvalidArgument(
          fmt::format("tensor '{}': begins at byte {} of the data, but the "
                      "tensor before it ends at {} ({})",
                      entry->name, entry->file_offset, end,
                      entry->file_offset < end ? "they overlap" : "a gap"));
    }
    end += entry->bytes;
  }
  if (end != data_bytes) {
    return InvalidArgument(
        fmt::format("{} bytes of data, but the header describes {}", data_bytes, end));
  }
  return OkStatus();
}

Result<std::vector<SafetensorsEntry>> ParseChecked(std::span<const uint8_t> file) {
  constexpr std::string_view kLfsPointer = "version https://git-lfs";
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (text.starts_with(kLfsPointer)) {
    return InvalidArgument("a Git LFS pointer, not the tensors; fetch them with 'git lfs pull'");
  }
  if (file.size() < kLengthBytes) {
    return InvalidArgument(
        fmt::format("{} bytes is too short for a safetensors file", file.size()));
  }
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) header_bytes |= uint64_t{file[i]} << (8 * i);
  if (header_bytes > kSafetensorsHeaderBytesMax) {
    return InvalidArgument(
        fmt::format("header of {} bytes, more than the limit of {}: not a "
                    "safetensors file",
                    header_bytes, kSafetensorsHeaderBytesMax));
  }
  if (header_bytes > file.size() - kLengthBytes) {
    return InvalidArgument(
        fmt::format("header of {} bytes lies past the end of the file ({} "
                    "bytes): the file is truncated",
                    header_bytes, file.size()));
  }

  HeaderHandler handler;
  RETURN_IF_ERROR(ParseJson(text.substr(kLengthBytes, header_bytes), kJsonDepthMax, handler));
  std::vector<SafetensorsEntry> entries = handler.TakeEntries();
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  const auto twice =
      std::adjacent_find(entries.begin(), entries.end(),
                         [](const auto& a, const auto& b) { return a.name == b.name; });
  if (twice != entries.end()) {
    return InvalidArgument(fmt::format("tensor '{}' is described twice", twice->name));
  }
  const uint64_t data_begin = kLengthBytes + header_bytes;
  RETURN_IF_ERROR(CheckExtents(entries, file.size() - data_begin));
  for (SafetensorsEntry& entry : entries) entry.file_offset += data_begin;
  return entries;
}

}  // namespace

std::string FormatShape(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Result<uint64_t> TensorBytes(const std::vector<int64_t>& shape, uint64_t element_bytes) {
  uint64_t bytes = element_bytes;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) {
      return InvalidArgument(fmt::format("impossible shape {}", FormatShape(shape)));
    }
  }
  return bytes;
}

Result<std::vector<SafetensorsEntry>> ParseSafetensors(std::span<const uint8_t> file,
                                                       std::string_view file_name) {
  auto entries = ParseChecked(file);
  if (!entries.ok()) return entries.status().WithContext(file_name);
  return entries;
}

std::string TensorInfo::Where() const {
  return fmt::format("'{}' in {}", name, file->path());
}

Result<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  ASSIGN_OR_RETURN(auto entries, ParseSafetensors(mapped.bytes(), path));
  SafetensorsFile result;
  result.file_ = std::make_unique<MappedFile>(std::move(mapped));
  result.tensors_.reserve(entries.size());
  for (SafetensorsEntry& entry : entries) {
    TensorInfo info;
    static_cast<SafetensorsEntry&>(info) = std::move(entry);
    info.data = result.file_->bytes().subspan(info.file_offset, info.bytes);
    info.file = result.file_.get();
    result.tensors_.push_back(std::move(info));
  }
  return result;
}

const TensorInfo* SafetensorsFile::Find(std::string_view name) const {
  const auto at = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const TensorInfo& info, std::string_view key) { return info.name < key; });
  return at != tensors_.end() && at->name == name ? &*at : nullptr;
}

}  // namespace expertflow

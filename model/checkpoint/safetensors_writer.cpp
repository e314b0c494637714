#include "model/checkpoint/safetensors_writer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <string_view>

#include "model/checkpoint/safetensors.h"

namespace expertflow {
namespace {

constexpr size_t kDataAlignment = 8;

}  // namespace

Result<SafetensorsWriter> SafetensorsWriter::Create(const std::string& path,
                                                    const std::vector<TensorDeclaration>& tensors) {
  auto header = nlohmann::json::object();
  header["__metadata__"] = {{"format", "pt"}};
  uint64_t end = 0;
  for (const TensorDeclaration& tensor : tensors) {
    const auto bytes = TensorBytes(tensor.shape, ElementTypeBytes(tensor.type));
    if (!bytes.ok()) return bytes.status().WithContext(tensor.name);
    const uint64_t begin = end;
    if (__builtin_add_overflow(begin, *bytes, &end)) {
      return InvalidArgument(fmt::format("{}: the tensors are too large for one file", path));
    }
    if (header.contains(tensor.name)) {
      return InvalidArgument(fmt::format("{}: tensor '{}' is declared twice", path, tensor.name));
    }
    header[tensor.name] = {{"dtype", ElementTypeName(tensor.type)},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, end}}};
  }
  // Names that are no UTF-8 are written with replacement characters instead of throwing.
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.resize((text.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment, ' ');
  std::string start;
  for (size_t i = 0; i < 8; ++i) start.push_back(static_cast<char>(text.size() >> (8 * i)));
  start += text;

  ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  RETURN_IF_ERROR(
      WriteAll(file.fd(), {reinterpret_cast<const uint8_t*>(start.data()), start.size()}, path));
  return SafetensorsWriter(std::move(file), end);
}

Status SafetensorsWriter::Append(std::span<const uint8_t> bytes) {
  if (bytes.size() > left_bytes_) {
    return InvalidArgument(fmt::format("{}: {} bytes more than the declared tensors take",
                                       file_.path(), bytes.size() - left_bytes_));
  }
  left_bytes_ -= bytes.size();
  return WriteAll(file_.fd(), bytes, file_.path());
}

Status SafetensorsWriter::Finish() {
  if (left_bytes_ > 0) {
    return FailedPrecondition(
        fmt::format("{}: {} bytes of the declared tensors are missing", file_.path(), left_bytes_));
  }
  return file_.Commit();
}

}  // namespace expertflow

#include "model/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "common/mapped_file.h"
#include "model/checkpoint/json_stream.h"
#include "model/checkpoint/model_files.h"

namespace expertflow {
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr size_t kIndexBytesMax = 100'000'000;
constexpr size_t kIndexDepthMax = 8;

// {"metadata": <anything>, "weight_map": {"<tensor>": "<file>", ...}}
class IndexHandler : public JsonHandler {
 public:
  Result<WeightMap> TakeMap() {
    if (!seen_map_) return InvalidArgument("no weight_map");
    return std::move(map_);
  }

  Status BeginObject() override {
    ++depth_;
    if (depth_ == 2 && key_ == "weight_map") {
      if (seen_map_) return InvalidArgument("two weight_maps");
      seen_map_ = true;
      in_map_ = true;
      return OkStatus();
    }
    return in_map_ ? Unexpected("an object") : OkStatus();
  }
  Status EndObject() override {
    --depth_;
    in_map_ = false;
    return OkStatus();
  }
  Status BeginArray() override {
    if (depth_ == 0) return InvalidArgument("expected an object, found an array");
    ++depth_;
    return in_map_ ? Unexpected("an array") : OkStatus();
  }
  Status EndArray() override {
    --depth_;
    return OkStatus();
  }
  Status Key(std::string_view key) override {
    if (depth_ == 1 || in_map_) key_ = key;
    return OkStatus();
  }
  Status Scalar(const JsonScalar& value) override {
    if (!in_map_) {
      if (depth_ == 0) return InvalidArgument("expected an object, found " + DescribeJson(value));
      return OkStatus();
    }
    const auto* file = std::get_if<std::string_view>(&value);
    if (file == nullptr) return Unexpected(DescribeJson(value));
    if (file->empty() || *file == "." || *file == ".." ||
        file->find_first_of(std::string_view("/\\\0", 3)) != std::string_view::npos) {
      return InvalidArgument(
          fmt::format("weight_map: tensor '{}': {} is not the name of a file in this folder", key_,
                      DescribeJson(value)));
    }
    map_.emplace_back(key_, *file);
    return OkStatus();
  }

 private:
  Status Unexpected(std::string_view found) const {
    return InvalidArgument(
        fmt::format("weight_map: tensor '{}': expected a file name, found {}", key_, found));
  }

  size_t depth_ = 0;
  bool seen_map_ = false;
  bool in_map_ = false;
  std::string key_;
  WeightMap map_;
};

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace

Result<WeightMap> ParseCheckpointIndex(std::string_view text, std::string_view file_name) {
  IndexHandler handler;
  const Status parsed = ParseJson(text, kIndexDepthMax, handler);
  if (!parsed.ok()) return parsed.WithContext(file_name);
  auto map = handler.TakeMap();
  if (!map.ok()) return map.status().WithContext(file_name);
  std::sort(map->begin(), map->end());
  const auto twice = std::adjacent_find(
      map->begin(), map->end(), [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twice != map->end()) {
    return InvalidArgument(
        fmt::format("{}: weight_map: tensor '{}' is listed twice", file_name, twice->first));
  }
  return map;
}

Result<Checkpoint> Checkpoint::Open(const std::string& path) {
  if (!IsGguf(path)) return OpenFolder(path);
  Checkpoint result;
  result.folder_ = path;
  ASSIGN_OR_RETURN(GgufFile file, GgufFile::Open(path));
  result.gguf_ = std::make_unique<GgufFile>(std::move(file));
  for (const TensorInfo& info : result.gguf_->tensors()) result.tensors_.push_back(&info);
  return result;
}

Result<Checkpoint> Checkpoint::OpenFolder(const std::string& folder) {
  const auto in_folder = [&](const std::string& name) {
    return (std::filesystem::path(folder) / name).string();
  };
  Checkpoint result;
  result.folder_ = folder;
  WeightMap map;
  std::vector<std::string> names;
  const std::string index_path = in_folder(kIndexFile);
  if (Exists(in_folder(kSingleFile))) {
    names.push_back(kSingleFile);
  } else if (Exists(index_path)) {
    ASSIGN_OR_RETURN(const std::string text, ReadFileToString(index_path, kIndexBytesMax));
    ASSIGN_OR_RETURN(map, ParseCheckpointIndex(text, index_path));
    for (const auto& [tensor, file] : map) names.push_back(file);
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
  } else {
    return NotFound(fmt::format("{}: neither {} nor {} is there", folder, kSingleFile, kIndexFile));
  }

  for (const std::string& name : names) {
    const std::string path = in_folder(name);
    if (!Exists(path)) {
      const auto user = std::find_if(map.begin(), map.end(),
                                     [&](const auto& entry) { return entry.second == name; });
      return NotFound(fmt::format("{}: shard {} is missing; it should hold tensor '{}'", index_path,
                                  name, user == map.end() ? "" : user->first));
    }
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
    result.files_.push_back(std::move(file));
  }
  for (const SafetensorsFile& file : result.files_) {
    for (const TensorInfo& info : file.tensors()) result.tensors_.push_back(&info);
  }
  std::sort(result.tensors_.begin(), result.tensors_.end(),
            [](const auto* a, const auto* b) { return a->name < b->name; });
  const auto twice =
      std::adjacent_find(result.tensors_.begin(), result.tensors_.end(),
                         [](const auto* a, const auto* b) { return a->name == b->name; });
  if (twice != result.tensors_.end()) {
    return InvalidArgument(fmt::format("tensor '{}' is in two files: {} and {}", (*twice)->name,
                                       (*twice)->file->path(), (*std::next(twice))->file->path()));
  }
  for (const auto& [tensor, file] : map) {
    const TensorInfo* info = result.Find(tensor);
    if (info == nullptr || info->file->path() != in_folder(file)) {
      return InvalidArgument(fmt::format(
          "{}: tensor '{}' is not in shard {}, where the index puts it", index_path, tensor, file));
    }
  }
  return result;
}

const TensorInfo* Checkpoint::Find(std::string_view name) const {
  const auto at = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const TensorInfo* info, std::string_view key) { return info->name < key; });
  return at != tensors_.end() && (*at)->name == name ? *at : nullptr;
}

uint64_t Checkpoint::file_bytes() const {
  uint64_t bytes = 0;
  if (gguf_ != nullptr) bytes = gguf_->file_bytes();
  for (const SafetensorsFile& file : files_) {
    if (!file.tensors().empty()) bytes += file.tensors().front().file->bytes().size();
  }
  return bytes;
}

}  // namespace expertflow

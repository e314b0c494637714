#include "launch/trace/trace_import.h"

#include <fmt/format.h>
#include <lzma.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "common/half.h"
#include "common/mapped_file.h"

namespace expertflow {
namespace {

constexpr size_t kRowsPerCall = 4096;
constexpr uint64_t kImportTokensMax = 1u << 28;
constexpr size_t kImportJsonBytesMax = 256u << 20;

// `field` as an integer from `min` to `max`.
Result<int64_t> Integer(const nlohmann::json& json, const char* field, int64_t min, int64_t max) {
  const auto found = json.find(field);
  if (found == json.end() || !found->is_number_integer()) {
    return InvalidArgument(fmt::format("\"{}\" is not there, or no integer", field));
  }
  const auto value = found->get<int64_t>();
  if (value < min || value > max) {
    return InvalidArgument(fmt::format("\"{}\" is {}; expected {} to {}", field, value, min, max));
  }
  return value;
}

// "block_bytes", if it is there.
Status BlockBytes(const nlohmann::json& json, std::vector<uint64_t>* blocks) {
  const auto found = json.find("block_bytes");
  if (found == json.end()) return OkStatus();
  const bool sizes = found->is_array() && !found->empty() &&
                     std::all_of(found->begin(), found->end(), [](const nlohmann::json& bytes) {
                       return bytes.is_number_unsigned();
                     });
  if (!sizes) return InvalidArgument("\"block_bytes\" is no list of sizes");
  *blocks = found->get<std::vector<uint64_t>>();
  return OkStatus();
}

std::string TextField(const nlohmann::json& json, const char* field) {
  const auto found = json.find(field);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// Decompresses an .xz file that must hold exactly `bytes` bytes.
Result<std::vector<uint8_t>> ReadXz(const std::string& path, uint64_t bytes) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  std::vector<uint8_t> out(bytes);
  lzma_stream stream = LZMA_STREAM_INIT;
  if (lzma_stream_decoder(&stream, 256u << 20, LZMA_CONCATENATED) != LZMA_OK) {
    return Internal(path + ": liblzma cannot start");
  }
  stream.next_in = file.bytes().data();
  stream.avail_in = file.bytes().size();
  stream.next_out = out.data();
  stream.avail_out = out.size();
  lzma_ret result = lzma_code(&stream, LZMA_FINISH);
  if (result == LZMA_OK && stream.avail_out == 0) {
    // Full; what is left may only be the end of the stream.
    uint8_t surplus = 0;
    stream.next_out = &surplus;
    stream.avail_out = 1;
    result = lzma_code(&stream, LZMA_FINISH);
    if (stream.avail_out == 0) result = LZMA_BUF_ERROR;
  }
  const bool whole = result == LZMA_STREAM_END && stream.total_out == bytes;
  lzma_end(&stream);
  if (!whole) {
    return InvalidArgument(
        fmt::format("{}: damaged, or not the {} bytes that the .json speaks of", path, bytes));
  }
  return out;
}

Status ImportPacked(const std::string& path, uint64_t expert_bytes, TraceSink* sink) {
  ASSIGN_OR_RETURN(const std::string text, ReadFileToString(path, kImportJsonBytesMax));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return InvalidArgument("no JSON object");
  ASSIGN_OR_RETURN(const int64_t layers, Integer(json, "layers", 1, kTraceLayersMax));
  ASSIGN_OR_RETURN(const int64_t experts, Integer(json, "experts", 1, 256));
  ASSIGN_OR_RETURN(const int64_t top_k, Integer(json, "top_k", 1, kTraceTopKMax));
  ASSIGN_OR_RETURN(const int64_t tokens, Integer(json, "tokens", 1, kImportTokensMax));
  TraceShape shape;
  shape.experts.assign(static_cast<size_t>(layers), static_cast<int32_t>(experts));
  for (int32_t l = 0; l < layers; ++l) shape.layer_ids.push_back(l);
  shape.top_k = static_cast<int32_t>(top_k);
  shape.expert_bytes = expert_bytes;
  shape.model = TextField(json, "model");
  RETURN_IF_ERROR(sink->Begin(shape));

  const std::string stem = path.substr(0, path.size() - std::string_view(".json").size());
  const auto values = static_cast<uint64_t>(tokens * layers * top_k);
  ASSIGN_OR_RETURN(const std::vector<uint8_t> ids, ReadXz(stem + ".ids.u8.xz", values));
  ASSIGN_OR_RETURN(const std::vector<uint8_t> probs, ReadXz(stem + ".probs.f16.xz", 2 * values));
  const auto sequences = json.find("sequences");
  if (sequences == json.end() || !sequences->is_array()) {
    return InvalidArgument("\"sequences\" is not there, or no list");
  }
  const auto per_row = static_cast<size_t>(layers * top_k);
  TraceRows rows;
  uint32_t step = 0;
  uint32_t number = 0;
  for (const nlohmann::json& entry : *sequences) {
    if (!entry.is_object()) return InvalidArgument("a sequence is no object");
    ASSIGN_OR_RETURN(const int64_t first, Integer(entry, "offset_tokens", 0, tokens));
    ASSIGN_OR_RETURN(const int64_t count, Integer(entry, "n_tokens", 0, tokens - first));
    int64_t prompt = 0;
    if (entry.contains("prompt_tokens")) {
      ASSIGN_OR_RETURN(prompt, Integer(entry, "prompt_tokens", 0, 1 << 30));
    }
    TraceSequence sequence;
    sequence.id = number;
    sequence.prompt_tokens = static_cast<int32_t>(prompt);
    sequence.label = TextField(entry, "dataset");
    if (const std::string category = TextField(entry, "category"); !category.empty()) {
      sequence.label += "/" + category;
    }
    RETURN_IF_ERROR(sink->Sequence(sequence));
    for (int64_t t = 0; t < count; ++t) {
      const size_t at = static_cast<size_t>(first + t) * per_row;
      rows.step.push_back(step++);
      rows.sequence.push_back(number);
      rows.position.push_back(static_cast<uint32_t>(prompt + t));
      rows.token.push_back(-1);
      rows.flags.push_back(kTraceRowSampled);
      for (size_t i = at; i < at + per_row; ++i) {
        rows.experts.push_back(ids[i]);
        rows.weights.push_back(static_cast<uint16_t>(probs[2 * i] | probs[2 * i + 1] << 8));
      }
      if (rows.size() == kRowsPerCall) {
        RETURN_IF_ERROR(sink->Rows(rows));
        rows.Clear();
      }
    }
    ++number;
  }
  return sink->Rows(rows);
}

// The rows of a JSONL file as they come.
class LineImport {
 public:
  LineImport(uint64_t expert_bytes, TraceSink* sink) : expert_bytes_(expert_bytes), sink_(sink) {}

  Status Line(const nlohmann::json& json) {
    if (!json.is_object()) return InvalidArgument("no JSON object");
    return shape_ ? Row(json) : Begin(json);
  }
  Status End() {
    if (!shape_) return InvalidArgument("empty; the first line must describe the model");
    return sink_->Rows(rows_);
  }

 private:
  Status Begin(const nlohmann::json& json) {
    if (TextField(json, "format") != "expertflow-routing") {
      return InvalidArgument("the first line must have \"format\": \"expertflow-routing\"");
    }
    RETURN_IF_ERROR(Integer(json, "version", 1, 1).status());
    const auto experts = json.find("experts");
    if (experts == json.end() || !experts->is_array()) {
      return InvalidArgument("\"experts\" must list the experts of each MoE layer");
    }
    TraceShape shape;
    for (const nlohmann::json& count : *experts) {
      if (!count.is_number_integer() || count < 1 || count > kTraceExpertsMax) {
        return InvalidArgument("\"experts\" has what is no number of experts");
      }
      shape.layer_ids.push_back(static_cast<int32_t>(shape.experts.size()));
      shape.experts.push_back(count.get<int32_t>());
    }
    ASSIGN_OR_RETURN(const int64_t top_k, Integer(json, "top_k", 1, kTraceTopKMax));
    shape.top_k = static_cast<int32_t>(top_k);
    shape.expert_bytes = expert_bytes_;
    if (json.contains("expert_bytes") && expert_bytes_ == 0) {
      ASSIGN_OR_RETURN(const int64_t bytes, Integer(json, "expert_bytes", 0, INT64_MAX));
      shape.expert_bytes = static_cast<uint64_t>(bytes);
    }
    if (expert_bytes_ == 0) RETURN_IF_ERROR(BlockBytes(json, &shape.block_bytes));
    shape.model = TextField(json, "model");
    RETURN_IF_ERROR(CheckTraceShape(shape));
    shape_ = shape;
    return sink_->Begin(shape);
  }

  Status Row(const nlohmann::json& json) {
    ASSIGN_OR_RETURN(const int64_t id, Integer(json, "sequence", 0, INT64_MAX));
    const auto [known, is_new] = numbers_.try_emplace(id, static_cast<uint32_t>(numbers_.size()));
    if (is_new) {
      TraceSequence sequence;
      sequence.id = static_cast<uint64_t>(id);
      sequence.label = TextField(json, "label");
      if (json.contains("prompt_tokens")) {
        ASSIGN_OR_RETURN(const int64_t prompt, Integer(json, "prompt_tokens", 0, 1 << 30));
        sequence.prompt_tokens = static_cast<int32_t>(prompt);
      }
      RETURN_IF_ERROR(sink_->Sequence(sequence));
      positions_.push_back(sequence.prompt_tokens);
    }
    int64_t& position = positions_[known->second];
    int64_t step = step_;
    int64_t token = -1;
    if (json.contains("position")) {
      ASSIGN_OR_RETURN(position, Integer(json, "position", 0, UINT32_MAX - 1));
    }
    if (json.contains("step")) {
      ASSIGN_OR_RETURN(step, Integer(json, "step", 0, UINT32_MAX - 1));
    }
    if (json.contains("token")) {
      ASSIGN_OR_RETURN(token, Integer(json, "token", -1, INT32_MAX));
    }
    const bool prompt = json.contains("prompt") && json["prompt"].is_boolean() && json["prompt"];
    rows_.step.push_back(static_cast<uint32_t>(step));
    rows_.sequence.push_back(known->second);
    rows_.position.push_back(static_cast<uint32_t>(position));
    rows_.token.push_back(static_cast<int32_t>(token));
    rows_.flags.push_back(prompt ? kTraceRowPrompt : kTraceRowSampled);
    ++position;
    step_ = step + 1;
    RETURN_IF_ERROR(Layers(json));
    if (rows_.size() < kRowsPerCall) return OkStatus();
    const Status status = sink_->Rows(rows_);
    rows_.Clear();
    return status;
  }

  Status Layers(const nlohmann::json& json) {
    const auto experts = json.find("experts");
    const auto weights = json.find("weights");
    const bool weighted = weights != json.end();
    const auto k = static_cast<size_t>(shape_->top_k);
    const auto fits = [&](const nlohmann::json& lists) {
      return lists.is_array() && lists.size() == shape_->experts.size() &&
             std::all_of(lists.begin(), lists.end(), [&](const nlohmann::json& list) {
               return list.is_array() && list.size() == k;
             });
    };
    if (experts == json.end() || !fits(*experts) || (weighted && !fits(*weights))) {
      return InvalidArgument(fmt::format("\"experts\" and \"weights\" must be {} lists of {}",
                                         shape_->experts.size(), k));
    }
    for (size_t l = 0; l < shape_->experts.size(); ++l) {
      for (size_t j = 0; j < k; ++j) {
        const nlohmann::json& expert = (*experts)[l][j];
        if (!expert.is_number_integer() || expert < 0 || expert >= shape_->experts[l]) {
          return InvalidArgument(fmt::format("layer {}: no expert of it: {}", l, expert.dump()));
        }
        rows_.experts.push_back(expert.get<uint16_t>());
        float weight = 1.0f / static_cast<float>(k);
        if (weighted) {
          if (!(*weights)[l][j].is_number()) {
            return InvalidArgument(fmt::format("layer {}: a weight is no number", l));
          }
          weight = (*weights)[l][j].get<float>();
        }
        rows_.weights.push_back(HalfFromFloat(weight));
      }
    }
    return OkStatus();
  }

  const uint64_t expert_bytes_;
  TraceSink* const sink_;
  std::optional<TraceShape> shape_;
  std::map<int64_t, uint32_t> numbers_;
  std::vector<int64_t> positions_;  // next, of each sequence
  int64_t step_ = 0;
  TraceRows rows_;
};

Status ImportLines(const std::string& path, uint64_t expert_bytes, TraceSink* sink) {
  std::ifstream file(path);
  if (!file) return NotFound("cannot be opened");
  LineImport import(expert_bytes, sink);
  std::string line;
  for (uint64_t number = 1; std::getline(file, line); ++number) {
    if (line.empty()) continue;
    RETURN_IF_ERROR(import.Line(nlohmann::json::parse(line, nullptr, false))
                        .WithContext(fmt::format("line {}", number)));
  }
  return import.End();
}

}  // namespace

bool IsImportable(const std::string& path) {
  return path.ends_with(".json") || path.ends_with(".jsonl");
}

Status ImportTrace(const std::string& path, uint64_t expert_bytes, TraceSink* sink) {
  if (path.ends_with(".jsonl")) return ImportLines(path, expert_bytes, sink).WithContext(path);
  if (path.ends_with(".json")) return ImportPacked(path, expert_bytes, sink).WithContext(path);
  return InvalidArgument(path + ": expected a .json or .jsonl file to import");
}

}  // namespace expertflow

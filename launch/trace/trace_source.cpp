#include "launch/trace/trace_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "common/half.h"
#include "common/trace/trace_reader.h"
#include "launch/option_values.h"

namespace expertflow {
namespace {

// Gathers rows by sequence; they may come interleaved, as a batch was decoded.
class RoutingSink final : public TraceSink {
 public:
  Status Begin(const TraceShape& shape) override {
    loaded_.shape = shape;
    loaded_.routing.experts = shape.experts;
    loaded_.routing.top_k = shape.top_k;
    loaded_.routing.expert_bytes = shape.expert_bytes;
    return OkStatus();
  }
  Status Sequence(const TraceSequence&) override {
    by_sequence_.emplace_back();
    return OkStatus();
  }
  Status Rows(const TraceRows& rows) override {
    RETURN_IF_ERROR(CheckTraceRows(loaded_.shape, by_sequence_.size(), rows));
    const auto width = loaded_.shape.experts.size() * static_cast<size_t>(loaded_.shape.top_k);
    for (size_t r = 0; r < rows.size(); ++r) {
      if ((rows.flags[r] & kTraceRowPrompt) != 0) {
        ++loaded_.prompt_rows;
        continue;
      }
      Gathered& to = by_sequence_[rows.sequence[r]];
      for (size_t i = r * width; i < (r + 1) * width; ++i) {
        to.chosen.push_back(rows.experts[i]);
        to.weights.push_back(rows.weights[i]);
      }
    }
    return OkStatus();
  }

  LoadedTrace Finish() {
    const auto width = loaded_.shape.experts.size() * static_cast<size_t>(loaded_.shape.top_k);
    RoutingTrace& routing = loaded_.routing;
    size_t values = 0;
    for (const Gathered& sequence : by_sequence_) values += sequence.chosen.size();
    routing.chosen.reserve(values);
    routing.weights.reserve(values);
    for (Gathered& sequence : by_sequence_) {
      if (sequence.chosen.empty()) continue;
      routing.sequences.push_back(
          {.first = routing.chosen.size() / width, .rows = sequence.chosen.size() / width});
      uint64_t hash = 14695981039346656037u;
      for (const uint16_t expert : sequence.chosen) hash = (hash ^ expert) * 1099511628211u;
      loaded_.sequence_hashes.push_back(hash);
      routing.chosen.insert(routing.chosen.end(), sequence.chosen.begin(), sequence.chosen.end());
      for (const uint16_t weight : sequence.weights) {
        routing.weights.push_back(FloatFromHalf(weight));
      }
      sequence = {};
    }
    return std::move(loaded_);
  }

 private:
  struct Gathered {
    std::vector<uint16_t> chosen;
    std::vector<uint16_t> weights;
  };
  LoadedTrace loaded_;
  std::vector<Gathered> by_sequence_;
};

Status CopyFrom(const TraceReader& reader, TraceSink* sink) {
  RETURN_IF_ERROR(sink->Begin(reader.shape()));
  for (const TraceSequence& sequence : reader.sequences()) {
    RETURN_IF_ERROR(sink->Sequence(sequence));
  }
  for (size_t block = 0; block < reader.row_blocks(); ++block) {
    ASSIGN_OR_RETURN(const TraceRows rows, reader.ReadRows(block));
    RETURN_IF_ERROR(sink->Rows(rows));
  }
  return OkStatus();
}

}  // namespace

Result<LoadedTrace> LoadTrace(const std::string& path, uint64_t expert_bytes) {
  RoutingSink sink;
  bool truncated = false;
  if (IsImportable(path)) {
    RETURN_IF_ERROR(ImportTrace(path, expert_bytes, &sink));
  } else {
    ASSIGN_OR_RETURN(const TraceReader reader, TraceReader::Open(path));
    truncated = reader.truncated();
    RETURN_IF_ERROR(CopyFrom(reader, &sink));
  }
  LoadedTrace loaded = sink.Finish();
  if (loaded.routing.sequences.empty()) {
    return InvalidArgument(path + ": no decode step in it, nothing to replay");
  }
  loaded.truncated = truncated;
  if (expert_bytes != 0) {
    loaded.shape.SetExpertBytes(expert_bytes);
    loaded.routing.expert_bytes = expert_bytes;
  }
  return loaded;
}

Status CopyTrace(const std::string& path, TraceSink* sink) {
  if (IsImportable(path)) return ImportTrace(path, 0, sink);
  ASSIGN_OR_RETURN(const TraceReader reader, TraceReader::Open(path));
  return CopyFrom(reader, sink);
}

Result<std::vector<int32_t>> ParseSequenceList(const std::string& text, size_t sequences,
                                               const std::string& origin) {
  const auto bad = [&] {
    return InvalidArgument(
        fmt::format("{}: expected ranges begin:end or begin:end:step, up to {}, found \"{}\"",
                    origin, sequences, text));
  };
  std::vector<uint8_t> wanted(sequences, text.empty() ? 1 : 0);
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    std::string part = text.substr(at, comma - at);
    at = comma + 1;
    int64_t bounds[3] = {0, static_cast<int64_t>(sequences), 1};
    int fields = 0;
    for (size_t from = 0; from <= part.size() && fields < 3; ++fields) {
      const size_t colon = std::min(part.find(':', from), part.size());
      if (colon > from) {
        const auto value = ParseInteger(std::string_view(part).substr(from, colon - from));
        if (!value || *value < 0 || *value > static_cast<int64_t>(sequences)) return bad();
        bounds[fields] = *value;
      }
      if (colon == part.size())
        from = part.size() + 1;
      else
        from = colon + 1;
    }
    if (part.find(':') == std::string::npos || std::count(part.begin(), part.end(), ':') > 2 ||
        bounds[2] < 1) {
      return bad();
    }
    for (int64_t s = bounds[0]; s < bounds[1]; s += bounds[2]) wanted[static_cast<size_t>(s)] = 1;
  }
  std::vector<int32_t> list;
  for (size_t s = 0; s < sequences; ++s) {
    if (wanted[s] != 0) list.push_back(static_cast<int32_t>(s));
  }
  if (list.empty())
    return InvalidArgument(fmt::format("{}: \"{}\" names no sequence", origin, text));
  return list;
}

}  // namespace expertflow

#include "launch/trace/trace_export.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "common/half.h"
#include "common/trace/trace_reader.h"

namespace expertflow {
namespace {

std::string CsvHeader(const TraceShape& shape) {
  std::string text = "step,sequence,position,token,prompt,layer";
  for (int32_t j = 0; j < shape.top_k; ++j) text += fmt::format(",expert_{}", j);
  for (int32_t j = 0; j < shape.top_k; ++j) text += fmt::format(",weight_{}", j);
  return text + "\n";
}

std::string JsonlHeader(const TraceShape& shape) {
  nlohmann::json json = {{"format", "expertflow-routing"}, {"version", 1},
                         {"model", shape.model},           {"experts", shape.experts},
                         {"top_k", shape.top_k},           {"expert_bytes", shape.expert_bytes}};
  if (!shape.block_bytes.empty()) json["block_bytes"] = shape.block_bytes;
  return json.dump() + "\n";
}

void AppendCsv(const TraceReader& reader, const TraceRows& rows, size_t r, std::string* out) {
  const TraceShape& shape = reader.shape();
  const auto k = static_cast<size_t>(shape.top_k);
  auto to = std::back_inserter(*out);
  for (size_t l = 0; l < shape.experts.size(); ++l) {
    fmt::format_to(to, "{},{},{},{},{},{}", rows.step[r], rows.sequence[r], rows.position[r],
                   rows.token[r], rows.flags[r] & kTraceRowPrompt, shape.layer_ids[l]);
    const size_t at = (r * shape.experts.size() + l) * k;
    for (size_t j = 0; j < k; ++j) fmt::format_to(to, ",{}", rows.experts[at + j]);
    for (size_t j = 0; j < k; ++j) fmt::format_to(to, ",{}", FloatFromHalf(rows.weights[at + j]));
    *to++ = '\n';
  }
}

void AppendJsonl(const TraceReader& reader, const TraceRows& rows, size_t r, std::string* out) {
  const TraceShape& shape = reader.shape();
  const auto k = static_cast<size_t>(shape.top_k);
  auto to = std::back_inserter(*out);
  const TraceSequence& sequence = reader.sequences()[rows.sequence[r]];
  fmt::format_to(to, "{{\"step\":{},\"sequence\":{},\"prompt_tokens\":{},\"label\":{},",
                 rows.step[r], rows.sequence[r], sequence.prompt_tokens,
                 nlohmann::json(sequence.label)
                     .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  fmt::format_to(to, "\"position\":{},\"token\":{},\"prompt\":{},\"experts\":[", rows.position[r],
                 rows.token[r], (rows.flags[r] & kTraceRowPrompt) != 0);
  const size_t row = r * shape.experts.size() * k;
  for (size_t l = 0; l < shape.experts.size(); ++l) {
    const auto* at = rows.experts.data() + row + l * k;
    fmt::format_to(to, "{}[{}]", l > 0 ? "," : "", fmt::join(at, at + k, ","));
  }
  *out += "],\"weights\":[";
  for (size_t l = 0; l < shape.experts.size(); ++l) {
    *out += l > 0 ? ",[" : "[";
    for (size_t j = 0; j < k; ++j) {
      fmt::format_to(to, "{}{}", j > 0 ? "," : "", FloatFromHalf(rows.weights[row + l * k + j]));
    }
    *out += ']';
  }
  *out += "]}\n";
}

}  // namespace

Status ExportTrace(const std::string& path, const std::string& output) {
  const bool csv = output.ends_with(".csv");
  if (!csv && !output.ends_with(".jsonl")) {
    return InvalidArgument("--output " + output + ": expected a name that ends in .csv or .jsonl");
  }
  ASSIGN_OR_RETURN(const TraceReader reader, TraceReader::Open(path));
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(output.c_str(), "we"),
                                                             std::fclose);
  if (!file) return FromErrno(errno, "cannot create " + output);
  std::string text = csv ? CsvHeader(reader.shape()) : JsonlHeader(reader.shape());
  for (size_t block = 0; block < reader.row_blocks(); ++block) {
    ASSIGN_OR_RETURN(const TraceRows rows, reader.ReadRows(block));
    for (size_t r = 0; r < rows.size(); ++r) {
      if (csv) {
        AppendCsv(reader, rows, r, &text);
      } else {
        AppendJsonl(reader, rows, r, &text);
      }
    }
    if (std::fwrite(text.data(), 1, text.size(), file.get()) != text.size()) {
      return FromErrno(errno, "cannot write " + output);
    }
    text.clear();
  }
  if (std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() ||
      std::fflush(file.get()) != 0) {
    return FromErrno(errno, "cannot write " + output);
  }
  return OkStatus();
}

}  // namespace expertflow

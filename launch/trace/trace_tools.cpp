#include "launch/trace/trace_tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "common/trace/trace_reader.h"
#include "common/trace/trace_writer.h"
#include "common/units.h"
#include "launch/commands.h"
#include "launch/trace/trace_export.h"
#include "launch/trace/trace_source.h"

namespace expertflow {
namespace {

// Into one new file: all of what comes, or some sequences of it. Several traces follow each other.
class WriterSink final : public TraceSink {
 public:
  WriterSink(std::string path, uint64_t expert_bytes)
      : path_(std::move(path)), expert_bytes_(expert_bytes) {}

  // Only these of the next trace.
  void Keep(std::vector<uint8_t> wanted) { wanted_ = std::move(wanted); }

  Status Begin(const TraceShape& shape) override {
    numbers_.clear();
    step_base_ = step_next_;
    TraceShape wanted = shape;
    if (expert_bytes_ != 0) wanted.SetExpertBytes(expert_bytes_);
    if (!writer_) {
      ASSIGN_OR_RETURN(TraceWriter writer, TraceWriter::Create(path_, wanted));
      writer_.emplace(std::move(writer));
      return OkStatus();
    }
    TraceShape first = writer_->shape();
    first.config = wanted.config;  // runs of one model may differ in their settings
    if (first != wanted) {
      return InvalidArgument(
          "not of the same model, or with other columns or sizes of experts, than the first trace");
    }
    return OkStatus();
  }
  Status Sequence(const TraceSequence& sequence) override {
    const size_t number = numbers_.size();
    const bool keep = wanted_.empty() || (number < wanted_.size() && wanted_[number] != 0);
    numbers_.push_back(keep ? static_cast<int64_t>(writer_->AddSequence(sequence)) : -1);
    return OkStatus();
  }
  Status Rows(const TraceRows& rows) override {
    RETURN_IF_ERROR(CheckTraceRows(writer_->shape(), numbers_.size(), rows));
    TraceRows kept;
    for (size_t r = 0; r < rows.size(); ++r) {
      const int64_t number = numbers_[rows.sequence[r]];
      step_next_ = std::max(step_next_, uint64_t{step_base_} + rows.step[r] + 1);
      if (number < 0) continue;
      AppendRow(rows, r, &kept);
      kept.sequence.back() = static_cast<uint32_t>(number);
      kept.step.back() = static_cast<uint32_t>(step_base_ + rows.step[r]);
    }
    if (step_next_ > UINT32_MAX) return InvalidArgument("more than 2^32 steps");
    rows_ += kept.size();
    return writer_->Append(kept);
  }
  Result<uint64_t> Close() {
    RETURN_IF_ERROR(writer_->Close());
    return writer_->bytes_written();
  }
  uint64_t rows() const { return rows_; }

 private:
  const std::string path_;
  const uint64_t expert_bytes_;
  std::optional<TraceWriter> writer_;
  std::vector<uint8_t> wanted_;   // empty: all
  std::vector<int64_t> numbers_;  // in the output, of the present trace's sequences; -1: left out
  uint64_t step_base_ = 0;
  uint64_t step_next_ = 0;
  uint64_t rows_ = 0;
};

Result<std::string> OutputFile(const Options& options, std::span<const std::string> inputs) {
  const std::string output = options.Text("output");
  if (output.empty()) return InvalidArgument("--output FILE is missing");
  std::error_code error;
  for (const std::string& input : inputs) {
    if (std::filesystem::equivalent(input, output, error)) {
      return InvalidArgument("--output " + output + ": is also an input");
    }
  }
  return output;
}

Status Report(const Options& options, const std::string& file, uint64_t rows, uint64_t bytes) {
  const nlohmann::json json = {{"format", "expertflow-trace-file"},
                               {"version", 1},
                               {"file", file},
                               {"rows", rows},
                               {"bytes", bytes}};
  if (options.Text("json") != "-") {
    fmt::print("{}: {} rows, {}\n", file, rows, FormatBytes(bytes));
  }
  return WriteJsonOption(options, json.dump(2));
}

Status Copy(const Options& options, std::span<const std::string> inputs, bool cut) {
  ASSIGN_OR_RETURN(const std::string output, OutputFile(options, inputs));
  WriterSink sink(output, options.Bytes("expert-bytes"));
  if (cut) {
    ASSIGN_OR_RETURN(const TraceReader reader, TraceReader::Open(inputs[0]));
    ASSIGN_OR_RETURN(
        const std::vector<int32_t> list,
        ParseSequenceList(options.Text("sequences"), reader.sequences().size(), "--sequences"));
    std::vector<uint8_t> wanted(reader.sequences().size(), 0);
    for (const int32_t s : list) wanted[static_cast<size_t>(s)] = 1;
    sink.Keep(std::move(wanted));
  }
  for (const std::string& input : inputs) {
    RETURN_IF_ERROR(CopyTrace(input, &sink).WithContext(input));
  }
  ASSIGN_OR_RETURN(const uint64_t bytes, sink.Close());
  return Report(options, output, sink.rows(), bytes);
}

std::string Hex(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::vector<std::string> ColumnNames(uint32_t columns) {
  std::vector<std::string> names;
  if (columns & kTraceRouterScores) names.push_back("router scores");
  if (columns & kTraceRouterHidden) names.push_back("router hidden");
  if (columns & kTraceExpertResidual) names.push_back("expert residual");
  return names;
}

// How many experts take how much, the largest first.
nlohmann::json Blocks(const TraceShape& shape) {
  std::map<uint64_t, int64_t, std::greater<>> blocks;
  for (const uint64_t bytes : shape.block_bytes) ++blocks[bytes];
  if (blocks.empty() && shape.expert_bytes > 0) blocks[shape.expert_bytes] = shape.experts_total();
  nlohmann::json json = nlohmann::json::array();
  for (const auto& [bytes, experts] : blocks) {
    json.push_back({{"bytes", bytes}, {"experts", experts}});
  }
  return json;
}

Result<nlohmann::json> Inspect(const std::string& path) {
  ASSIGN_OR_RETURN(const TraceReader reader, TraceReader::Open(path));
  uint64_t prompt_rows = 0;
  uint64_t steps = 0;
  std::optional<uint32_t> step;
  for (size_t block = 0; block < reader.row_blocks(); ++block) {
    ASSIGN_OR_RETURN(const TraceRows rows, reader.ReadRows(block));
    for (size_t r = 0; r < rows.size(); ++r) {
      prompt_rows += (rows.flags[r] & kTraceRowPrompt) != 0 ? 1 : 0;
      if (step != rows.step[r]) ++steps;
      step = rows.step[r];
    }
  }
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(path, error);
  const TraceShape& shape = reader.shape();
  return nlohmann::json{
      {"file", path},
      {"bytes", bytes},
      {"model", shape.model},
      {"fingerprint", Hex(shape.fingerprint)},
      {"experts_per_layer", shape.experts},
      {"layers", shape.layer_ids},
      {"top_k", shape.top_k},
      {"hidden", shape.hidden},
      {"columns", ColumnNames(shape.columns)},
      {"expert_bytes", shape.expert_bytes},
      {"expert_blocks", Blocks(shape)},
      {"sequences", reader.sequences().size()},
      {"steps", steps},
      {"rows", reader.rows()},
      {"prompt_rows", prompt_rows},
      {"spans", reader.spans()},
      {"blocks", reader.row_blocks()},
      {"truncated", reader.truncated()},
      {"config", nlohmann::json::parse(shape.config, nullptr, false).is_discarded()
                     ? nlohmann::json(shape.config)
                     : nlohmann::json::parse(shape.config, nullptr, false)}};
}

std::string Describe(const nlohmann::json& found) {
  const uint64_t rows = found["rows"];
  const uint64_t bytes = found["bytes"];
  std::string text = fmt::format(
      "{}{}\n  model       {}\n  MoE layers  {} with up to {} experts, top-{}\n"
      "  sequences   {}\n  rows        {} in {} steps, {} of them of prompts\n"
      "  size        {}, {:.1f} bytes a row\n",
      found["file"].get<std::string>(),
      found["truncated"] ? " (its end is missing: the last rows may be lost)" : "",
      found["model"].get<std::string>(), found["layers"].size(),
      std::max_element(found["experts_per_layer"].begin(), found["experts_per_layer"].end())
          ->get<int>(),
      found["top_k"].get<int>(), found["sequences"].get<uint64_t>(), rows,
      found["steps"].get<uint64_t>(), found["prompt_rows"].get<uint64_t>(), FormatBytes(bytes),
      rows > 0 ? static_cast<double>(bytes) / static_cast<double>(rows) : 0.0);
  for (const auto& blocks : found["expert_blocks"]) {
    text += fmt::format("  experts     {} of {}\n", blocks["experts"].get<int64_t>(),
                        FormatBytes(blocks["bytes"].get<uint64_t>()));
  }
  for (const auto& column : found["columns"]) {
    text += fmt::format("  column      {}\n", column.get<std::string>());
  }
  return text;
}

Status InspectAll(const Options& options, std::span<const std::string> files) {
  nlohmann::json json = {{"format", "expertflow-trace-inspect"}, {"version", 1}};
  for (const std::string& path : files) {
    ASSIGN_OR_RETURN(nlohmann::json found, Inspect(path));
    if (options.Text("json") != "-") fmt::print("{}", Describe(found));
    json["traces"].push_back(std::move(found));
  }
  return WriteJsonOption(options, json.dump(2));
}

}  // namespace

Status MergeTraces(std::span<const std::string> inputs, const std::string& output) {
  WriterSink sink(output, 0);
  for (const std::string& input : inputs) {
    RETURN_IF_ERROR(CopyTrace(input, &sink).WithContext(input));
  }
  return sink.Close().status();
}

bool IsTraceAction(const std::string& word) {
  return word == "inspect" || word == "cut" || word == "merge" || word == "import" ||
         word == "export";
}

Status RunTraceAction(const Options& options, const std::string& action,
                      std::span<const std::string> files) {
  if (files.empty()) return InvalidArgument(action + ": no file given");
  if (action == "inspect") return InspectAll(options, files);
  if (action == "merge") return Copy(options, files, false);
  if (files.size() != 1) {
    return InvalidArgument(fmt::format("{}: takes one file, {} given", action, files.size()));
  }
  if (action == "export") {
    ASSIGN_OR_RETURN(const std::string output, OutputFile(options, files));
    return ExportTrace(files[0], output);
  }
  if (action == "import" && !IsImportable(files[0])) {
    return InvalidArgument(files[0] + ": expected a .json or .jsonl file to import");
  }
  return Copy(options, files, action == "cut");
}

}  // namespace expertflow

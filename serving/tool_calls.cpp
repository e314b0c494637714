#include "serving/tool_calls.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "common/json_string.h"

namespace expertflow {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kBegin = "<tool_call>";
constexpr std::string_view kEnd = "</tool_call>";
constexpr int kCallDepthMax = 100;

std::optional<ToolCallText> ReadCall(std::string_view text) {
  if (JsonNestsDeeper(text, kCallDepthMax)) return std::nullopt;
  const Json call = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!call.is_object() || !call.contains("name") || !call["name"].is_string()) return std::nullopt;
  ToolCallText found{call["name"].get<std::string>(), "{}"};
  if (const auto arguments = call.find("arguments"); arguments != call.end()) {
    found.arguments = arguments->is_string()
                          ? arguments->get<std::string>()
                          : arguments->dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return found;
}

bool IsSpace(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

}  // namespace

ToolCallReader::Piece ToolCallReader::Push(std::string_view text) {
  Piece piece;
  held_ += text;
  const auto give = [&](std::string_view outside) {
    space_ += outside;
    if (IsSpace(space_) && (has_call_ || !has_text_)) return;
    has_text_ = true;
    piece.text += std::exchange(space_, "");
  };
  for (;;) {
    const size_t begin = held_.find(kBegin);
    if (begin == std::string::npos) {
      size_t keep = std::min(kBegin.size() - 1, held_.size());
      while (!held_.ends_with(kBegin.substr(0, keep))) --keep;
      give(std::string_view(held_).substr(0, held_.size() - keep));
      held_.erase(0, held_.size() - keep);
      return piece;
    }
    const size_t end = held_.find(kEnd, begin);
    give(std::string_view(held_).substr(0, begin));
    held_.erase(0, begin);
    if (end == std::string::npos) return piece;
    const size_t size = end - begin + kEnd.size();
    const std::string_view inside =
        std::string_view(held_).substr(kBegin.size(), size - kBegin.size() - kEnd.size());
    if (std::optional<ToolCallText> call = ReadCall(inside)) {
      piece.calls.push_back(std::move(*call));
      has_call_ = true;
      space_.clear();
    } else {
      give(std::string_view(held_).substr(0, size));
    }
    held_.erase(0, size);
  }
}

ToolCallReader::Piece ToolCallReader::Flush() {
  Piece piece;
  if (held_.empty() && has_call_) return piece;
  piece.text = std::exchange(space_, "") + std::exchange(held_, "");
  return piece;
}

std::string ToolCallGrammar(std::string_view functions_json) {
  const Json functions = Json::parse(functions_json);
  Json alternatives = Json::array();
  for (const Json& function : functions) {
    const std::string name = function["name"].dump();
    Json schema = {{"type", "object"}};
    if (function.contains("parameters")) schema = function["parameters"];
    alternatives.push_back(
        {{"prefix", std::string(kBegin) + "\n{\"name\": " + name + ", \"arguments\": "},
         {"schema", std::move(schema)},
         {"suffix", "}\n" + std::string(kEnd)}});
  }
  return Json({{"alternatives", std::move(alternatives)}}).dump();
}

}  // namespace expertflow

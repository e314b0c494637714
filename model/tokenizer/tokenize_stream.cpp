#include "model/tokenizer/tokenize_stream.h"

#include <fmt/format.h>

#include <cstdint>
#include <istream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

namespace expertflow {
namespace {

using nlohmann::json;

Result<std::vector<int32_t>> ReadIds(const json& value, const Tokenizer& tokenizer) {
  if (!value.is_array()) return InvalidArgument("\"ids\" must be an array of token ids");
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const json& entry : value) {
    const bool fits = entry.is_number_unsigned() &&
                      entry.get<uint64_t>() < static_cast<uint64_t>(tokenizer.vocab_size());
    if (!fits) {
      return InvalidArgument(fmt::format("\"ids\" has {}, token ids are integers from 0 to {}",
                                         entry.dump(-1, ' ', true, json::error_handler_t::replace),
                                         tokenizer.vocab_size() - 1));
    }
    ids.push_back(static_cast<int32_t>(entry.get<uint64_t>()));
  }
  return ids;
}

Result<std::string> Answer(const std::string& line, const Tokenizer& tokenizer) {
  const json request = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (request.is_discarded()) return InvalidArgument("not valid JSON");
  if (!request.is_object() || request.size() != 1) {
    return InvalidArgument("expected {\"text\": \"...\"} or {\"ids\": [...]}");
  }
  const std::string& key = request.begin().key();
  const json& value = request.begin().value();
  json answer;
  if (key == "text") {
    if (!value.is_string()) return InvalidArgument("\"text\" must be a string");
    ASSIGN_OR_RETURN(answer["ids"], tokenizer.Encode(value.get_ref<const std::string&>()));
  } else if (key == "ids") {
    ASSIGN_OR_RETURN(const auto ids, ReadIds(value, tokenizer));
    answer["text"] = tokenizer.Decode(ids, /*skip_special=*/false);
  } else {
    return InvalidArgument("expected \"text\" or \"ids\" as the only key");
  }
  return answer.dump();
}

}  // namespace

Status TokenizeStream(const Tokenizer& tokenizer, std::istream& in, std::ostream& out) {
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    const auto answer = Answer(line, tokenizer);
    if (!answer.ok()) return answer.status().WithContext(fmt::format("line {}", number));
    out << *answer << '\n' << std::flush;
    if (!out) return Internal(fmt::format("cannot write the answer to line {}", number));
  }
  if (in.bad()) return Internal("cannot read the input");
  return OkStatus();
}

}  // namespace expertflow

#include "serving/token_logprobs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/tokenizer/utf8.h"
#include "serving/json_text.h"

namespace expertflow {
namespace {

// What OpenAI's API says of tokens that are next to impossible; JSON has no infinity.
constexpr float kLogprobMin = -9999;

std::string Number(float logprob) {
  return fmt::format("{}", std::isfinite(logprob) ? std::max(logprob, kLogprobMin) : kLogprobMin);
}

int64_t CountCharacters(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

TokenLogprobs::TokenLogprobs(const Tokenizer& tokenizer, bool chat, std::span<const int32_t> echo)
    : tokenizer_(tokenizer),
      chat_(chat),
      prompt_left_(echo.size()),
      prompt_decoder_(tokenizer, /*skip_special=*/false),
      decoder_(tokenizer, /*skip_special=*/true) {
  if (!echo.empty()) Append({.logprobs = {{echo[0], 0}}, .known = false});
}

void TokenLogprobs::Append(Entry entry) {
  const int32_t token = entry.logprobs[0].token;
  entry.offset = characters_;
  if (prompt_left_ > 0) {
    characters_ += CountCharacters(prompt_decoder_.Push(token));
    --prompt_left_;
  } else {
    entry.begin = text_bytes_;
    entry.has_text = !tokenizer_.IsSpecial(token) && !tokenizer_.TokenBytes(token).empty();
    const std::string text = decoder_.Push(token);
    text_bytes_ += static_cast<int64_t>(text.size());
    characters_ += CountCharacters(text);
  }
  waiting_.push_back(std::move(entry));
}

void TokenLogprobs::Add(const std::vector<TokenLogprob>& logprobs) {
  if (!logprobs.empty()) Append({.logprobs = logprobs});
}

std::string TokenLogprobs::Take(int64_t text_bytes) {
  std::vector<Entry> entries;
  while (!waiting_.empty() && waiting_.front().begin < text_bytes) {
    entries.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return Json(entries);
}

std::string TokenLogprobs::TakeLast(int64_t text_bytes, FinishReason finish) {
  std::vector<Entry> entries;
  for (Entry& entry : waiting_) {
    const bool shown = entry.begin < text_bytes || !entry.has_text;
    if (shown || finish == FinishReason::kLength) entries.push_back(std::move(entry));
  }
  waiting_.clear();
  return Json(entries);
}

std::string TokenLogprobs::TokenText(int32_t token) const {
  const std::string_view bytes = tokenizer_.TokenBytes(token);
  if (IsValidUtf8(bytes)) return JsonString(bytes);
  std::string text = "bytes:";
  for (const char c : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return JsonString(text);
}

std::string TokenLogprobs::Json(const std::vector<Entry>& entries) const {
  if (entries.empty()) return "null";
  return chat_ ? ChatJson(entries) : CompletionJson(entries);
}

std::string TokenLogprobs::CompletionJson(const std::vector<Entry>& entries) const {
  std::vector<std::string> tokens;
  std::vector<std::string> logprobs;
  std::vector<std::string> likeliest;
  std::vector<int64_t> offsets;
  for (const Entry& entry : entries) {
    const TokenLogprob& token = entry.logprobs[0];
    tokens.push_back(TokenText(token.token));
    offsets.push_back(entry.offset);
    if (!entry.known) {
      logprobs.emplace_back("null");
      likeliest.emplace_back("null");
      continue;
    }
    logprobs.push_back(Number(token.logprob));
    // By text, the token itself last when it is not among the likeliest.
    std::vector<std::string> names;
    std::string list;
    for (size_t i = 1; i <= entry.logprobs.size(); ++i) {
      const TokenLogprob& one = entry.logprobs[i % entry.logprobs.size()];
      std::string name = TokenText(one.token);
      if (std::find(names.begin(), names.end(), name) != names.end()) continue;
      list += fmt::format("{}{}:{}", list.empty() ? "" : ",", name, Number(one.logprob));
      names.push_back(std::move(name));
    }
    likeliest.push_back("{" + list + "}");
  }
  return fmt::format(
      R"({{"tokens":[{}],"token_logprobs":[{}],"top_logprobs":[{}],"text_offset":[{}]}})",
      fmt::join(tokens, ","), fmt::join(logprobs, ","), fmt::join(likeliest, ","),
      fmt::join(offsets, ","));
}

std::string TokenLogprobs::ChatJson(const std::vector<Entry>& entries) const {
  const auto fields = [this](const TokenLogprob& one) {
    std::vector<unsigned> bytes;
    for (const char c : tokenizer_.TokenBytes(one.token)) {
      bytes.push_back(static_cast<unsigned char>(c));
    }
    return fmt::format(R"("token":{},"logprob":{},"bytes":[{}])", TokenText(one.token),
                       Number(one.logprob), fmt::join(bytes, ","));
  };
  std::vector<std::string> tokens;
  for (const Entry& entry : entries) {
    std::vector<std::string> likeliest;
    for (size_t i = 1; i < entry.logprobs.size(); ++i) {
      likeliest.push_back("{" + fields(entry.logprobs[i]) + "}");
    }
    tokens.push_back(fmt::format(R"({{{},"top_logprobs":[{}]}})", fields(entry.logprobs[0]),
                                 fmt::join(likeliest, ",")));
  }
  return fmt::format(R"({{"content":[{}],"refusal":null}})", fmt::join(tokens, ","));
}

}  // namespace expertflow

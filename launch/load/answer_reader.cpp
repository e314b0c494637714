#include "launch/load/answer_reader.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace expertflow {
namespace {

constexpr size_t kHeadBytesMax = 64 << 10;
constexpr int64_t kBodyBytesMax = int64_t{1} << 40;

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

// What stands behind `"name":`, or nothing.
std::string_view ValueOf(std::string_view json, std::string_view quoted_name) {
  const size_t at = json.find(quoted_name);
  if (at == std::string_view::npos) return {};
  std::string_view rest = json.substr(at + quoted_name.size());
  const size_t value = rest.find_first_not_of(" :");
  return value == std::string_view::npos ? std::string_view() : rest.substr(value);
}

bool HasText(std::string_view json) {
  for (const std::string_view name : {"\"text\"", "\"content\""}) {
    const std::string_view value = ValueOf(json, name);
    if (value.size() >= 2 && value[0] == '"' && value[1] != '"') return true;
  }
  return false;
}

}  // namespace

AnswerReader::Found AnswerReader::Push(std::string_view bytes) {
  Found found;
  in_ += bytes;
  if (!head_done_ && !ReadHead()) {
    found.broken = broken_;
    return found;
  }
  const bool complete = ReadBody();
  if (is_stream_) {
    ReadEvents(&found);
  } else if (complete) {
    ReadJson(body_, &found);
  }
  found.complete = complete && !broken_;
  found.broken = broken_;
  return found;
}

bool AnswerReader::ReadHead() {
  const size_t end = in_.find("\r\n\r\n");
  if (end == std::string::npos) {
    broken_ = in_.size() > kHeadBytesMax;
    return false;
  }
  const std::string head = Lower(std::string_view(in_).substr(0, end + 2));
  in_.erase(0, end + 4);
  broken_ = !head.starts_with("http/1.") || head.size() < 12;
  if (broken_) return false;
  status_ = std::atoi(head.c_str() + 9);
  if (status_ == 100) return ReadHead();
  const auto header = [&head](std::string_view name) -> std::string {
    const size_t at = head.find("\r\n" + std::string(name) + ":");
    if (at == std::string::npos) return "";
    const size_t begin = at + 3 + name.size();
    return head.substr(begin, head.find("\r\n", begin) - begin);
  };
  chunked_ = header("transfer-encoding").find("chunked") != std::string::npos;
  is_stream_ = header("content-type").find("event-stream") != std::string::npos;
  keep_alive_ = header("connection").find("close") == std::string::npos;
  const std::string length = header("content-length");
  until_close_ = !chunked_ && length.empty() && status_ != 204 && status_ != 304;
  if (!chunked_) {
    left_ = until_close_ ? kBodyBytesMax
                         : std::clamp<int64_t>(std::atoll(length.c_str()), 0, kBodyBytesMax);
  }
  head_done_ = true;
  return true;
}

bool AnswerReader::ReadBody() {
  for (;;) {
    const size_t take = std::min(in_.size(), static_cast<size_t>(left_));
    body_.append(in_, 0, take);
    in_.erase(0, take);
    left_ -= static_cast<int64_t>(take);
    if (left_ > 0) return false;
    if (!chunked_) return true;
    if (last_chunk_) return in_.starts_with("\r\n");  // no trailers
    // The line break behind a chunk, and the next one's size.
    const size_t begin = in_.starts_with("\r\n") ? 2 : 0;
    const size_t end = in_.find("\r\n", begin);
    if (end == std::string::npos || in_.size() < 3) return false;
    left_ = static_cast<int64_t>(std::strtoull(in_.c_str() + begin, nullptr, 16));
    broken_ = left_ < 0 || left_ > kBodyBytesMax;
    if (broken_) return true;
    last_chunk_ = left_ == 0;
    in_.erase(0, end + 2);
  }
}

void AnswerReader::ReadEvents(Found* found) {
  for (size_t end = body_.find('\n'); end != std::string::npos; end = body_.find('\n')) {
    const std::string_view line = std::string_view(body_).substr(0, end);
    if (line.starts_with("data: [DONE]")) {
      ended_ = true;
    } else if (line.starts_with("data: ")) {
      ReadJson(line.substr(6), found);
    }
    body_.erase(0, end + 1);
  }
}

void AnswerReader::ReadJson(std::string_view json, Found* found) {
  if (json_) json_(json);
  if (HasText(json)) ++found->pieces;
  if (json.starts_with("{\"error\"") || json.starts_with("{\"error\" ")) has_error_ = true;
  for (const auto& [name, value] : {std::pair("\"prompt_tokens\"", &prompt_tokens_),
                                    std::pair("\"completion_tokens\"", &completion_tokens_)}) {
    const std::string_view number = ValueOf(json, name);
    if (!number.empty() && number[0] >= '0' && number[0] <= '9') {
      *value = std::atoll(std::string(number.substr(0, 18)).c_str());
    }
  }
}

}  // namespace expertflow

// Bytes of a client: cut into requests, and their bodies read as each of the API's. The same
// requests come out however the bytes are cut.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "serving/completion_request.h"
#include "serving/http/http_connection.h"
#include "serving/tool_calls.h"

using namespace expertflow;  // NOLINT: a fuzz target is one function

namespace {

constexpr size_t kBodyBytesMax = 1 << 16;

std::string Requests(std::string_view input, size_t step, std::string* bodies) {
  HttpRequestReader reader(kBodyBytesMax);
  std::string seen;
  for (size_t at = 0; at < input.size(); at += step) {
    std::string_view piece = input.substr(at, step);
    for (;;) {
      const HttpRequestReader::Outcome outcome = reader.Push(piece);
      if (outcome.error != 0) return seen;
      if (!outcome.complete) break;
      const HttpRequest request = reader.TakeRequest();
      seen += request.method + " " + request.path + "\n" + request.body + "\n";
      if (bodies != nullptr) *bodies = request.body;
      reader.Next();
      piece = {};
    }
  }
  return seen;
}

void ReadAsAnything(std::string_view body) {
  CompletionRequest request;
  TokenizeRequest tokenize;
  DetokenizeRequest detokenize;
  ParseCompletionRequest(body, &request);
  ParseChatRequest(body, R"({"bos_token":"<s>"})", &request);
  ParseTokenizeRequest(body, "{}", &tokenize);
  ParseDetokenizeRequest(body, &detokenize);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  std::string body;
  const std::string whole = Requests(input, std::max<size_t>(size, 1), &body);
  // Where it fails may differ, as limits are checked on what has come; what was read may not.
  const std::string cut = Requests(input, 3, nullptr);
  const size_t common = std::min(whole.size(), cut.size());
  if (whole.substr(0, common) != cut.substr(0, common)) std::abort();
  ReadAsAnything(body);
  ReadAsAnything(input);
  ToolCallReader reader;
  size_t text = 0;
  for (size_t at = 0; at < size; at += 7) text += reader.Push(input.substr(at, 7)).text.size();
  text += reader.Flush().text.size();
  if (text > size) std::abort();
  return 0;
}

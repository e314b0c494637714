// One line of JSON for each request: who asked for what, what became of it, how long it took and
// how many tokens; never a prompt, a text or a key. Stands between the API and the server, where it
// sees every answer. One thread, that of the server.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "serving/http/http.h"

namespace expertflow {

class AccessLog final : public HttpReplies {
 public:
  // With its line break.
  using Write = std::function<void(std::string_view line)>;

  // REQUIRES: `next` outlives it
  AccessLog(HttpReplies& next, Write write) : next_(next), write_(std::move(write)) {}

  // `key`: the number of the caller's key in the key file, from 1; 0 without.
  void Begin(const HttpRequest& request, size_t key);
  void AddTokens(HttpConnectionId connection, uint64_t prompt, uint64_t completion);
  // The answer had begun and ends with an error.
  void Failed(HttpConnectionId connection, std::string_view code);
  // The client went away first.
  void Gone(HttpConnectionId connection);
  // The server itself refuses what is no request.
  void Refused(int status);

  void Respond(HttpConnectionId connection, const HttpResponse& response) override;
  void StartStream(HttpConnectionId connection, std::string_view content_type) override;
  void Send(HttpConnectionId connection, std::string_view bytes) override;
  void EndStream(HttpConnectionId connection) override;
  HttpServerStats stats() const override { return next_.stats(); }

 private:
  struct Entry {
    std::string method;
    std::string path;
    std::string request;
    std::string trace;
    size_t key = 0;
    int64_t began_ns = 0;
    int64_t first_ns = 0;  // of a stream
    int status = 0;
    std::string outcome = "done";
    uint64_t prompt_tokens = 0;
    uint64_t completion_tokens = 0;
    uint64_t bytes = 0;
  };

  void End(HttpConnectionId connection);

  HttpReplies& next_;
  const Write write_;
  std::map<HttpConnectionId, Entry> open_;
};

}  // namespace expertflow

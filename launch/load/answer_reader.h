// What a server answers to a request of the load client: the head, the body in chunks or not, and
// the events of a stream. Pure; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace expertflow {

class AnswerReader {
 public:
  // `json`: told of each event's data, and of the body of an answer that is no stream.
  explicit AnswerReader(std::function<void(std::string_view)> json = {}) : json_(std::move(json)) {}

  // What one call has found.
  struct Found {
    int32_t pieces = 0;     // events with some text
    bool complete = false;  // the answer; nothing more belongs to it
    bool broken = false;    // no HTTP
  };
  Found Push(std::string_view bytes);
  // The connection has closed: complete only if the answer has no other end.
  bool CompleteAtClose() const { return until_close_ && head_done_; }

  int status() const { return status_; }
  bool keep_alive() const { return keep_alive_; }
  // Of the last event, or body, that had them; 0: none had.
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t completion_tokens() const { return completion_tokens_; }
  bool has_error() const { return has_error_; }  // an event or body with an "error"
  bool ended() const { return ended_; }          // a stream's [DONE]
  bool is_stream() const { return is_stream_; }

 private:
  bool ReadHead();
  // Moves what is there of the body from `in_` to `body_`; true when it is complete.
  bool ReadBody();
  void ReadEvents(Found* found);
  void ReadJson(std::string_view json, Found* found);

  std::function<void(std::string_view)> json_;
  std::string in_;
  std::string body_;
  bool head_done_ = false;
  bool chunked_ = false;
  bool until_close_ = false;
  bool keep_alive_ = true;
  bool is_stream_ = false;
  bool ended_ = false;
  bool has_error_ = false;
  bool broken_ = false;
  bool last_chunk_ = false;
  int status_ = 0;
  int64_t left_ = 0;  // of the body, or of the chunk
  int64_t prompt_tokens_ = 0;
  int64_t completion_tokens_ = 0;
};

}  // namespace expertflow

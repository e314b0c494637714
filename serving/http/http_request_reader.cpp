#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <utility>

#include "serving/http/http_connection.h"

namespace expertflow {
namespace {

namespace http = boost::beast::http;

constexpr size_t kUnparsedBytesMax = size_t{256} << 10;

std::string Text(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

}  // namespace

struct HttpRequestReader::Parser {
  http::request_parser<http::string_body> parser;
};

HttpRequestReader::HttpRequestReader(size_t body_bytes_max) : body_bytes_max_(body_bytes_max) {}
HttpRequestReader::~HttpRequestReader() = default;

HttpRequestReader::Outcome HttpRequestReader::Push(std::string_view bytes) {
  waiting_ += bytes;
  Outcome outcome;
  if (parser_ == nullptr) {
    // A blank line between requests is allowed.
    waiting_.erase(0, waiting_.find_first_not_of("\r\n"));
    if (waiting_.empty()) return outcome;
    parser_ = std::make_unique<Parser>();
    parser_->parser.header_limit(kHeaderBytesMax);
    parser_->parser.body_limit(body_bytes_max_);
    parser_->parser.eager(true);
    started_ = true;
  }
  boost::system::error_code error;
  const size_t used =
      parser_->parser.put(boost::asio::buffer(waiting_.data(), waiting_.size()), error);
  waiting_.erase(0, used);
  if (error == http::error::need_more) error = {};
  if (error == http::error::body_limit) {
    outcome.error = 413;
    outcome.what = "the body is larger than the server takes (--request-size-max)";
  } else if (error == http::error::header_limit || waiting_.size() > kUnparsedBytesMax) {
    outcome.error = 431;
    outcome.what = "the headers are larger than 16 KiB";
  } else if (error) {
    outcome.error = 400;
    outcome.what = "malformed HTTP: " + error.message();
  } else {
    outcome.complete = parser_->parser.is_done();
    if (!outcome.complete && parser_->parser.is_header_done() && !continued_) {
      const auto expect = parser_->parser.get().find(http::field::expect);
      outcome.wants_continue = expect != parser_->parser.get().end() &&
                               boost::beast::iequals(expect->value(), "100-continue");
      continued_ = true;
    }
  }
  return outcome;
}

void HttpRequestReader::Next() {
  parser_.reset();
  started_ = false;
  continued_ = false;
}

HttpRequest HttpRequestReader::TakeRequest() {
  auto& message = parser_->parser.get();
  HttpRequest request;
  request.method = message.method() == http::verb::head ? "GET" : Text(message.method_string());
  request.path = Text(message.target());
  request.path = request.path.substr(0, request.path.find('?'));
  request.authorization = Text(message[http::field::authorization]);
  request.content_type = Text(message[http::field::content_type]);
  request.trace = ParseTraceparent(Text(message["traceparent"]));
  request.body = std::move(message.body());
  return request;
}

bool HttpRequestReader::keep_alive() const {
  return parser_->parser.get().keep_alive();
}
bool HttpRequestReader::is_http_1_1() const {
  return parser_->parser.get().version() >= 11;
}
bool HttpRequestReader::is_head() const {
  return parser_->parser.get().method() == http::verb::head;
}

}  // namespace expertflow

// An HTTP server on loopback that runs in the test's own thread, and clients of it.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/unique_fd.h"
#include "serving/http/http_server.h"

namespace expertflow {

// Answers with method, path and body; "/later" is not answered by itself.
class Echo final : public HttpHandler {
 public:
  void OnRequest(const HttpRequest& request) override {
    requests.push_back(request);
    if (request.path == "/later") return;
    server->Respond(request.connection,
                    {.content_type = "text/plain",
                     .body = request.method + " " + request.path + " " + request.body});
  }
  void OnGone(HttpConnectionId connection) override { gone.push_back(connection); }
  HttpResponse Refusal(int status, std::string_view what) const override {
    return {.status = status, .body = std::string(what)};
  }

  HttpServer* server = nullptr;
  std::vector<HttpRequest> requests;
  std::vector<HttpConnectionId> gone;
};

class HttpServerTest : public ::testing::Test {
 protected:
  void Start(HttpServerOptions options = {}) {
    options.address = "127.0.0.1:0";
    auto server = HttpServer::Listen(options, echo_);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(*server);
    echo_.server = server_.get();
  }
  UniqueFd Connect() {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const std::string address = server_->address();
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port =
        htons(static_cast<uint16_t>(std::atoi(address.substr(address.rfind(':') + 1).c_str())));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    return fd;
  }
  static void Write(const UniqueFd& fd, const std::string& text) {
    EXPECT_EQ(::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  // Lets the server work until `condition`.
  template <typename Condition>
  bool Until(const Condition& condition) {
    const Deadline deadline = Deadline::AfterMs(10'000);
    while (!condition()) {
      if (deadline.Passed()) return false;
      pollfd waiting{server_->fd(), POLLIN, 0};
      ::poll(&waiting, 1, 5);
      server_->HandleEvents();
    }
    return true;
  }
  // What arrives until it contains `end`, or until the server closes ("" as the end).
  std::string Read(const UniqueFd& fd, const std::string& end) {
    std::string text;
    bool closed = false;
    Until([&] {
      char buffer[4096];
      const ssize_t count = ::recv(fd.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
      if (count > 0) text.append(buffer, static_cast<size_t>(count));
      closed = count == 0;
      return closed || (!end.empty() && text.find(end) != std::string::npos);
    });
    return closed ? text + "<closed>" : text;
  }

  Echo echo_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace expertflow

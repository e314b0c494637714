// `expertflow serve` as a child of a test.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/process/http_client.h"
#include "tests/process/program.h"

namespace expertflow::testing {

// A server that takes requests.
class Server {
 public:
  explicit Server(const std::vector<std::string>& more = {}) : program_(Arguments(more)) {
    EXPECT_TRUE(Eventually([this] {
      return program_.out().find("ready\n") != std::string::npos || program_.Processes().empty();
    })) << program_.err();
    const std::string out = program_.out();
    const std::string address = "://127.0.0.1:";  // of http or https
    const size_t at = out.find(address);
    if (at != std::string::npos) port_ = std::atoi(out.c_str() + at + address.size());
    EXPECT_GT(port_, 0) << out << program_.err();
  }

  Program& program() { return program_; }
  int port() const { return port_; }
  std::string Post(const std::string& path, const std::string& body) const {
    HttpClient client(port_);
    client.Post(path, body);
    return client.ReadAll();
  }
  std::string Get(const std::string& path) const {
    HttpClient client(port_);
    client.Get(path);
    return client.ReadAll();
  }
  // "expertflow_requests_running 0"
  bool Shows(const std::string& metric) const {
    return Get("/metrics").find("\n" + metric + "\n") != std::string::npos;
  }
  // Of "expertflow_requests_running"; -1: it is not there.
  int64_t Figure(const std::string& metric) const {
    const std::string all = Get("/metrics");
    const size_t at = all.find("\n" + metric + " ");
    return at == std::string::npos ? -1 : std::atoll(all.c_str() + at + metric.size() + 2);
  }
  void ExpectEnds(int code = 0) {
    ::kill(program_.pid(), SIGTERM);
    EXPECT_EQ(program_.Wait(30'000), code) << program_.err();
    program_.ExpectNothingLeft();
  }

 private:
  static std::vector<std::string> Arguments(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"serve", "--listen", "127.0.0.1:0"};
    if (std::find(more.begin(), more.end(), "--model") == more.end()) {
      arguments.insert(arguments.end(), {"--model", kModel});
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  Program program_;
  int port_ = 0;
};

}  // namespace expertflow::testing

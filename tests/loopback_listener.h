// A TCP port of this machine that a test listens on, chosen by the kernel.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>

#include "common/unique_fd.h"

namespace expertflow {

class LoopbackListener {
 public:
  explicit LoopbackListener(int backlog) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&at), size), 0);
    EXPECT_EQ(::listen(fd_.get(), backlog), 0);
    EXPECT_EQ(::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&at), &size), 0);
    port_ = ntohs(at.sin_port);
  }
  int fd() const { return fd_.get(); }
  uint16_t port() const { return port_; }
  // The next client; not valid when the listener gives up waiting.
  UniqueFd Accept() const { return UniqueFd(::accept(fd_.get(), nullptr, nullptr)); }

 private:
  UniqueFd fd_;
  uint16_t port_ = 0;
};

}  // namespace expertflow

// Non-blocking TCP sockets for the rendezvous. Internal to transport/.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace expertflow {

// `address` is "host:port" or "[v6]:port"; errors name it.
Result<UniqueFd> ListenTcp(const std::string& address);
// kUnavailable when nobody listens there (yet). Resolving a name can take as long as the resolver
// takes; the connection itself keeps the deadline.
Result<UniqueFd> ConnectTcp(const std::string& address, Deadline deadline);
// "127.0.0.1:4711" of a socket's own end, or of the other end.
std::string LocalAddressOf(int fd);
std::string PeerAddressOf(int fd);

// Blocking writes and reads with a deadline, on a non-blocking socket. ReadSome() appends at least
// one byte; the end of the stream is kUnavailable.
Status WriteAll(int fd, std::span<const uint8_t> bytes, Deadline deadline);
Status ReadSome(int fd, std::vector<uint8_t>* bytes, Deadline deadline);

}  // namespace expertflow

#include "launch/load/server_url.h"

#include <fmt/format.h>
#include <netdb.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

namespace expertflow {

Result<ServerUrl> ServerUrl::Parse(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  const auto bad = [&url] {
    return InvalidArgument(
        fmt::format("{}: expected an address such as http://127.0.0.1:8000", url));
  };
  if (!url.starts_with(kScheme)) return bad();
  std::string rest = url.substr(kScheme.size());
  ServerUrl target;
  if (const size_t slash = rest.find('/'); slash != std::string::npos) {
    target.path = rest.substr(slash);
    rest.resize(slash);
    while (target.path.ends_with('/')) target.path.pop_back();
  }
  const size_t colon = rest.rfind(':');
  const bool has_port = colon != std::string::npos && rest.find(']', colon) == std::string::npos;
  target.host = rest.substr(0, has_port ? colon : rest.size());
  target.port = has_port ? rest.substr(colon + 1) : "80";
  if (target.host.starts_with('[') && target.host.ends_with(']')) {
    target.host = target.host.substr(1, target.host.size() - 2);
  }
  if (target.host.empty() || target.port.empty()) return bad();
  return target;
}

std::string ServerUrl::Head(const std::string& method, const std::string& path_below,
                            const std::string& key) const {
  return fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\n{}", method, path, path_below, host, port,
                     key.empty() ? "" : fmt::format("Authorization: Bearer {}\r\n", key));
}

Result<ServerAddress> ResolveServer(const ServerUrl& url) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &found);
  if (error != 0) {
    return InvalidArgument(fmt::format("{}:{}: {}", url.host, url.port, ::gai_strerror(error)));
  }
  ServerAddress address;
  address.size = found->ai_addrlen;
  address.family = found->ai_family;
  std::copy_n(reinterpret_cast<const char*>(found->ai_addr), found->ai_addrlen,
              reinterpret_cast<char*>(&address.storage));
  ::freeaddrinfo(found);
  return address;
}

Result<UniqueFd> ConnectServer(const ServerUrl& url, const ServerAddress& address) {
  UniqueFd fd(::socket(address.family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool connected =
      fd.valid() &&
      ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) == 0;
  if (!connected) {
    return Unavailable(
        fmt::format("{}:{}: {}; is the server running?", url.host, url.port, std::strerror(errno)));
  }
  return fd;
}

}  // namespace expertflow

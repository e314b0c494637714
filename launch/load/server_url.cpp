#include "launch/load/server_url.h"

#include <fmt/format.h>

#include <string_view>

namespace expertflow {

Result<ServerUrl> ServerUrl::Parse(const std::string& url) {
  constexpr std::string_view kHttp = "http://";
  constexpr std::string_view kHttps = "https://";
  const auto bad = [&url] {
    return InvalidArgument(fmt::format(
        "{}: expected an address such as http://127.0.0.1:8000 or https://host:8000", url));
  };
  ServerUrl target;
  target.secure = url.starts_with(kHttps);
  if (!target.secure && !url.starts_with(kHttp)) return bad();
  std::string rest = url.substr(target.secure ? kHttps.size() : kHttp.size());
  if (const size_t slash = rest.find('/'); slash != std::string::npos) {
    target.path = rest.substr(slash);
    rest.resize(slash);
    while (target.path.ends_with('/')) target.path.pop_back();
  }
  const size_t colon = rest.rfind(':');
  const bool has_port = colon != std::string::npos && rest.find(']', colon) == std::string::npos;
  target.host = rest.substr(0, has_port ? colon : rest.size());
  target.port = has_port ? rest.substr(colon + 1) : target.secure ? "443" : "80";
  if (target.host.starts_with('[') && target.host.ends_with(']')) {
    target.host = target.host.substr(1, target.host.size() - 2);
  }
  if (target.host.empty() || target.port.empty()) return bad();
  return target;
}

std::string ServerUrl::Authority() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

std::string ServerUrl::Text() const {
  return fmt::format("{}://{}{}", secure ? "https" : "http", Authority(), path);
}

std::string ServerUrl::Head(const std::string& method, const std::string& path_below,
                            const std::string& key) const {
  return fmt::format("{} {}{} HTTP/1.1\r\nHost: {}\r\n{}", method, path, path_below, Authority(),
                     key.empty() ? "" : fmt::format("Authorization: Bearer {}\r\n", key));
}

}  // namespace expertflow

#include "launch/load/server_options.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

namespace expertflow {
namespace {

// Null for http.
Result<std::shared_ptr<const TlsTrust>> TrustFrom(const Options& options, const ServerUrl& url) {
  const bool insecure = options.Flag("insecure");
  const std::string file = options.Text("ca-file");
  if (!url.secure) {
    // Who asks for this call to be checked must not be left unchecked. A setting for all calls may
    // stay.
    for (const std::string name : {"ca-file", "insecure"}) {
      if (options.Source(name) != OptionSource::kCommandLine) continue;
      return InvalidArgument(fmt::format(
          "--{}: is for https, and the URL is {}; correct one of them", name, url.Text()));
    }
    return std::shared_ptr<const TlsTrust>();
  }
  if (insecure && options.Source("ca-file") == OptionSource::kCommandLine) {
    return InvalidArgument("--insecure: verifies nobody, so leave out --ca-file, or --insecure");
  }
  Result<std::unique_ptr<TlsTrust>> trust =
      insecure ? TlsTrust::InAnybody() : TlsTrust::InAuthorities(file);
  if (!trust.ok()) {
    return file.empty() ? trust.status() : trust.status().WithContext(options.Origin("ca-file"));
  }
  if (insecure) {
    fmt::print(stderr, "expertflow {}: --insecure: nobody verifies that {} is who it says\n",
               InfoOf(options.command()).name, url.Text());
  }
  return std::shared_ptr<const TlsTrust>(std::move(*trust));
}

}  // namespace

Result<ServerTarget> ServerTargetFrom(const Options& options) {
  Result<ServerUrl> url = ServerUrl::Parse(options.Text("url"));
  if (!url.ok()) return url.status().WithContext("--url");
  ASSIGN_OR_RETURN(std::shared_ptr<const TlsTrust> trust, TrustFrom(options, *url));
  Result<ServerTarget> target = ServerTarget::Find(std::move(*url), std::move(trust));
  if (!target.ok()) return target.status().WithContext("--url");
  return target;
}

}  // namespace expertflow

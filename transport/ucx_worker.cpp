#include "transport/ucx_worker.h"

#include <fmt/format.h>
#include <ucs/config/global_opts.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

namespace expertflow {
namespace {

constexpr std::string_view kAddressMagic = "EFUCX1";

uint64_t Fnv1a(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

std::string PackUcxAddress(std::string_view address) {
  const uint64_t check = Fnv1a(address);
  std::string packed(kAddressMagic);
  packed.append(reinterpret_cast<const char*>(&check), sizeof(check));
  packed.append(address);
  return packed;
}

bool UserHasSet(const char* name) {
  return std::getenv(fmt::format("UCX_{}", name).c_str()) != nullptr;
}

Status Configure(ucp_config_t* config, const UcxOptions& options) {
  const std::pair<const char*, std::string> settings[] = {
      {"TLS", options.tls},
      {"NET_DEVICES", options.net_devices},
      {"TCP_TX_SEG_SIZE", "64k"},  // the default of 8k halves the rate of big messages
  };
  for (const auto& [name, value] : settings) {
    if (value.empty() || UserHasSet(name)) continue;
    const ucs_status_t status = ucp_config_modify(config, name, value.c_str());
    if (status != UCS_OK) return FromUcx(status, fmt::format("UCX refuses {}={}", name, value));
  }
  return OkStatus();
}

}  // namespace

Status FromUcx(ucs_status_t status, std::string_view what) {
  return Unavailable(fmt::format("{}: {}", what, ucs_status_string(status)));
}

Result<std::string> UnpackUcxAddress(std::string_view packed) {
  uint64_t check = 0;
  const size_t header = kAddressMagic.size() + sizeof(check);
  if (packed.size() <= header || !packed.starts_with(kAddressMagic)) {
    return InvalidArgument("not a UCX address of this program");
  }
  std::memcpy(&check, packed.data() + kAddressMagic.size(), sizeof(check));
  const std::string_view address = packed.substr(header);
  if (Fnv1a(address) != check) return InvalidArgument("damaged UCX address");
  return std::string(address);
}

Result<UcxWorker> UcxWorker::Create(const UcxOptions& options) {
  // UCX's hooks into malloc and mmap serve registration caches, which tcp does not use; they crash
  // under ThreadSanitizer.
  ::setenv("UCX_MEM_EVENTS", "n", 0);
  // UCX logs to stdout, which belongs to our caller. Errors reach us as statuses.
  if (!UserHasSet("LOG_LEVEL")) ucs_global_opts_set_value("LOG_LEVEL", "fatal");

  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return FromUcx(status, "cannot read the UCX configuration");
  const std::unique_ptr<ucp_config_t, decltype(&ucp_config_release)> config_owner(
      config, ucp_config_release);
  RETURN_IF_ERROR(Configure(config, options));

  UcxWorker worker;
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  status = ucp_init(&params, config, &worker.context_);
  const std::string devices =
      fmt::format("transports '{}', devices '{}'", options.tls,
                  options.net_devices.empty() ? "all" : options.net_devices);
  if (status != UCS_OK) return FromUcx(status, fmt::format("cannot start UCX ({})", devices));

  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  status = ucp_worker_create(worker.context_, &worker_params, &worker.worker_);
  if (status != UCS_OK) {
    return FromUcx(status, fmt::format("cannot create a UCX worker ({})", devices));
  }
  status = ucp_worker_get_efd(worker.worker_, &worker.event_fd_);
  if (status != UCS_OK) return FromUcx(status, "these UCX transports cannot wait for events");

  ucp_address_t* address = nullptr;
  size_t address_bytes = 0;
  status = ucp_worker_get_address(worker.worker_, &address, &address_bytes);
  if (status != UCS_OK) return FromUcx(status, "cannot get the UCX worker's address");
  worker.address_ = PackUcxAddress({reinterpret_cast<const char*>(address), address_bytes});
  ucp_worker_release_address(worker.worker_, address);
  return worker;
}

UcxWorker::UcxWorker(UcxWorker&& other) noexcept {
  *this = std::move(other);
}

UcxWorker& UcxWorker::operator=(UcxWorker&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(worker_, other.worker_);
  std::swap(event_fd_, other.event_fd_);
  std::swap(address_, other.address_);
  return *this;
}

UcxWorker::~UcxWorker() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

}  // namespace expertflow

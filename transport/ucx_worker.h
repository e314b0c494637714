// Ownership of a UCX context and worker, and our choice of UCX settings. Internal to transport_ucx.
#pragma once

#include <ucp/api/ucp.h>

#include <string>
#include <string_view>

#include "common/status.h"
#include "transport/ucx_transport.h"

namespace expertflow {

// `what` with UCX's name for the error; kUnavailable.
Status FromUcx(ucs_status_t status, std::string_view what);

class UcxWorker {
 public:
  static Result<UcxWorker> Create(const UcxOptions& options);
  UcxWorker(UcxWorker&& other) noexcept;
  UcxWorker& operator=(UcxWorker&& other) noexcept;
  // REQUIRES: requests of the worker are not used any more.
  ~UcxWorker();

  ucp_worker_h get() const { return worker_; }
  int event_fd() const { return event_fd_; }
  // Packed for other processes, with a check value: UCX itself trusts an address blindly.
  const std::string& address() const { return address_; }

 private:
  UcxWorker() = default;

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;  // owned by the worker
  std::string address_;
};

// The UCX address inside an address() of another process; kInvalidArgument when it is damaged.
Result<std::string> UnpackUcxAddress(std::string_view packed);

}  // namespace expertflow

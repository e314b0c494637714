// Transport over UCX active messages: how the processes of a job talk after wire-up.
//
// The default is tcp even inside a host: UCX's shared-memory transports cannot report a peer's
// death and leave files in /dev/shm when killed. A peer that dies shows as kPeerDown at once; a cut
// network link does not (the job's heartbeats find it).
//
// UCX_* variables of the user's environment win over our settings.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/status.h"
#include "transport/transport.h"

namespace expertflow {

struct UcxOptions {
  ProcessId self;  // invalid: SetSelf() follows
  // As UCX_NET_DEVICES: "lo" keeps a one-host job off the network; empty: every device.
  std::string net_devices;
  // As UCX_TLS. Only transports with peer-failure handling can connect.
  std::string tls = "tcp,self";
  // Until UCX has started, the wait for other processes of the host that start it included.
  int64_t start_ns = 30'000'000'000;
};

// kDeadlineExceeded when UCX does not start in time: the process must then end with _exit(). The
// transport may be handed to another thread, but two threads must not use it at a time.
Result<std::unique_ptr<Transport>> CreateUcxTransport(const UcxOptions& options);

}  // namespace expertflow

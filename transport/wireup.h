// Wire-up: how a process learns its id and the other processes of the job. Two implementations: MPI
// (mpi_wireup.h) for the processes that mpirun starts, and the rendezvous (rendezvous.h) for those
// that join later or from elsewhere. After wire-up neither is used any more.
#pragma once

#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "transport/messages.h"
#include "transport/transport.h"

namespace expertflow {

struct Member {
  ProcessId id;
  ProcessInfo info;
};

// Processes of one host share its memory and see each other's pids.
bool SameHost(const ProcessInfo& a, const ProcessInfo& b);
bool IsOnThisHost(const ProcessInfo& info);

class WireUp {
 public:
  virtual ~WireUp() = default;

  // Tells the others about this process and learns about them: every member of the job that is
  // known now, this one included, in order of id. Once per object.
  virtual Result<std::vector<Member>> Exchange(const ProcessInfo& self, Deadline deadline) = 0;
  // Valid after Exchange(); MPI knows it from the start.
  virtual ProcessId self() const = 0;
};

}  // namespace expertflow

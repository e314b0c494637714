// Wire-up of the processes that one mpirun (or srun) started. The id is the MPI rank.
//
// MPI is a launcher to us, not the membership layer: it is initialised, used for one exchange of
// addresses, and finalised inside Exchange(), so that no later failure can reach a process through
// it. Under `mpirun --enable-recovery` (Open MPI 4.1) a rank that is killed after that leaves all
// others running, and mpirun ends with the last of them; without the option mpirun ends the job.
//
// MPI itself can block for ever when a rank dies at the wrong moment (in MPI_Init, in
// MPI_Finalize). All MPI calls are therefore made by a thread of their own, which is left behind
// when a deadline passes. After an error from this class the process must end with _exit(): exit
// handlers of MPI could wait for that thread.
#pragma once

#include <memory>

#include "transport/wireup.h"

namespace expertflow {

class MpiWireUp final : public WireUp {
 public:
  // Initialises MPI. At most one per process, ever.
  static Result<std::unique_ptr<MpiWireUp>> Create(Deadline deadline);
  ~MpiWireUp() override;

  // Returns once all ranks have exchanged. kDeadlineExceeded when one of them is missing.
  Result<std::vector<Member>> Exchange(const ProcessInfo& self, Deadline deadline) override;
  ProcessId self() const override;
  int size() const;

 private:
  struct Shared;  // with the MPI thread, which may outlive this object
  explicit MpiWireUp(std::shared_ptr<Shared> shared);

  std::shared_ptr<Shared> shared_;
};

}  // namespace expertflow

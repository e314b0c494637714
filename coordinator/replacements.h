// Replacements of dead workers and stores: how many, when, and which are on their way. Each role
// has a few in any span of some seconds, the second and third later than the one before, so that a
// process that cannot live does not keep the host busy, and a job of any length gets over any
// number of deaths.
//
// A replacement is known by the process id of the child until it joins. No I/O, no clock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "transport/messages.h"

namespace expertflow {

class Replacements {
 public:
  static constexpr int32_t kPerRoleMax = 3;
  static constexpr int64_t kSpanNs = 40'000'000'000;
  // Before the first, second and third.
  static constexpr int64_t kBackOffNs[kPerRoleMax] = {0, 1'000'000'000, 4'000'000'000};

  // Plans one; false when the role has used up its own for now.
  bool Plan(ProcessRole role, int64_t now_ns);
  // Roles whose replacement is due; the caller starts each, and says Started() or plans another.
  std::vector<ProcessRole> TakeDue(int64_t now_ns);
  void Started(ProcessRole role, int64_t pid, int64_t now_ns);
  // A process of this host with this pid joined; false when it is none of ours.
  bool Joined(int64_t pid) { return started_.erase(pid) != 0; }
  // The role of a child that ended before it joined; nothing for any other.
  std::optional<ProcessRole> Ended(int64_t pid);
  // Pids of those that have not joined in time.
  std::vector<int64_t> Overdue(int64_t now_ns, int64_t timeout_ns) const;

  // One is planned or started.
  bool Expects(ProcessRole role) const;
  // That were planned in the last span.
  int32_t Count(ProcessRole role) const {
    return static_cast<int32_t>(recent_[static_cast<size_t>(role)].size());
  }

 private:
  struct Planned {
    ProcessRole role;
    int64_t due_ns;
  };
  struct Child {
    ProcessRole role;
    int64_t started_ns;
  };

  std::vector<Planned> planned_;
  std::map<int64_t, Child> started_;  // by pid; not joined yet
  std::vector<int64_t> recent_[3];    // by role: when those of the last span were planned
};

}  // namespace expertflow

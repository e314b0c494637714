#include "transport/wireup.h"

#include "common/process.h"

namespace expertflow {

bool SameHost(const ProcessInfo& a, const ProcessInfo& b) {
  return a.host == b.host && a.boot_id == b.boot_id;
}

bool IsOnThisHost(const ProcessInfo& info) {
  return info.host == HostName() && info.boot_id == ReadBootId();
}

}  // namespace expertflow

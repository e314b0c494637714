#include "coordinator/replacements.h"

#include <algorithm>

namespace expertflow {

bool Replacements::Plan(ProcessRole role, int64_t now_ns) {
  std::vector<int64_t>& recent = recent_[static_cast<size_t>(role)];
  std::erase_if(recent, [now_ns](int64_t planned_ns) { return now_ns - planned_ns >= kSpanNs; });
  if (recent.size() == kPerRoleMax) return false;
  planned_.push_back({role, now_ns + kBackOffNs[recent.size()]});
  recent.push_back(now_ns);
  return true;
}

std::vector<ProcessRole> Replacements::TakeDue(int64_t now_ns) {
  std::vector<ProcessRole> due;
  std::erase_if(planned_, [&](const Planned& planned) {
    if (planned.due_ns > now_ns) return false;
    due.push_back(planned.role);
    return true;
  });
  return due;
}

void Replacements::Started(ProcessRole role, int64_t pid, int64_t now_ns) {
  started_.insert_or_assign(pid, Child{role, now_ns});
}

std::optional<ProcessRole> Replacements::Ended(int64_t pid) {
  const auto child = started_.extract(pid);
  if (!child) return std::nullopt;
  return child.mapped().role;
}

std::vector<int64_t> Replacements::Overdue(int64_t now_ns, int64_t timeout_ns) const {
  std::vector<int64_t> overdue;
  for (const auto& [pid, child] : started_) {
    if (now_ns - child.started_ns > timeout_ns) overdue.push_back(pid);
  }
  return overdue;
}

bool Replacements::Expects(ProcessRole role) const {
  const auto is_role = [role](const auto& entry) { return entry.role == role; };
  return std::any_of(planned_.begin(), planned_.end(), is_role) ||
         std::any_of(started_.begin(), started_.end(),
                     [&](const auto& entry) { return is_role(entry.second); });
}

}  // namespace expertflow

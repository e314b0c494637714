#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/units.h"
#include "expert_store/segment.h"
#include "launch/commands.h"
#include "launch/job_folder.h"

namespace expertflow {
namespace {

std::vector<SegmentInfo> StaleSegments(bool dry_run) {
  if (!dry_run) return SweepStale();
  std::vector<SegmentInfo> stale;
  for (SegmentInfo& segment : ListSegments()) {
    if (!segment.stale_reason.empty()) stale.push_back(std::move(segment));
  }
  return stale;
}

}  // namespace

int CleanCommand(const Options& options) {
  const bool dry_run = options.Flag("dry-run");
  const char* verb = dry_run ? "would remove" : "removed";
  const bool print = options.Text("json") != "-";
  nlohmann::json segments = nlohmann::json::array();
  for (const SegmentInfo& segment : StaleSegments(dry_run)) {
    segments.push_back(
        {{"name", segment.name}, {"bytes", segment.bytes}, {"reason", segment.stale_reason}});
    if (!print) continue;
    fmt::print("{} segment {} ({}): {}\n", verb, segment.name, FormatBytes(segment.bytes),
               segment.stale_reason);
  }
  nlohmann::json folders = nlohmann::json::array();
  for (const JobFolder& folder : SweepJobFolders(dry_run)) {
    folders.push_back({{"job", folder.job}, {"path", folder.path}});
    if (print) fmt::print("{} job folder {}: its owner is dead\n", verb, folder.path);
  }
  if (print && segments.empty() && folders.empty()) fmt::print("nothing to remove\n");
  const nlohmann::json json = {{"format", "expertflow-clean"},
                               {"version", 1},
                               {"dry_run", dry_run},
                               {"segments", segments},
                               {"folders", folders}};
  if (const Status status = WriteJsonOption(options, json.dump(2)); !status.ok()) {
    return Fail(options, status, kExitFailure);
  }
  return kExitOk;
}

}  // namespace expertflow

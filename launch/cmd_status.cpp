#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "common/units.h"
#include "launch/commands.h"
#include "launch/job_client.h"
#include "launch/job_folder.h"
#include "launch/status_text.h"

namespace expertflow {
namespace {

constexpr int64_t kAnswerMs = 5000;

Result<JobClient> ConnectToJob(const Options& options) {
  const Deadline deadline = Deadline::AfterMs(kAnswerMs);
  if (const std::string folder = options.Text("job-dir"); !folder.empty()) {
    return JobClient::Connect(ControlSocketPath(folder), deadline);
  }
  const std::string job = options.Text("job");
  for (const JobFolder& folder : ListJobFolders()) {
    if (!job.empty() && folder.job != job) continue;
    Result<JobClient> client = JobClient::Connect(ControlSocketPath(folder.path), deadline);
    if (client.ok() || !job.empty()) return client;
  }
  if (job.empty()) return NotFound("no job of this user is running");
  return NotFound(fmt::format("no job named {} is running (--job-dir for one elsewhere)", job));
}

}  // namespace

int StatusCommand(const Options& options) {
  Result<JobClient> client = ConnectToJob(options);
  if (!client.ok()) return Fail(options, client.status(), kExitFailure);
  const Deadline deadline = Deadline::AfterMs(kAnswerMs);
  if (options.Flag("metrics")) {
    const Result<std::string> metrics = client->QueryMetrics(deadline);
    if (!metrics.ok()) return Fail(options, metrics.status(), kExitFailure);
    fmt::print("{}", *metrics);
    return kExitOk;
  }
  const Result<std::string> status = client->QueryStatus(deadline);
  if (!status.ok()) return Fail(options, status.status(), kExitFailure);
  if (options.Text("json") != "-") fmt::print("{}", DescribeStatus(*status));
  nlohmann::json json = {{"format", "expertflow-status"}, {"version", 1}};
  json["job"] = nlohmann::json::parse(*status, nullptr, false);
  if (json["job"].is_discarded()) json["job"] = nullptr;
  if (const Status written = WriteJsonOption(options, json.dump(2)); !written.ok()) {
    return Fail(options, written, kExitFailure);
  }
  return kExitOk;
}

}  // namespace expertflow

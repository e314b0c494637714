#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "launch/commands.h"
#include "launch/job_client.h"
#include "launch/status_text.h"

namespace expertflow {
namespace {

constexpr int64_t kAnswerMs = 5000;

}  // namespace

int StatusCommand(const Options& options) {
  const Deadline deadline = Deadline::AfterMs(kAnswerMs);
  Result<JobClient> client =
      JobClient::Find(options.Text("job"), options.Text("job-dir"), deadline);
  if (!client.ok()) return Fail(options, client.status(), kExitFailure);
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

#include "launch/job_client.h"

#include <fmt/format.h>
#include <poll.h>

#include <cstddef>
#include <variant>
#include <vector>

#include "launch/job_folder.h"

namespace expertflow {
namespace {

constexpr int kClientPollMs = 1000;

}  // namespace

Result<JobClient> JobClient::Connect(const std::string& socket_path, Deadline deadline) {
  ASSIGN_OR_RETURN(LocalConnection connection, LocalConnection::Connect(socket_path, deadline));
  return JobClient(std::move(connection));
}

Result<JobClient> JobClient::Find(const std::string& job, const std::string& folder,
                                  Deadline deadline) {
  std::vector<std::string> folders;
  if (!folder.empty()) {
    folders.push_back(folder);
  } else {
    for (const JobFolder& found : ListJobFolders()) {
      if (job.empty() || found.job == job) folders.push_back(found.path);
    }
    if (!job.empty()) folders.push_back("/tmp/" + job);  // where a role puts it by default
  }
  for (const std::string& path : folders) {
    Result<JobClient> client = Connect(ControlSocketPath(path), deadline);
    if (client.ok()) return client;
  }
  if (!folder.empty()) return NotFound(fmt::format("no job is running in {}", folder));
  if (job.empty()) return NotFound("no job of this user is running");
  return NotFound(fmt::format("no job named {} is running (--job-dir for one elsewhere)", job));
}

Status JobClient::Send(const Message& message, Deadline deadline) {
  RETURN_IF_ERROR(connection_.Send(message));
  return connection_.FlushAll(deadline);
}

Status JobClient::Submit(const SubmitRequest& request, Deadline deadline) {
  return Send(request, deadline);
}

Status JobClient::Cancel(uint64_t request, Deadline deadline) {
  return Send(CancelRequest{.request = request}, deadline);
}

Status JobClient::RequestShutdown(Deadline deadline) {
  return Send(ShutdownRequest{}, deadline);
}

template <typename T>
Result<T> JobClient::Await(Deadline deadline) {
  size_t seen = received_.size();  // these came before the question
  while (true) {
    RETURN_IF_ERROR(Receive());
    for (; seen < received_.size(); ++seen) {
      if (T* wanted = std::get_if<T>(&received_[seen])) {
        T answer = std::move(*wanted);
        received_.erase(received_.begin() + static_cast<std::ptrdiff_t>(seen));
        return answer;
      }
    }
    if (closed()) return Unavailable("the coordinator has closed the connection");
    if (deadline.Passed()) return DeadlineExceeded("no answer from the coordinator in time");
    pollfd waiting{fd(), POLLIN, 0};
    ::poll(&waiting, 1, deadline.RemainingMs(kClientPollMs));
  }
}

Result<std::string> JobClient::QueryStatus(Deadline deadline) {
  RETURN_IF_ERROR(Send(StatusRequest{}, deadline));
  ASSIGN_OR_RETURN(StatusReply reply, Await<StatusReply>(deadline));
  return std::move(reply.json);
}

Result<std::string> JobClient::QueryMetrics(Deadline deadline) {
  RETURN_IF_ERROR(Send(MetricsRequest{}, deadline));
  ASSIGN_OR_RETURN(MetricsReply reply, Await<MetricsReply>(deadline));
  return std::move(reply.text);
}

Status JobClient::Receive() {
  std::vector<Message> messages;
  const Status status = connection_.Receive(&messages);
  for (Message& message : messages) received_.push_back(std::move(message));
  return status;
}

std::optional<Message> JobClient::Take() {
  if (received_.empty()) return std::nullopt;
  Message message = std::move(received_.front());
  received_.pop_front();
  return message;
}

}  // namespace expertflow

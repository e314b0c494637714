#include "transport/coordinator_link.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "common/units.h"
#include "transport/wire.h"

namespace expertflow {
namespace {

constexpr int64_t kFlushNs = 1'000'000'000;

}  // namespace

Result<CoordinatorLink> CoordinatorLink::Connect(Transport& transport, SignalWatcher& signals,
                                                 const std::vector<Member>& members,
                                                 int64_t silence_ns_max) {
  const auto found = std::find_if(members.begin(), members.end(), [](const Member& member) {
    return member.info.role == ProcessRole::kCoordinator;
  });
  if (found == members.end()) return FailedPrecondition("the job has no coordinator");
  CoordinatorLink link(transport, signals);
  link.coordinator_ = found->id;
  RETURN_IF_ERROR(transport.Connect(found->id, found->info.address));
  if (IsOnThisHost(found->info)) {
    auto death = OpenPidFd(static_cast<pid_t>(found->info.pid), found->info.pid_start_ticks);
    if (!death.ok()) return Unavailable("the coordinator is gone");
    link.death_ = std::move(death).value();
  } else {
    link.silence_ns_max_ = silence_ns_max;
    link.last_heard_ns_ = link.last_asked_ns_ = NowNs();
  }
  return link;
}

Status CoordinatorLink::Send(const Message& message) {
  Status status = transport_->Send(coordinator_, EncodeMessage(message));
  if (status.ok() || status.code() == StatusCode::kResourceExhausted) return status;
  LogDebug("{}", status.ToString());
  return OkStatus();
}

void CoordinatorLink::Take(const std::vector<TransportEvent>& events,
                           std::vector<Message>* messages) {
  for (const TransportEvent& event : events) {
    if (event.kind == TransportEvent::Kind::kPeerDown) {
      end_ = Unavailable("the coordinator is gone: " + event.reason.message());
      return;
    }
    auto message = DecodeMessage(event.message);
    if (!message.ok()) {
      end_ = message.status();
      return;
    }
    if (std::holds_alternative<Heartbeat>(*message)) continue;
    if (const auto* refusal = std::get_if<FatalError>(&*message)) {
      end_ = Status(ErrorCodeFrom(refusal->code), refusal->message);
      return;
    }
    messages->push_back(std::move(message).value());
  }
}

void CoordinatorLink::ExcuseOwnPause() {
  const int64_t now_ns = NowNs();
  const int64_t pause_ns = now_ns - std::exchange(last_asked_ns_, now_ns);
  if (pause_ns > silence_ns_max_ / 2) last_heard_ns_ += pause_ns;
}

Status CoordinatorLink::Receive(Deadline deadline, std::vector<Message>* messages) {
  messages->clear();
  RETURN_IF_ERROR(end_);
  pollfd others[] = {{signals_->fd(), POLLIN, 0}, {death_.get(), POLLIN, 0}};
  std::vector<TransportEvent> events;
  if (silence_ns_max_ > 0) {
    ExcuseOwnPause();
    deadline = Deadline::AtNs(std::min(deadline.at_ns(), last_heard_ns_ + silence_ns_max_));
  }
  RETURN_IF_ERROR(transport_->Poll(deadline, others, &events));
  if (silence_ns_max_ > 0) {
    last_asked_ns_ = NowNs();
    if (!events.empty()) last_heard_ns_ = last_asked_ns_;
    if (last_asked_ns_ - last_heard_ns_ >= silence_ns_max_) {
      end_ =
          Unavailable(fmt::format("no sign of life of the coordinator for {} (--heartbeat-timeout)",
                                  FormatDurationNs(silence_ns_max_)));
    }
  }
  Take(events, messages);
  if (end_.ok() && others[0].revents != 0 && signals_->Take()) {
    end_ = Cancelled("ended by a signal");
  }
  if (end_.ok() && others[1].revents != 0) end_ = Unavailable("the coordinator has died");
  return messages->empty() ? end_ : OkStatus();
}

void CoordinatorLink::Flush() {
  const Deadline deadline = Deadline::AfterNs(kFlushNs);
  std::vector<TransportEvent> events;
  while (!transport_->Flushed() && !deadline.Passed()) {
    if (!transport_->Poll(Deadline::AfterMs(10), {}, &events).ok()) return;
  }
}

}  // namespace expertflow

// Coordinator: clients and their requests.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "common/token_blocks.h"
#include "coordinator/coordinator.h"
#include "transport/wire.h"

namespace expertflow {

void Coordinator::OnClient(ClientId client) {
  clients_.push_back(client);
  ToClient(client, State());
}

void Coordinator::OnClientMessage(ClientId client, const Message& message, int64_t now_ns) {
  if (const auto* submit = std::get_if<SubmitRequest>(&message)) {
    Submit(client, *submit, now_ns);
  } else if (const auto* cancel = std::get_if<CancelRequest>(&message)) {
    CancelRequestOf(client, cancel->request, now_ns);
  } else if (std::holds_alternative<StatusRequest>(message)) {
    JobSnapshot snapshot = Snapshot(now_ns);
    snapshot.events = KeptLog();
    ToClient(client, StatusReply{StatusJson(snapshot)});
  } else if (std::holds_alternative<MetricsRequest>(message)) {
    ToClient(client, MetricsReply{MetricsText(Snapshot(now_ns))});
  } else if (std::holds_alternative<ExpertsRequest>(message)) {
    ToClient(client, ExpertsReply{ReportExperts()});
  } else if (std::holds_alternative<ShutdownRequest>(message)) {
    Stop("a client asked for it", now_ns);
  } else {
    LogWarning("client {} sent a message that is not a client's; it is ignored", client.value);
  }
}

void Coordinator::OnClientGone(ClientId client) {
  std::erase(clients_, client);
  std::vector<SequenceId> orphans;
  for (const auto& [sequence, request] : requests_) {
    if (request.client == client) orphans.push_back(sequence);
  }
  for (const SequenceId sequence : orphans) {
    CancelOnWorker(sequence);
    requests_.erase(sequence);
    placement_.Remove(sequence);
    ++counters_.requests_cancelled;
  }
  if (!orphans.empty()) Assign();
}

std::string Coordinator::ReportExperts() const {
  std::vector<WorkerExperts> workers;
  for (const auto& [id, process] : processes_) {
    if (process.member.info.role == ProcessRole::kWorker) workers.push_back({id, process.experts});
  }
  return ExpertsJson(workers);
}

void Coordinator::ToClient(ClientId client, const Message& message) {
  if (std::find(clients_.begin(), clients_.end(), client) == clients_.end()) return;
  // OnClientGone() will end its requests; nothing more goes to it.
  if (!port_.SendToClient(client, message)) std::erase(clients_, client);
}

// --- from submission to a worker ---------------------------------------------------------------

void Coordinator::Submit(ClientId client, const SubmitRequest& submit, int64_t now_ns) {
  if (result_) {
    Refuse(client, submit.request, failure_.ok() ? Unavailable("the job ends") : failure_);
    return;
  }
  const bool known = std::any_of(requests_.begin(), requests_.end(), [&](const auto& entry) {
    return entry.second.client == client && entry.second.session.request() == submit.request;
  });
  if (known) {
    Refuse(client, submit.request,
           InvalidArgument(fmt::format("request {} is in use already", submit.request)));
    return;
  }
  const SequenceId sequence{++last_sequence_};
  auto session = Session::Create(sequence, submit, *model_.tokenizer, model_.vocab, model_.context,
                                 model_.eos, now_ns);
  if (!session.ok()) {
    Refuse(client, submit.request, session.status());
    return;
  }
  if (!placement_.Add(sequence, session->rank(), BlockHashes(session->tokens()))) {
    Refuse(client, submit.request,
           ResourceExhausted(fmt::format("{} requests are waiting already; try again later",
                                         placement_.queued())));
    return;
  }
  requests_.emplace(sequence, Request{client, std::move(session).value()});
  Assign();
}

void Coordinator::Refuse(ClientId client, uint64_t request, const Status& status) {
  ++counters_.requests_refused;
  RequestDone done;
  done.request = request;
  done.finish = FinishReason::kError;
  done.code = static_cast<uint8_t>(status.code());
  done.message = status.message();
  ToClient(client, done);
}

void Coordinator::Assign() {
  if (phase_ != JobPhase::kReady) return;
  for (const Assignment& assignment : placement_.Assign()) {
    const ProcessId worker(assignment.worker.value);
    const StartSequence start = requests_.at(assignment.sequence).session.Start();
    Process& process = processes_.at(worker);
    if (!start.grammar.empty() && !std::exchange(process.has_tokens, true)) {
      port_.Send(worker, BytesOfTokens());
    }
    port_.Send(worker, start);
  }
}

TokenBytes Coordinator::BytesOfTokens() const {
  TokenBytes tokens;
  for (int32_t id = 0; id < static_cast<int32_t>(model_.vocab); ++id) {
    const bool text = id < model_.tokenizer->vocab_size() && !model_.tokenizer->IsSpecial(id);
    const std::string_view bytes = text ? model_.tokenizer->TokenBytes(id) : std::string_view();
    tokens.bytes += bytes;
    tokens.sizes.push_back(static_cast<uint32_t>(bytes.size()));
  }
  return tokens;
}

// --- what workers report -----------------------------------------------------------------------

Coordinator::Request* Coordinator::RequestOn(const Process& process, SequenceId sequence) {
  const auto found = requests_.find(sequence);
  if (found == requests_.end()) return nullptr;
  if (placement_.WorkerOf(sequence) != WorkerId(process.member.id.value)) return nullptr;
  return &found->second;
}

void Coordinator::OnStepReport(Process* process, const StepReport& report, int64_t now_ns) {
  for (const PromptDone& prompt : report.prompts) {
    if (Request* request = RequestOn(*process, prompt.sequence)) {
      request->session.OnPromptDone(prompt);
    }
  }
  for (const TokenEvent& event : report.tokens) OnToken(process, event, now_ns);
}

void Coordinator::OnToken(Process* process, const TokenEvent& event, int64_t now_ns) {
  Request* request = RequestOn(*process, event.sequence);
  if (request == nullptr) return;
  const bool first = request->session.generated() == 0;
  auto progress = request->session.OnToken(event, now_ns);
  if (!progress.ok()) {
    const Status status = progress.status().WithContext(NameOf(*process));
    LogError("{}", status.message());
    CancelOnWorker(event.sequence);
    Finish(event.sequence, FinishReason::kError, status, now_ns);
    return;
  }
  if (first && request->session.generated() > 0) {
    counters_.ttft.Add(now_ns - request->session.submitted_ns());
  }
  if (!progress->delta.tokens.empty()) ToClient(request->client, progress->delta);
  if (progress->finish == FinishReason::kNone) return;
  if (event.finish == FinishReason::kNone) CancelOnWorker(event.sequence);  // a stop string
  Finish(event.sequence, progress->finish, OkStatus(), now_ns);
}

void Coordinator::OnCaptured(Process* process, const CapturedPosition& captured, int64_t now_ns) {
  Request* request = RequestOn(*process, captured.sequence);
  if (request == nullptr) return;
  const auto is_new = request->session.OnCaptured(captured.position);
  if (!is_new.ok()) {
    const Status status = is_new.status().WithContext(NameOf(*process));
    LogError("{}", status.message());
    CancelOnWorker(captured.sequence);
    Finish(captured.sequence, FinishReason::kError, status, now_ns);
    return;
  }
  if (*is_new) ToClient(request->client, RequestCapture{request->session.request(), captured});
}

void Coordinator::OnSequenceFailed(Process* process, const SequenceFailed& failed, int64_t now_ns) {
  if (RequestOn(*process, failed.sequence) == nullptr) return;
  Finish(failed.sequence, FinishReason::kError, Status(ErrorCodeFrom(failed.code), failed.message),
         now_ns);
}

// --- the end of a request ----------------------------------------------------------------------

void Coordinator::Finish(SequenceId sequence, FinishReason finish, const Status& status,
                         int64_t now_ns) {
  auto found = requests_.extract(sequence);
  if (!found) return;
  Request& request = found.mapped();
  placement_.Computed(sequence, BlockHashes(request.session.tokens()));
  placement_.Remove(sequence);
  TextDelta rest{request.session.request(), request.session.TakeRest(), {}};
  if (!rest.text.empty()) ToClient(request.client, rest);
  const RequestDone done = request.session.Done(finish, status, now_ns);
  if (finish == FinishReason::kError) {
    ++counters_.requests_failed;
  } else if (finish == FinishReason::kCancelled) {
    ++counters_.requests_cancelled;
  } else {
    ++counters_.requests_done;
  }
  counters_.prompt_tokens += done.prompt_tokens;
  counters_.cached_tokens += done.cached_tokens;
  counters_.generated_tokens += done.generated_tokens;
  if (done.generated_tokens > 1) {
    counters_.tpot.Add((done.total_ns - done.ttft_ns) / (done.generated_tokens - 1));
  }
  ToClient(request.client, done);
  Assign();
}

void Coordinator::CancelOnWorker(SequenceId sequence) {
  if (const auto worker = placement_.WorkerOf(sequence)) {
    port_.Send(ProcessId(worker->value), CancelSequence{sequence});
  }
}

void Coordinator::CancelRequestOf(ClientId client, uint64_t request, int64_t now_ns) {
  const auto found = std::find_if(requests_.begin(), requests_.end(), [&](const auto& entry) {
    return entry.second.client == client && entry.second.session.request() == request;
  });
  if (found == requests_.end()) return;  // it has ended meanwhile
  const SequenceId sequence = found->first;
  CancelOnWorker(sequence);
  Finish(sequence, FinishReason::kCancelled, OkStatus(), now_ns);
}

}  // namespace expertflow

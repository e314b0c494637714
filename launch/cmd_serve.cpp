#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/log.h"
#include "common/mapped_file.h"
#include "common/process.h"
#include "common/unique_fd.h"
#include "launch/commands.h"
#include "launch/descriptors.h"
#include "launch/job.h"
#include "launch/job_setup.h"
#include "launch/model_source.h"
#include "launch/policy_tables.h"
#include "launch/trace/recording.h"
#include "launch/worker_setup.h"
#include "serving/api.h"
#include "serving/http/http_server.h"
#include "serving/model_template.h"

namespace expertflow {
namespace {

constexpr int64_t kTickNs = 200'000'000;
constexpr int64_t kFlushMs = 1000;
constexpr size_t kKeysBytesMax = size_t{1} << 20;
constexpr size_t kKeyBytesMin = 8;
constexpr uint64_t kServeDescriptors = 128;

// Everything that is known before the job starts.
struct ServePlan {
  ModelSource model;
  MemoryPlan memory;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<TlsIdentity> tls;  // null: plain HTTP
  ApiOptions api;
};

Result<std::vector<std::string>> ReadKeys(const std::string& file) {
  std::vector<std::string> keys;
  if (file.empty()) return keys;
  ASSIGN_OR_RETURN(const std::string text, ReadFileToString(file, kKeysBytesMax));
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    line.erase(line.find_last_not_of(" \t\r") + 1);
    if (line.empty() || line.front() == '#') continue;
    if (line.size() < kKeyBytesMin) {
      return InvalidArgument(fmt::format("{}:{}: expected a key of at least {} characters", file,
                                         number, kKeyBytesMin));
    }
    keys.push_back(line);
  }
  if (keys.empty()) return InvalidArgument(file + ": expected a key per line, found none");
  return keys;
}

Result<ApiKeys> ReadAllKeys(const std::string& keys, const std::string& admin) {
  ApiKeys all;
  ASSIGN_OR_RETURN(all.keys, ReadKeys(keys));
  ASSIGN_OR_RETURN(all.admin, ReadKeys(admin));
  return all;
}

// Lines are appended whole; one that cannot be written is lost, and said so once.
class AccessLogFile {
 public:
  // "-" is standard output.
  Status Open(const std::string& file) {
    if (file == "-") return OkStatus();
    file_ = UniqueFd(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640));
    if (file_.valid()) return OkStatus();
    return InvalidArgument(fmt::format("{}: {}", file, std::strerror(errno)));
  }
  void Write(std::string_view line) {
    const int fd = file_.valid() ? file_.get() : STDOUT_FILENO;
    if (::write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size())) return;
    if (!std::exchange(failed_, true)) {
      LogWarning("the access log cannot be written: {}", std::strerror(errno));
    }
  }

 private:
  UniqueFd file_;
  bool failed_ = false;
};

Result<std::unique_ptr<TlsIdentity>> LoadTls(const Options& options) {
  const std::string certificate = options.Text("tls-cert");
  const std::string key = options.Text("tls-key");
  if (certificate.empty() && key.empty()) return std::unique_ptr<TlsIdentity>();
  if (certificate.empty() || key.empty()) {
    return InvalidArgument(fmt::format("{} needs {}, too: a certificate and its key",
                                       options.Origin(key.empty() ? "tls-cert" : "tls-key"),
                                       key.empty() ? "--tls-key" : "--tls-cert"));
  }
  return TlsIdentity::Load(certificate, key);
}

Result<ServePlan> PlanServe(const Options& options) {
  ServePlan plan;
  RETURN_IF_ERROR(WorkerOptionsFrom(options).status());
  ASSIGN_OR_RETURN(plan.model, OpenModel(options.Text("model")));
  ASSIGN_OR_RETURN(plan.memory, PlanFor(options, plan.model));
  RETURN_IF_ERROR(LoadPolicyTables(options, plan.model).status());
  ASSIGN_OR_RETURN(plan.tokenizer, LoadTokenizer(options, plan.model));
  plan.api.read_keys = [keys = options.Text("api-keys"), admin = options.Text("admin-keys")] {
    return ReadAllKeys(keys, admin);
  };
  ASSIGN_OR_RETURN(plan.api.keys, plan.api.read_keys());
  ASSIGN_OR_RETURN(plan.tls, LoadTls(options));
  if (plan.tls != nullptr) {
    plan.api.reload_certificate = [tls = plan.tls.get()] { return tls->Reload(); };
  }
  plan.api.requests_per_minute = options.Integer("rate-limit");
  plan.api.requested_config = options.ProvenanceJson();
  const std::string file = options.Text("chat-template");
  Result<ModelTemplate> chat = LoadModelTemplate(plan.model.folder, file);
  if (!chat.ok() && !file.empty()) return chat.status().WithContext("--chat-template");
  if (chat.ok()) {
    plan.api.chat = std::move(*chat);
  } else {
    LogWarning("chats are refused: {}", chat.status().message());
    plan.api.chat_status = chat.status();
  }
  const ModelShape& shape = plan.model.architecture->shape();
  plan.api.vocab = shape.vocab;
  plan.api.positions_max =
      std::min<int64_t>(shape.context, static_cast<int64_t>(plan.memory.kv_tokens()));
  plan.api.model = options.Text("model-name");
  if (plan.api.model.empty()) {
    plan.api.model = std::filesystem::path(plan.model.folder).filename().string();
  }
  return plan;
}

HttpServerOptions HttpOptionsFrom(const Options& options, const ServePlan& plan) {
  HttpServerOptions http;
  http.tls = plan.tls.get();
  http.address = options.Text("listen");
  http.connections_max = static_cast<size_t>(options.Integer("connections-max"));
  http.request_bytes_max = options.Bytes("request-size-max");
  http.request_timeout_ns = options.DurationNs("request-timeout");
  http.write_timeout_ns = http.request_timeout_ns;
  return http;
}

// As many descriptors as there may be clients; fewer only means that idle ones go earlier.
void AllowClients(const Options& options) {
  const auto wanted = static_cast<uint64_t>(options.Integer("connections-max")) + kServeDescriptors;
  if (const uint64_t allowed = RaiseDescriptorLimit(wanted); allowed < wanted) {
    LogWarning("only {} descriptors are allowed: fewer clients than --connections-max", allowed);
  }
}

// The job, once the coordinator can be talked to.
class ServedJob final : public JobPort {
 public:
  void SetJob(Job* job) { job_ = job; }
  void ToJob(const Message& message) override {
    JobClient* client = job_ == nullptr ? nullptr : job_->connected_client();
    if (client == nullptr || client->closed()) return;
    if (const Status status = client->Post(message); !status.ok()) {
      LogWarning("the coordinator does not take a message: {}", status.message());
    }
  }

 private:
  Job* job_ = nullptr;
};

class ServeLoop {
 public:
  ServeLoop(const Options& options, Job& job, Api& api, HttpServer& server, SignalWatcher& signals)
      : options_(options), job_(job), api_(api), server_(server), signals_(signals) {}

  // Until the server was told to end; the job's error when it cannot go on.
  Status Run();
  // Of a second signal, which ends everything at once; else 0.
  int signal() const { return second_signal_; }

 private:
  Status Turn();
  void OnSignal(int signal);
  Status OnMessage(const Message& message);
  void Flush();
  bool Drained() const;

  const Options& options_;
  Job& job_;
  Api& api_;
  HttpServer& server_;
  SignalWatcher& signals_;
  int64_t drain_until_ns_ = 0;  // set by the first signal
  int second_signal_ = 0;
  bool ready_ = false;
  int64_t next_tick_ns_ = 0;
};

Status ServeLoop::Run() {
  Status status;
  while (status.ok() && second_signal_ == 0 && !Drained()) status = Turn();
  const Status reason = status.ok() ? Unavailable("the server ends") : status;
  api_.FailAll(reason);
  if (second_signal_ == 0) Flush();
  return status;
}

bool ServeLoop::Drained() const {
  if (drain_until_ns_ == 0) return false;
  return NowNs() >= drain_until_ns_ || (api_.running() == 0 && server_.Flushed());
}

Status ServeLoop::Turn() {
  std::array<pollfd, 2> also = {{{signals_.fd(), POLLIN, 0}, {server_.fd(), POLLIN, 0}}};
  std::vector<Message> messages;
  const Status polled = job_.PollOnce(Deadline::AtNs(next_tick_ns_), also, &messages);
  for (const Message& message : messages) RETURN_IF_ERROR(OnMessage(message));
  RETURN_IF_ERROR(polled);
  if (also[1].revents != 0) server_.HandleEvents();
  while (const std::optional<int> signal = signals_.Take()) OnSignal(*signal);
  if (const int64_t now_ns = NowNs(); now_ns >= next_tick_ns_) {
    api_.OnTick(now_ns);
    server_.OnTick(now_ns);
    next_tick_ns_ = now_ns + kTickNs;
  }
  return OkStatus();
}

Status ServeLoop::OnMessage(const Message& message) {
  api_.OnJobMessage(message);
  const auto* state = std::get_if<JobState>(&message);
  if (state == nullptr) return OkStatus();
  if (state->phase == JobPhase::kFailed) return Unavailable("the job failed: " + state->message);
  if (state->phase == JobPhase::kReady && !ready_) {
    ready_ = true;
    fmt::print("ready\n");
    std::fflush(stdout);
  }
  return OkStatus();
}

void ServeLoop::OnSignal(int signal) {
  if (drain_until_ns_ != 0) {
    second_signal_ = signal;
    return;
  }
  LogInfo("the server ends: {} requests may finish", api_.running());
  drain_until_ns_ = NowNs() + options_.DurationNs("drain-timeout");
  api_.Drain();
}

void ServeLoop::Flush() {
  const Deadline deadline = Deadline::AfterMs(kFlushMs);
  while (!server_.Flushed() && !deadline.Passed()) {
    pollfd waiting{server_.fd(), POLLIN, 0};
    ::poll(&waiting, 1, deadline.RemainingMs(100));
    server_.HandleEvents();
  }
}

}  // namespace

int ServeCommand(const Options& options) {
  Result<ServePlan> plan = PlanServe(options);
  if (!plan.ok()) return Fail(options, plan.status());
  Result<SignalWatcher> signals = SignalWatcher::Create();
  if (!signals.ok()) return Fail(options, signals.status(), kExitFailure);

  ServedJob port;
  Api api(plan->api, *plan->tokenizer, port);
  Result<std::unique_ptr<HttpServer>> server =
      HttpServer::Listen(HttpOptionsFrom(options, *plan), api);
  if (!server.ok()) return Fail(options, server.status().WithContext("--listen"));
  api.SetReplies(server->get());
  AccessLogFile file;
  AccessLog log(**server, [&file](std::string_view line) { file.Write(line); });
  if (const std::string name = options.Text("access-log"); !name.empty()) {
    const Status opened = file.Open(name);
    if (!opened.ok()) return Fail(options, opened.WithContext("--access-log"));
    api.SetAccessLog(&log);
  }
  fmt::print("serving {} at {}://{}\n", plan->api.model, plan->tls == nullptr ? "http" : "https",
             (*server)->address());
  std::fflush(stdout);

  SweepJobRemains();
  if (const Status host = CheckHost(options, plan->model, plan->memory); !host.ok()) {
    return Fail(options, host, kExitFailure);
  }
  const std::string& model =
      plan->model.store_file.empty() ? plan->model.folder : plan->model.store_file;
  Result<std::unique_ptr<Job>> job = Job::Start(MakeJobSetup(options, model), nullptr);
  if (!job.ok()) return Fail(options, job.status(), kExitFailure);
  // After the start: mpirun closes every descriptor that there might be.
  AllowClients(options);
  port.SetJob(job->get());

  ServeLoop loop(options, **job, api, **server, *signals);
  const Status status = loop.Run();
  port.SetJob(nullptr);
  if (loop.signal() != 0) return kExitSignal + loop.signal();  // the job's end is forced
  if (!status.ok()) return Fail(options, status, kExitFailure);
  (*job)->Shutdown(Deadline::AfterMs(kShutdownMs));
  if (const std::string record = options.Text("record"); !record.empty()) {
    const Status gathered = GatherRecording(record, (*job)->name());
    if (!gathered.ok()) LogError("{}", gathered.message());
  }
  return kExitOk;
}

}  // namespace expertflow

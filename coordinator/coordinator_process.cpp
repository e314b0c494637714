#include "coordinator/coordinator_process.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <utility>

#include "common/clock.h"
#include "common/log.h"
#include "coordinator/coordinator.h"
#include "coordinator/model_tokenizer.h"
#include "model/checkpoint/json_config.h"
#include "model/checkpoint/model_files.h"
#include "transport/board.h"
#include "transport/local_socket.h"
#include "transport/rendezvous.h"
#include "transport/wire.h"

namespace expertflow {
namespace {

constexpr int64_t kTickNs = 500'000'000;
constexpr int64_t kStopNs = 1'500'000'000;
constexpr int64_t kSignalStopNs = 600'000'000;  // mpirun kills within a second of its SIGTERM
constexpr size_t kClientsMax = 256;
constexpr size_t kEventsMax = 100;  // that status shows
constexpr size_t kBoardBytesMax = size_t{32} << 20;
constexpr const char* kGenerationName = "generation_config.json";

std::string RandomSecret() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

Result<ServedModel> LoadModel(const CoordinatorOptions& options) {
  ServedModel model;
  ASSIGN_OR_RETURN(model.tokenizer, LoadModelTokenizer(options.model, options.tokenizer));
  ASSIGN_OR_RETURN(const JsonConfig config, LoadModelConfig(options.model));
  ASSIGN_OR_RETURN(model.vocab, config.Int("vocab_size", 1, 1 << 24));
  ASSIGN_OR_RETURN(model.context, config.Int("max_position_embeddings", 1, 1 << 26));
  ASSIGN_OR_RETURN(auto eos, config.IntList("eos_token_id", 0, model.vocab - 1));
  const auto generation = ReadModelText(options.model, kGenerationName, JsonConfig::kBytesMax);
  if (generation.ok()) {
    ASSIGN_OR_RETURN(const JsonConfig json,
                     JsonConfig::Parse(*generation, ModelTextName(options.model, kGenerationName)));
    if (json.Has("eos_token_id")) {
      ASSIGN_OR_RETURN(eos, json.IntList("eos_token_id", 0, model.vocab - 1));
    }
  } else if (generation.status().code() != StatusCode::kNotFound) {
    return generation.status();
  }
  model.eos.assign(eos.begin(), eos.end());
  model.tables = options.tables;
  if (model.tokenizer->vocab_size() > model.vocab) {
    return InvalidArgument(fmt::format("{} has token ids up to {}, the model's vocabulary is {}",
                                       ModelTokenizerName(options.model, options.tokenizer),
                                       model.tokenizer->vocab_size() - 1, model.vocab));
  }
  return model;
}

// Sockets, processes and the transport around the state machine.
class CoordinatorProcess final : public CoordinatorPort {
 public:
  CoordinatorProcess(CoordinatorOptions options, Transport& transport)
      : options_(std::move(options)), transport_(transport) {}

  Status Init(const std::vector<Member>& members);
  Status Run(SignalWatcher& signals);

  void Send(ProcessId process, const Message& message) override;
  void Disconnect(ProcessId process) override;
  void Kill(ProcessId process) override;
  bool SendToClient(ClientId client, const Message& message) override;
  Result<int64_t> Spawn(ProcessRole role) override;
  void KillChild(int64_t pid) override;
  std::optional<PublishBoard> Board() override;
  void PostOnBoard(const Message& message) override;
  void SetBoardWord(uint64_t word) override;

 private:
  struct Client {
    ClientId id;
    LocalConnection connection;
  };
  // What a Poll() found, taken before anything may change the lists that were polled.
  struct Ready {
    bool signal = false;
    bool joiners = false;
    bool connecting = false;
    bool child_ended = false;
    std::vector<ProcessId> dead;
    std::vector<Client*> talking;
  };

  enum class Arrival { kWithTheJob, kJoined };
  void AddMember(const Member& member, Arrival arrival);
  // The same order in both.
  std::vector<pollfd> PollList(const SignalWatcher& signals) const;
  Ready ReadyOf(std::span<const pollfd> list);
  Status PollOnce(SignalWatcher& signals, Deadline deadline);
  void HandleTransport(const std::vector<TransportEvent>& events);
  void AddJoiners();
  void AcceptClients();
  void ServeClient(Client* client);
  void DropClients();
  void ReapChildren();
  void ReportFailedSends();
  Status StopAll();

  CoordinatorOptions options_;
  Transport& transport_;
  ServedModel model_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<RendezvousServer> rendezvous_;
  std::vector<Member> members_;
  std::optional<LocalServer> server_;
  std::optional<BoardWriter> board_;  // none: it could not be made
  std::list<Client> clients_;
  int32_t last_client_ = 0;
  std::map<ProcessId, UniqueFd> deaths_;  // pidfds of members on this host
  std::list<ChildProcess> children_;
  std::vector<std::pair<ProcessId, std::string>> failed_sends_;
  bool interrupted_ = false;
  bool board_failed_ = false;  // it was said
};

Status CoordinatorProcess::Init(const std::vector<Member>& members) {
  KeepLog(kEventsMax);
  ASSIGN_OR_RETURN(model_, LoadModel(options_));
  members_ = members;
  int32_t last_id = 0;
  for (const Member& member : members) last_id = std::max(last_id, member.id.value);
  RendezvousOptions rendezvous;
  rendezvous.address = options_.join_address.empty() ? "127.0.0.1:0" : options_.join_address;
  if (options_.join_secret.empty()) options_.join_secret = RandomSecret();
  rendezvous.secret = options_.join_secret;
  rendezvous.first_id = ProcessId(last_id + 1);
  ASSIGN_OR_RETURN(rendezvous_, RendezvousServer::Listen(rendezvous));
  rendezvous_->SetMembers(members_);
  options_.join_address = rendezvous_->address();
  ASSIGN_OR_RETURN(server_, LocalServer::Listen(options_.control_socket));
  if (auto board = BoardWriter::Create(kBoardBytesMax); board.ok()) {
    board_ = std::move(board).value();
  } else {
    LogWarning("{}; workers of this host get messages instead", board.status().message());
  }
  coordinator_ = std::make_unique<Coordinator>(options_, model_, *this, NowNs());
  for (const Member& member : members) {
    if (member.info.role == ProcessRole::kCoordinator) {
      coordinator_->SetSelf(member);
    } else {
      AddMember(member, Arrival::kWithTheJob);
    }
  }
  return OkStatus();
}

void CoordinatorProcess::AddMember(const Member& member, Arrival arrival) {
  const Status connected = transport_.Connect(member.id, member.info.address);
  if (arrival == Arrival::kJoined) {
    coordinator_->OnJoiner(member, NowNs());
  } else {
    coordinator_->OnMember(member, NowNs());
  }
  if (!connected.ok()) {
    coordinator_->OnProcessGone(member.id, connected.message(), NowNs());
    return;
  }
  if (!IsOnThisHost(member.info)) return;
  auto death = OpenPidFd(static_cast<pid_t>(member.info.pid), member.info.pid_start_ticks);
  if (death.ok()) {
    deaths_.insert_or_assign(member.id, std::move(death).value());
  } else {
    coordinator_->OnProcessGone(member.id, "it ended before it was connected", NowNs());
  }
}

// --- port --------------------------------------------------------------------------------------

void CoordinatorProcess::Send(ProcessId process, const Message& message) {
  const Status status = transport_.Send(process, EncodeMessage(message));
  // Reported from the loop: the state machine is in the middle of something.
  if (!status.ok()) failed_sends_.emplace_back(process, status.message());
}

void CoordinatorProcess::Disconnect(ProcessId process) {
  transport_.Disconnect(process);
  deaths_.erase(process);
  std::erase_if(members_, [process](const Member& member) { return member.id == process; });
  rendezvous_->SetMembers(members_);
}

bool CoordinatorProcess::SendToClient(ClientId id, const Message& message) {
  const auto client = std::find_if(clients_.begin(), clients_.end(),
                                   [id](const Client& entry) { return entry.id == id; });
  if (client == clients_.end() || client->connection.closed()) return false;
  const Status status = client->connection.Send(message);
  if (status.ok()) return true;
  LogWarning("client {} is dropped: {}", id.value, status.message());
  client->connection.Close();
  return false;
}

void CoordinatorProcess::Kill(ProcessId process) {
  const auto death = deaths_.find(process);
  if (death == deaths_.end()) return;
  ::syscall(SYS_pidfd_send_signal, death->second.get(), SIGKILL, nullptr, 0);
}

Result<int64_t> CoordinatorProcess::Spawn(ProcessRole role) {
  SpawnOptions spawn;
  spawn.argv = role == ProcessRole::kStore ? options_.store_command : options_.worker_command;
  spawn.argv.insert(spawn.argv.end(), {"--join", options_.join_address});
  spawn.environment = {"EXPERTFLOW_JOIN_SECRET=" + options_.join_secret};
  spawn.parent_death_signal = SIGTERM;
  ASSIGN_OR_RETURN(ChildProcess child, SpawnProcess(spawn));
  children_.push_back(std::move(child));
  return int64_t{children_.back().pid()};
}

void CoordinatorProcess::KillChild(int64_t pid) {
  for (ChildProcess& child : children_) {
    if (child.pid() == pid) child.Kill(SIGKILL);
  }
}

std::optional<PublishBoard> CoordinatorProcess::Board() {
  if (!board_) return std::nullopt;
  const BoardPlace place = board_->place();
  return PublishBoard{place.pid, place.descriptor, place.id};
}

void CoordinatorProcess::PostOnBoard(const Message& message) {
  const Status written = board_->Write(EncodeMessage(message));
  if (!written.ok() && !std::exchange(board_failed_, true)) {
    LogWarning("{}; workers of this host go on with what they have", written.message());
  }
}

void CoordinatorProcess::SetBoardWord(uint64_t word) {
  if (board_) board_->SetWord(word);
}

// --- loop --------------------------------------------------------------------------------------

std::vector<pollfd> CoordinatorProcess::PollList(const SignalWatcher& signals) const {
  std::vector<pollfd> list = {
      {signals.fd(), POLLIN, 0}, {rendezvous_->fd(), POLLIN, 0}, {server_->fd(), POLLIN, 0}};
  for (const ChildProcess& child : children_) list.push_back({child.fd(), POLLIN, 0});
  for (const auto& [id, death] : deaths_) list.push_back({death.get(), POLLIN, 0});
  for (const Client& client : clients_) {
    const auto events =
        static_cast<int16_t>(POLLIN | (client.connection.wants_write() ? POLLOUT : 0));
    list.push_back({client.connection.fd(), events, 0});
  }
  return list;
}

CoordinatorProcess::Ready CoordinatorProcess::ReadyOf(std::span<const pollfd> list) {
  size_t next = 0;
  const auto is_ready = [&list, &next] { return list[next++].revents != 0; };
  Ready ready;
  ready.signal = is_ready();
  ready.joiners = is_ready();
  ready.connecting = is_ready();
  for (size_t i = 0; i < children_.size(); ++i) ready.child_ended |= is_ready();
  for (const auto& [id, death] : deaths_) {
    if (is_ready()) ready.dead.push_back(id);
  }
  for (Client& client : clients_) {
    if (is_ready()) ready.talking.push_back(&client);
  }
  return ready;
}

Status CoordinatorProcess::PollOnce(SignalWatcher& signals, Deadline deadline) {
  std::vector<pollfd> list = PollList(signals);
  std::vector<TransportEvent> events;
  RETURN_IF_ERROR(transport_.Poll(deadline, list, &events));
  const Ready ready = ReadyOf(list);
  // What the dead said last comes before their end: a FatalError tells more than a lost process.
  if (!ready.dead.empty()) RETURN_IF_ERROR(transport_.Poll(Deadline::AtNs(0), {}, &events));
  HandleTransport(events);
  for (Client* client : ready.talking) ServeClient(client);
  for (const ProcessId id : ready.dead) {
    coordinator_->OnProcessGone(id, "its process ended", NowNs());
  }
  if (ready.child_ended) ReapChildren();
  if (ready.joiners) AddJoiners();
  if (ready.connecting) AcceptClients();
  if (ready.signal && signals.Take()) {
    interrupted_ = true;
    if (options_.on_signal) options_.on_signal();
    coordinator_->Stop("the coordinator got a signal", NowNs());
  }
  ReportFailedSends();
  DropClients();
  return OkStatus();
}

void CoordinatorProcess::AddJoiners() {
  for (const Member& member : rendezvous_->HandleReadable()) {
    if (member.info.role == ProcessRole::kCoordinator) {
      LogWarning("a joiner from {} says that it is a coordinator; it is ignored", member.info.host);
      continue;
    }
    members_.push_back(member);
    rendezvous_->SetMembers(members_);
    AddMember(member, Arrival::kJoined);
  }
}

void CoordinatorProcess::AcceptClients() {
  for (;;) {
    auto accepted = server_->Accept();
    if (!accepted.ok()) {
      LogWarning("cannot accept a client: {}", accepted.status().message());
      return;
    }
    if (!accepted->has_value()) return;
    if (clients_.size() >= kClientsMax) {
      LogWarning("more than {} clients; the new one is turned away", kClientsMax);
      continue;
    }
    clients_.push_back({ClientId(++last_client_), std::move(**accepted)});
    coordinator_->OnClient(clients_.back().id);
  }
}

void CoordinatorProcess::ServeClient(Client* client) {
  std::vector<Message> messages;
  Status status = client->connection.Flush();
  if (status.ok() && !client->connection.closed()) status = client->connection.Receive(&messages);
  if (!status.ok()) LogWarning("client {}: {}", client->id.value, status.message());
  for (const Message& message : messages) {
    coordinator_->OnClientMessage(client->id, message, NowNs());
  }
}

void CoordinatorProcess::DropClients() {
  for (auto client = clients_.begin(); client != clients_.end();) {
    if (client->connection.closed()) {
      const ClientId id = client->id;
      client = clients_.erase(client);
      coordinator_->OnClientGone(id);
    } else {
      ++client;
    }
  }
}

void CoordinatorProcess::ReapChildren() {
  std::vector<std::pair<int64_t, int>> ended;
  std::erase_if(children_, [&ended](ChildProcess& child) {
    const auto code = child.Wait(Deadline::AtNs(0));
    if (code.ok()) ended.emplace_back(child.pid(), *code);
    return code.ok();
  });
  for (const auto& [pid, code] : ended) {
    coordinator_->OnChildEnded(pid, fmt::format("exit code {}", code), NowNs());
  }
}

void CoordinatorProcess::ReportFailedSends() {
  const auto failed = std::exchange(failed_sends_, {});
  for (const auto& [process, why] : failed) coordinator_->OnProcessGone(process, why, NowNs());
}

void CoordinatorProcess::HandleTransport(const std::vector<TransportEvent>& events) {
  for (const TransportEvent& event : events) {
    if (event.kind == TransportEvent::Kind::kPeerDown) {
      coordinator_->OnProcessGone(event.peer, event.reason.message(), NowNs());
      continue;
    }
    const auto message = DecodeMessage(event.message);
    if (message.ok()) {
      coordinator_->OnMessage(event.peer, *message, NowNs());
    } else {
      coordinator_->OnProcessGone(event.peer, message.status().message(), NowNs());
    }
  }
}

Status CoordinatorProcess::Run(SignalWatcher& signals) {
  int64_t next_tick_ns = NowNs();
  while (!coordinator_->result()) {
    RETURN_IF_ERROR(PollOnce(signals, Deadline::AtNs(next_tick_ns)));
    if (NowNs() >= next_tick_ns) {
      coordinator_->OnTick(NowNs());
      next_tick_ns = NowNs() + kTickNs;
    }
  }
  return StopAll();
}

// Lets the others end: what was said is sent, and they have a moment to go.
Status CoordinatorProcess::StopAll() {
  const Deadline deadline = Deadline::AfterNs(interrupted_ ? kSignalStopNs : kStopNs);
  std::vector<TransportEvent> events;
  const auto waits_for_clients = [this] {
    return std::any_of(clients_.begin(), clients_.end(), [](const Client& client) {
      return !client.connection.closed() && client.connection.wants_write();
    });
  };
  while (!deadline.Passed() && (!transport_.Flushed() || !deaths_.empty() || waits_for_clients())) {
    std::vector<pollfd> list;
    for (const auto& [id, death] : deaths_) list.push_back({death.get(), POLLIN, 0});
    events.clear();
    const Deadline soon = Deadline::AtNs(std::min(deadline.at_ns(), NowNs() + 20'000'000));
    if (!transport_.Poll(soon, list, &events).ok()) break;
    for (Client& client : clients_) {
      if (client.connection.wants_write() && !client.connection.Flush().ok()) {
        client.connection.Close();
      }
    }
    size_t i = 0;
    std::erase_if(deaths_, [&](const auto&) { return list[i++].revents != 0; });
  }
  children_.clear();  // kills those that are left
  if (interrupted_) return Cancelled("ended by a signal");
  return *coordinator_->result();
}

}  // namespace

Status RunCoordinator(const CoordinatorOptions& options, Transport& transport,
                      const std::vector<Member>& members, SignalWatcher& signals) {
  CoordinatorProcess process(options, transport);
  RETURN_IF_ERROR(process.Init(members));
  return process.Run(signals);
}

}  // namespace expertflow

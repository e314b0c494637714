#include "transport/ucx_transport.h"

#include <fmt/format.h>
#include <ucp/api/ucp.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <unordered_set>
#include <utility>

#include "common/check.h"
#include "transport/inbound_streams.h"
#include "transport/poll_wait.h"
#include "transport/start_lock.h"
#include "transport/ucx_worker.h"

namespace expertflow {
namespace {

constexpr unsigned kMessageId = 1;   // UCX active message id
constexpr int64_t kSpinNs = 50'000;  // longer than an answer of a busy peer, shorter than a wake-up
constexpr int kProgressBatch = 64;   // progress calls between looks at the clock
constexpr int64_t kCloseNs = 500'000'000;

enum class MessageKind : uint32_t {
  kMessage = 0,
  kGoodbye = 1,  // the sender has disconnected; empty, not counted
};

// Travels as the active message's header. See InboundStreams for the two numbers.
struct MessageHeader {
  int32_t sender;
  MessageKind kind;
  uint64_t connection;
  uint64_t number;
};
static_assert(sizeof(MessageHeader) == 24);

class UcxTransport;

struct Peer {
  ProcessId id;
  ucp_ep_h endpoint = nullptr;
  uint64_t connection = 0;
  uint64_t next_number = 0;
  size_t queued_bytes = 0;
  size_t queued_messages = 0;
  // A message counts as flushed once a flush that was posted after it has completed.
  uint64_t flush_posted_number = 0;
  uint64_t flushed_number = 0;
  Status failure;
};

// Owns the bytes of a message until UCX is done with them.
struct SendOperation {
  MessageHeader header;
  std::vector<uint8_t> bytes;
  std::shared_ptr<Peer> peer;
  UcxTransport* transport;
};

// Owns the buffer of a rendezvous message that is being fetched.
struct ReceiveOperation {
  MessageHeader header;
  std::vector<uint8_t> bytes;
  UcxTransport* transport;
};

struct FlushOperation {
  std::shared_ptr<Peer> peer;
  uint64_t number;  // messages of the peer below it leave with this flush
  const UcxTransport* transport;
};

// Operations that UCX holds a pointer to. Whatever it does not hand back before the worker is
// destroyed is freed afterwards.
template <typename Operation>
class OperationSet {
 public:
  ~OperationSet() {
    for (Operation* operation : operations_) delete operation;
  }
  Operation* Add(Operation operation) {
    return *operations_.insert(new Operation(std::move(operation))).first;
  }
  Operation Remove(Operation* operation) {
    operations_.erase(operation);
    Operation value = std::move(*operation);
    delete operation;
    return value;
  }

 private:
  std::unordered_set<Operation*> operations_;
};

class UcxTransport final : public Transport {
 public:
  UcxTransport(ProcessId self, UcxWorker worker) : self_(self), worker_(std::move(worker)) {}

  ~UcxTransport() override {
    while (!peers_.empty()) Drop(peers_.begin()->first);
    const Deadline deadline = Deadline::AfterNs(kCloseNs);
    while (!closing_.empty() && !deadline.Passed()) {
      ucp_worker_progress(worker_.get());
      FinishCloses();
    }
    for (const Closing& closing : closing_) ucp_request_free(closing.request);
  }

  Status Init() {
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                         UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = kMessageId;
    handler.flags = UCP_AM_FLAG_WHOLE_MSG;
    handler.cb = &OnMessage;
    handler.arg = this;
    const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_.get(), &handler);
    if (status != UCS_OK) return FromUcx(status, "cannot receive UCX messages");
    return OkStatus();
  }

  void SetSelf(ProcessId self) override {
    CHECK(!self_.valid() && self.valid() && peers_.empty());
    self_ = self;
  }
  std::string LocalAddress() const override { return worker_.address(); }

  Status Connect(ProcessId id, const std::string& address) override;
  void Disconnect(ProcessId id) override { Drop(id); }
  Status Send(ProcessId id, std::span<const uint8_t> message) override;
  Status Poll(Deadline deadline, std::span<pollfd> others,
              std::vector<TransportEvent>* events) override;
  void Wake() override { wake_.Signal(); }
  bool Flushed() const override;

 private:
  struct Closing {
    std::shared_ptr<Peer> peer;
    void* request;
  };

  // Called by UCX inside ucp_worker_progress() and some calls that start an operation.
  static ucs_status_t OnMessage(void* arg, const void* header, size_t header_bytes, void* data,
                                size_t bytes, const ucp_am_recv_param_t* param);
  static void OnReceived(void* request, ucs_status_t status, size_t bytes, void* arg);
  static void OnSent(void* request, ucs_status_t status, void* arg);
  static void OnFlushed(void* request, ucs_status_t status, void* arg);
  static void OnPeerError(void* arg, ucp_ep_h endpoint, ucs_status_t status);

  ucs_status_t Fetch(const MessageHeader& header, void* descriptor, size_t bytes);
  void FinishReceive(ReceiveOperation* operation, ucs_status_t status);
  void FinishSend(SendOperation* operation, ucs_status_t status);
  void FinishFlush(FlushOperation* operation, ucs_status_t status) const;
  static void Fail(Peer* peer, ucs_status_t status);

  void Post(const std::shared_ptr<Peer>& peer, MessageKind kind, std::span<const uint8_t> message);
  // Progresses a bounded amount and moves what has happened to `events`.
  void Progress(std::vector<TransportEvent>* events);
  void ReportFailures(std::vector<TransportEvent>* events);
  void Drop(ProcessId id);
  void FinishCloses();
  // True when every message to `peer` has left; asks UCX to flush when it must.
  bool PeerFlushed(const std::shared_ptr<Peer>& peer) const;

  // Freed after worker_: UCX may use them until the worker is gone.
  OperationSet<SendOperation> sends_;
  OperationSet<ReceiveOperation> receives_;
  mutable OperationSet<FlushOperation> flushes_;

  ProcessId self_;
  InboundStreams inbound_;
  std::map<ProcessId, std::shared_ptr<Peer>> peers_;
  std::list<Closing> closing_;
  uint64_t last_connection_ = 0;
  WakeFd wake_;
  UcxWorker worker_;
};

// --- connections -------------------------------------------------------------------------------

Status UcxTransport::Connect(ProcessId id, const std::string& address) {
  CHECK(self_.valid());
  if (id == self_ || peers_.contains(id)) {
    return FailedPrecondition(fmt::format("peer {} is connected already", id.value));
  }
  auto unpacked = UnpackUcxAddress(address);
  if (!unpacked.ok()) return unpacked.status().WithContext(fmt::format("peer {}", id.value));

  auto peer = std::make_shared<Peer>();
  peer->id = id;
  // Grows over restarts of the connection, within this process.
  peer->connection = std::max(last_connection_ + 1, static_cast<uint64_t>(NowNs()));
  last_connection_ = peer->connection;

  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(unpacked->data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &OnPeerError;
  params.err_handler.arg = peer.get();
  const ucs_status_t status = ucp_ep_create(worker_.get(), &params, &peer->endpoint);
  // A peer that is gone may show here or later; the caller sees it as an event either way.
  if (status != UCS_OK) {
    peer->endpoint = nullptr;
    peer->failure = FromUcx(status, fmt::format("cannot connect to peer {}", id.value));
  }
  inbound_.Open(id);
  peers_.emplace(id, std::move(peer));
  return OkStatus();
}

void UcxTransport::Drop(ProcessId id) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  const std::shared_ptr<Peer> peer = found->second;
  peers_.erase(found);
  inbound_.Close(id);
  if (peer->endpoint == nullptr) return;
  // UCX does not tell the peer that an endpoint was closed. This does, unless the socket is full.
  if (peer->failure.ok()) Post(peer, MessageKind::kGoodbye, {});
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  // A flushing close would wait for the peer.
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* request = ucp_ep_close_nbx(peer->endpoint, &param);
  if (UCS_PTR_IS_PTR(request)) closing_.push_back({peer, request});
}

void UcxTransport::FinishCloses() {
  closing_.remove_if([](const Closing& closing) {
    if (ucp_request_check_status(closing.request) == UCS_INPROGRESS) return false;
    ucp_request_free(closing.request);
    return true;
  });
}

void UcxTransport::Fail(Peer* peer, ucs_status_t status) {
  if (peer->failure.ok()) {
    peer->failure = FromUcx(status, fmt::format("connection to peer {} lost", peer->id.value));
  }
}

void UcxTransport::OnPeerError(void* arg, ucp_ep_h, ucs_status_t status) {
  Fail(static_cast<Peer*>(arg), status);
}

// --- sending -----------------------------------------------------------------------------------

Status UcxTransport::Send(ProcessId id, std::span<const uint8_t> message) {
  const auto found = peers_.find(id);
  if (found == peers_.end() || !found->second->failure.ok()) {
    return Unavailable(fmt::format("peer {} is not connected", id.value));
  }
  if (message.size() > kMessageBytesMax) {
    return InvalidArgument(fmt::format("a message of {} bytes is longer than the limit of {}",
                                       message.size(), kMessageBytesMax));
  }
  const std::shared_ptr<Peer>& peer = found->second;
  if (message.size() > kQueuedBytesMax - peer->queued_bytes) {
    return ResourceExhausted(fmt::format("{} bytes wait for peer {}, no room for {} more",
                                         peer->queued_bytes, id.value, message.size()));
  }
  Post(peer, MessageKind::kMessage, message);
  return OkStatus();
}

void UcxTransport::Post(const std::shared_ptr<Peer>& peer, MessageKind kind,
                        std::span<const uint8_t> message) {
  SendOperation* operation = sends_.Add({{self_.value, kind, peer->connection, peer->next_number},
                                         {message.begin(), message.end()},
                                         peer,
                                         this});
  ++peer->next_number;
  peer->queued_bytes += message.size();
  ++peer->queued_messages;

  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &OnSent;
  param.user_data = operation;
  void* request =
      ucp_am_send_nbx(peer->endpoint, kMessageId, &operation->header, sizeof(operation->header),
                      operation->bytes.data(), operation->bytes.size(), &param);
  if (!UCS_PTR_IS_PTR(request)) FinishSend(operation, UCS_PTR_STATUS(request));
}

void UcxTransport::OnSent(void* request, ucs_status_t status, void* arg) {
  auto* operation = static_cast<SendOperation*>(arg);
  operation->transport->FinishSend(operation, status);
  ucp_request_free(request);
}

void UcxTransport::FinishSend(SendOperation* operation, ucs_status_t status) {
  const SendOperation done = sends_.Remove(operation);
  done.peer->queued_bytes -= done.bytes.size();
  --done.peer->queued_messages;
  if (status != UCS_OK) Fail(done.peer.get(), status);
}

bool UcxTransport::PeerFlushed(const std::shared_ptr<Peer>& peer) const {
  if (peer->flushed_number == peer->next_number) return true;
  // UCX has more to copy out of our buffers, or a flush for everything so far is on its way.
  if (peer->queued_messages > 0 || peer->flush_posted_number == peer->next_number) return false;
  FlushOperation* operation = flushes_.Add({peer, peer->next_number, this});
  peer->flush_posted_number = peer->next_number;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &OnFlushed;
  param.user_data = operation;
  void* request = ucp_ep_flush_nbx(peer->endpoint, &param);
  if (!UCS_PTR_IS_PTR(request)) FinishFlush(operation, UCS_PTR_STATUS(request));
  return peer->flushed_number == peer->next_number;
}

void UcxTransport::OnFlushed(void* request, ucs_status_t status, void* arg) {
  auto* operation = static_cast<FlushOperation*>(arg);
  operation->transport->FinishFlush(operation, status);
  ucp_request_free(request);
}

void UcxTransport::FinishFlush(FlushOperation* operation, ucs_status_t status) const {
  const FlushOperation done = flushes_.Remove(operation);
  if (status != UCS_OK) {
    Fail(done.peer.get(), status);
  } else {
    done.peer->flushed_number = std::max(done.peer->flushed_number, done.number);
  }
}

bool UcxTransport::Flushed() const {
  // Each peer is asked, so that their flushes run side by side.
  bool flushed = true;
  for (const auto& [id, peer] : peers_) {
    // What waits for a lost peer never leaves.
    if (peer->failure.ok() && !PeerFlushed(peer)) flushed = false;
  }
  return flushed;
}

// --- receiving ---------------------------------------------------------------------------------

ucs_status_t UcxTransport::OnMessage(void* arg, const void* header_bytes, size_t header_size,
                                     void* data, size_t bytes, const ucp_am_recv_param_t* param) {
  auto* transport = static_cast<UcxTransport*>(arg);
  MessageHeader header;
  if (header_size != sizeof(header) || bytes > kMessageBytesMax) return UCS_ERR_INVALID_PARAM;
  std::memcpy(&header, header_bytes, sizeof(header));
  if (header.kind == MessageKind::kGoodbye) {
    transport->inbound_.Break(
        ProcessId(header.sender), header.connection,
        Unavailable(fmt::format("peer {} has closed the connection", header.sender)));
    return UCS_OK;
  }
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    return transport->Fetch(header, data, bytes);
  }
  const auto* begin = static_cast<const uint8_t*>(data);
  transport->inbound_.Put(ProcessId(header.sender), header.connection, header.number,
                          {begin, begin + bytes});
  return UCS_OK;
}

ucs_status_t UcxTransport::Fetch(const MessageHeader& header, void* descriptor, size_t bytes) {
  ReceiveOperation* operation = receives_.Add({header, std::vector<uint8_t>(bytes), this});
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = &OnReceived;
  param.user_data = operation;
  void* request = ucp_am_recv_data_nbx(worker_.get(), descriptor, operation->bytes.data(),
                                       operation->bytes.size(), &param);
  if (!UCS_PTR_IS_PTR(request)) FinishReceive(operation, UCS_PTR_STATUS(request));
  return UCS_INPROGRESS;
}

void UcxTransport::OnReceived(void* request, ucs_status_t status, size_t, void* arg) {
  auto* operation = static_cast<ReceiveOperation*>(arg);
  operation->transport->FinishReceive(operation, status);
  ucp_request_free(request);
}

void UcxTransport::FinishReceive(ReceiveOperation* operation, ucs_status_t status) {
  ReceiveOperation done = receives_.Remove(operation);
  const ProcessId sender(done.header.sender);
  if (status == UCS_OK) {
    inbound_.Put(sender, done.header.connection, done.header.number, std::move(done.bytes));
  } else {
    inbound_.Break(sender, done.header.connection,
                   FromUcx(status, fmt::format("a message of peer {} is lost", sender.value)));
  }
}

// --- progress ----------------------------------------------------------------------------------

void UcxTransport::Progress(std::vector<TransportEvent>* events) {
  for (int i = 0; i < kProgressBatch && ucp_worker_progress(worker_.get()) != 0; ++i) {
  }
  // What a peer sent before it went is delivered before the news that it is gone.
  inbound_.TakeReady(events);
  ReportFailures(events);
  if (!closing_.empty()) FinishCloses();
}

void UcxTransport::ReportFailures(std::vector<TransportEvent>* events) {
  std::map<ProcessId, Status> failed;
  for (const auto& [id, peer] : peers_) {
    if (!peer->failure.ok()) failed.emplace(id, peer->failure);
  }
  for (auto& [id, status] : inbound_.Broken()) failed.emplace(id, std::move(status));
  for (auto& [id, status] : failed) {
    Drop(id);
    TransportEvent event;
    event.kind = TransportEvent::Kind::kPeerDown;
    event.peer = id;
    event.reason = std::move(status);
    events->push_back(std::move(event));
  }
}

Status UcxTransport::Poll(Deadline deadline, std::span<pollfd> others,
                          std::vector<TransportEvent>* events) {
  const size_t events_before = events->size();
  const auto others_ready = [&] {
    return std::any_of(others.begin(), others.end(),
                       [](const pollfd& p) { return p.revents != 0; });
  };
  while (true) {
    const int64_t spin_until_ns = std::min(deadline.at_ns(), NowNs() + kSpinNs);
    do {
      Progress(events);
    } while (events->size() == events_before && !wake_.pending() && NowNs() < spin_until_ns);

    const bool done = events->size() > events_before || wake_.pending() || deadline.Passed();
    if (!done) {
      const ucs_status_t armed = ucp_worker_arm(worker_.get());
      if (armed == UCS_ERR_BUSY) continue;
      if (armed != UCS_OK) return FromUcx(armed, "cannot wait for UCX messages");
    }
    pollfd own[] = {{worker_.event_fd(), POLLIN, 0}};
    ASSIGN_OR_RETURN(const bool woken,
                     WaitForFds(done ? Deadline::AtNs(0) : deadline, own, &wake_, others));
    if (done || woken || others_ready() || own[0].revents == 0) {
      if (events->size() == events_before) Progress(events);
      return OkStatus();
    }
  }
}

}  // namespace

Result<std::unique_ptr<Transport>> CreateUcxTransport(const UcxOptions& options) {
  auto started = StartAlone<UcxWorker>(UcxStartLockName(), Deadline::AfterNs(options.start_ns),
                                       [options] { return UcxWorker::Create(options); });
  if (!started.ok()) return started.status().WithContext("cannot start UCX");
  UcxWorker worker = std::move(started).value();
  auto transport = std::make_unique<UcxTransport>(options.self, std::move(worker));
  RETURN_IF_ERROR(transport->Init());
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace expertflow

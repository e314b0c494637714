#include "transport/fake_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <utility>

#include "common/check.h"
#include "transport/poll_wait.h"

namespace expertflow {
namespace {

struct Delivery {
  int64_t due_ns = 0;
  uint64_t order = 0;  // of sending, for equal due times
  ProcessId from;
  TransportEvent event;

  bool operator<(const Delivery& other) const {
    return std::pair(due_ns, order) < std::pair(other.due_ns, other.order);
  }
};

using Link = std::pair<ProcessId, ProcessId>;  // from, to

constexpr int64_t kNever = INT64_MAX;

}  // namespace

struct FakeNetwork::State {
  struct Endpoint {
    std::set<ProcessId> connected;
    std::set<ProcessId> disconnected;  // dropped by us or gone: late messages are not delivered
    std::vector<Delivery> inbox;       // sorted
    std::map<ProcessId, std::vector<Delivery>> early;  // sent before we connected to the sender
    int64_t dead_at_ns = kNever;
    bool death_reported = false;
    WakeFd wake;
  };

  explicit State(const FakeNetworkOptions& o) : options(o), random(o.seed) {}

  // All REQUIRE that `mutex` is held.
  Endpoint* Find(ProcessId id) {
    const auto it = endpoints.find(id);
    return it == endpoints.end() ? nullptr : it->second.get();
  }
  bool Dead(ProcessId id) {
    const Endpoint* endpoint = Find(id);
    return endpoint == nullptr || endpoint->dead_at_ns <= now_ns;
  }
  int64_t Delay() {
    const int64_t range = options.delay_ns_max - options.delay_ns_min;
    CHECK(options.delay_ns_min >= 0 && range >= 0);
    const uint64_t draw = range == 0 ? 0 : random() % (static_cast<uint64_t>(range) + 1);
    return options.delay_ns_min + static_cast<int64_t>(draw);
  }
  void Deliver(ProcessId from, ProcessId to, int64_t due_ns, TransportEvent event) {
    Endpoint* receiver = Find(to);
    if (receiver == nullptr) return;
    if (cut.contains({from, to})) {
      held[{from, to}].push_back(std::move(event));
      return;
    }
    int64_t& last_due = last_due_ns[{from, to}];
    last_due = std::max(last_due, due_ns);
    Delivery delivery{last_due, next_order++, from, std::move(event)};
    auto& inbox = receiver->inbox;
    inbox.insert(std::upper_bound(inbox.begin(), inbox.end(), delivery), std::move(delivery));
    if (last_due <= now_ns) receiver->wake.Signal();
  }
  void ReportDown(ProcessId dead, ProcessId to, int64_t at_ns) {
    TransportEvent event;
    event.kind = TransportEvent::Kind::kPeerDown;
    event.peer = dead;
    event.reason = Unavailable(fmt::format("peer {} is gone", dead.value));
    Deliver(dead, to, at_ns + options.detection_ns, std::move(event));
  }
  void KillAt(ProcessId id, int64_t at_ns) {
    Endpoint* endpoint = Find(id);
    if (endpoint == nullptr || endpoint->dead_at_ns <= now_ns) return;
    endpoint->dead_at_ns = std::max(at_ns, now_ns);
    ReportDeaths();
  }
  // Not before its time: what a process sends until then must not queue behind its death.
  void ReportDeaths() {
    for (const auto& [id, endpoint] : endpoints) {
      if (endpoint->dead_at_ns > now_ns || endpoint->death_reported) continue;
      endpoint->death_reported = true;
      for (const auto& [other_id, other] : endpoints) {
        if (other->connected.contains(id)) ReportDown(id, other_id, endpoint->dead_at_ns);
      }
    }
  }

  const FakeNetworkOptions options;
  mutable std::mutex mutex;
  std::mt19937_64 random;
  int64_t now_ns = 0;
  uint64_t next_order = 0;
  std::map<ProcessId, std::unique_ptr<Endpoint>> endpoints;
  std::map<Link, size_t> queued_bytes;
  std::map<Link, int64_t> last_due_ns;
  std::set<Link> cut;
  std::map<Link, std::vector<TransportEvent>> held;  // by a partition
};

namespace {

class FakeTransport final : public Transport {
 public:
  FakeTransport(std::shared_ptr<FakeNetwork::State> network, ProcessId self)
      : network_(std::move(network)), self_(self) {
    const std::lock_guard lock(network_->mutex);
    endpoint_ = network_->Find(self);
  }

  ~FakeTransport() override {
    const std::lock_guard lock(network_->mutex);
    network_->KillAt(self_, network_->now_ns);
  }

  void SetSelf(ProcessId self) override { CHECK(self == self_); }
  std::string LocalAddress() const override { return FakeNetwork::AddressOf(self_); }

  Status Connect(ProcessId peer, const std::string& address) override {
    const std::lock_guard lock(network_->mutex);
    if (address != FakeNetwork::AddressOf(peer) || peer == self_) {
      return InvalidArgument(
          fmt::format("'{}' is not the address of peer {}", address, peer.value));
    }
    if (endpoint_->connected.contains(peer)) {
      return FailedPrecondition(fmt::format("peer {} is connected already", peer.value));
    }
    endpoint_->disconnected.erase(peer);
    endpoint_->connected.insert(peer);
    if (const auto early = endpoint_->early.extract(peer)) {
      for (Delivery& delivery : early.mapped()) {
        network_->Deliver(peer, self_, network_->now_ns, std::move(delivery.event));
      }
    }
    const FakeNetwork::State::Endpoint* other = network_->Find(peer);
    if (other == nullptr || other->death_reported) {
      network_->ReportDown(peer, self_, network_->now_ns);
    }
    return OkStatus();
  }

  void Disconnect(ProcessId peer) override {
    const std::lock_guard lock(network_->mutex);
    if (endpoint_->connected.erase(peer) == 0) return;
    endpoint_->disconnected.insert(peer);
    network_->held.erase({self_, peer});
    network_->queued_bytes.erase({self_, peer});
    // The peer sees the closed connection.
    if (const auto* other = network_->Find(peer); other && other->connected.contains(self_)) {
      network_->ReportDown(self_, peer, network_->now_ns);
    }
  }

  Status Send(ProcessId peer, std::span<const uint8_t> message) override {
    const std::lock_guard lock(network_->mutex);
    if (!endpoint_->connected.contains(peer)) {
      return Unavailable(fmt::format("peer {} is not connected", peer.value));
    }
    if (message.size() > kMessageBytesMax) {
      return InvalidArgument(fmt::format("a message of {} bytes is longer than the limit of {}",
                                         message.size(), kMessageBytesMax));
    }
    const Link link{self_, peer};
    size_t& queued = network_->queued_bytes[link];
    if (message.size() > kQueuedBytesMax - queued) {
      return ResourceExhausted(fmt::format("{} bytes wait for peer {}, no room for {} more", queued,
                                           peer.value, message.size()));
    }
    if (network_->Dead(self_) || network_->Dead(peer)) return OkStatus();  // lost on the way
    queued += message.size();
    TransportEvent event;
    event.kind = TransportEvent::Kind::kMessage;
    event.peer = self_;
    event.message.assign(message.begin(), message.end());
    network_->Deliver(self_, peer, network_->now_ns + network_->Delay(), std::move(event));
    return OkStatus();
  }

  Status Poll(Deadline deadline, std::span<pollfd> others,
              std::vector<TransportEvent>* events) override {
    const size_t events_before = events->size();
    TakeDue(events);
    const bool found = events->size() > events_before;
    const auto waited =
        WaitForFds(found ? Deadline::AtNs(0) : deadline, {}, &endpoint_->wake, others);
    if (!waited.ok()) return waited.status();
    if (!found) TakeDue(events);
    return OkStatus();
  }

  void Wake() override { endpoint_->wake.Signal(); }

  bool Flushed() const override {
    const std::lock_guard lock(network_->mutex);
    return std::none_of(network_->held.begin(), network_->held.end(), [this](const auto& entry) {
      return entry.first.first == self_ && !entry.second.empty();
    });
  }

 private:
  void TakeDue(std::vector<TransportEvent>* events) {
    const std::lock_guard lock(network_->mutex);
    if (network_->Dead(self_)) return;
    auto& inbox = endpoint_->inbox;
    auto next = inbox.begin();
    for (; next != inbox.end() && next->due_ns <= network_->now_ns; ++next) Take(&*next, events);
    inbox.erase(inbox.begin(), next);
  }

  void Take(Delivery* delivery, std::vector<TransportEvent>* events) {
    const ProcessId from = delivery->from;
    const bool is_message = delivery->event.kind == TransportEvent::Kind::kMessage;
    if (!endpoint_->connected.contains(from)) {
      if (is_message && !endpoint_->disconnected.contains(from)) {
        endpoint_->early[from].push_back(std::move(*delivery));
      }
      return;
    }
    if (is_message) {
      size_t& queued = network_->queued_bytes[{from, self_}];
      queued -= std::min(queued, delivery->event.message.size());
    } else {
      endpoint_->connected.erase(from);
      endpoint_->disconnected.insert(from);
      network_->held.erase({self_, from});
    }
    events->push_back(std::move(delivery->event));
  }

  const std::shared_ptr<FakeNetwork::State> network_;
  const ProcessId self_;
  FakeNetwork::State::Endpoint* endpoint_;  // owned by the network, never removed
};

}  // namespace

FakeNetwork::FakeNetwork(const FakeNetworkOptions& options)
    : state_(std::make_shared<State>(options)) {}

FakeNetwork::~FakeNetwork() = default;

std::unique_ptr<Transport> FakeNetwork::Create(ProcessId self) {
  {
    const std::lock_guard lock(state_->mutex);
    const bool inserted =
        state_->endpoints.emplace(self, std::make_unique<State::Endpoint>()).second;
    CHECK(inserted);
  }
  return std::make_unique<FakeTransport>(state_, self);
}

std::string FakeNetwork::AddressOf(ProcessId id) {
  return fmt::format("fake:{}", id.value);
}

int64_t FakeNetwork::now_ns() const {
  const std::lock_guard lock(state_->mutex);
  return state_->now_ns;
}

void FakeNetwork::AdvanceNs(int64_t ns) {
  const std::lock_guard lock(state_->mutex);
  state_->now_ns += ns;
  state_->ReportDeaths();
  for (const auto& [id, endpoint] : state_->endpoints) {
    if (!endpoint->inbox.empty() && endpoint->inbox.front().due_ns <= state_->now_ns) {
      endpoint->wake.Signal();
    }
  }
}

int64_t FakeNetwork::NextDueNs() const {
  const std::lock_guard lock(state_->mutex);
  int64_t next = kNever;
  for (const auto& [id, endpoint] : state_->endpoints) {
    if (state_->Dead(id)) continue;
    next = std::min(next, endpoint->dead_at_ns);
    if (!endpoint->inbox.empty()) next = std::min(next, endpoint->inbox.front().due_ns);
  }
  return next == kNever ? -1 : next;
}

void FakeNetwork::KillAt(ProcessId id, int64_t at_ns) {
  const std::lock_guard lock(state_->mutex);
  state_->KillAt(id, at_ns);
}

void FakeNetwork::Partition(ProcessId a, ProcessId b) {
  const std::lock_guard lock(state_->mutex);
  state_->cut.insert({a, b});
  state_->cut.insert({b, a});
}

void FakeNetwork::Heal(ProcessId a, ProcessId b) {
  const std::lock_guard lock(state_->mutex);
  for (const Link& link : {Link{a, b}, Link{b, a}}) {
    state_->cut.erase(link);
    if (auto held = state_->held.extract(link)) {
      for (TransportEvent& event : held.mapped()) {
        state_->Deliver(link.first, link.second, state_->now_ns + state_->Delay(),
                        std::move(event));
      }
    }
  }
}

}  // namespace expertflow

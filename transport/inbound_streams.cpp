#include "transport/inbound_streams.h"

#include <fmt/format.h>

#include <iterator>

namespace expertflow {

InboundStreams::Stream* InboundStreams::Find(ProcessId sender, uint64_t connection) {
  Sender& entry = senders_[sender];
  if (connection <= entry.closed_through) return nullptr;
  return &entry.streams[connection];
}

bool InboundStreams::Early(const Sender& sender, uint64_t connection) const {
  return !sender.open || sender.streams.begin()->first != connection;
}

void InboundStreams::Put(ProcessId sender, uint64_t connection, uint64_t number,
                         std::vector<uint8_t> message) {
  Stream* stream = Find(sender, connection);
  if (stream == nullptr || !stream->broken.ok()) return;
  const bool early = Early(senders_[sender], connection);
  if (early && message.size() > kEarlyBytesMax - early_bytes_) {
    stream->broken = ResourceExhausted(
        fmt::format("peer {} sent too much before it was connected", sender.value));
    return;
  }
  if (message.size() > kHeldBytesMax - stream->held_bytes) {
    stream->broken = ResourceExhausted(
        fmt::format("peer {} sent too much behind a missing message", sender.value));
    return;
  }
  const size_t bytes = message.size();
  if (number < stream->next_number || !stream->held.emplace(number, std::move(message)).second) {
    stream->broken =
        InvalidArgument(fmt::format("peer {} sent message {} twice", sender.value, number));
    return;
  }
  stream->held_bytes += bytes;
  if (early) early_bytes_ += bytes;
}

void InboundStreams::Break(ProcessId sender, uint64_t connection, Status reason) {
  Stream* stream = Find(sender, connection);
  if (stream != nullptr && stream->broken.ok()) stream->broken = std::move(reason);
}

void InboundStreams::Open(ProcessId sender) {
  Sender& entry = senders_[sender];
  entry.open = true;
  if (!entry.streams.empty()) early_bytes_ -= entry.streams.begin()->second.held_bytes;
}

void InboundStreams::Close(ProcessId sender) {
  const auto found = senders_.find(sender);
  if (found == senders_.end() || !found->second.open) return;
  Sender& entry = found->second;
  entry.open = false;
  if (entry.streams.empty()) return;
  entry.closed_through = entry.streams.begin()->first;
  entry.streams.erase(entry.streams.begin());
}

void InboundStreams::TakeReady(std::vector<TransportEvent>* events) {
  for (auto& [id, sender] : senders_) {
    if (!sender.open || sender.streams.empty()) continue;
    Stream& stream = sender.streams.begin()->second;
    auto next = stream.held.begin();
    for (; next != stream.held.end() && next->first == stream.next_number; ++next) {
      TransportEvent event;
      event.kind = TransportEvent::Kind::kMessage;
      event.peer = id;
      event.message = std::move(next->second);
      stream.held_bytes -= event.message.size();
      ++stream.next_number;
      events->push_back(std::move(event));
    }
    stream.held.erase(stream.held.begin(), next);
  }
}

std::vector<std::pair<ProcessId, Status>> InboundStreams::Broken() const {
  std::vector<std::pair<ProcessId, Status>> broken;
  for (const auto& [id, sender] : senders_) {
    if (!sender.open || sender.streams.empty()) continue;
    const Stream& stream = sender.streams.begin()->second;
    if (!stream.broken.ok()) broken.emplace_back(id, stream.broken);
  }
  return broken;
}

}  // namespace expertflow

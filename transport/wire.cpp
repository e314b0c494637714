#include "transport/wire.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "transport/message_fields.h"

namespace expertflow {
namespace {

constexpr uint32_t kMessageMagic = 0x4d464645;  // "EFFM" in memory order

constexpr size_t kTypes = std::variant_size_v<Message::Any>;

constexpr std::array<std::string_view, kTypes> kNames = {
    "ProcessInfo",    "LoadProgress",    "StoreReady",       "AttachStore",     "StartSequence",
    "CancelSequence", "Shutdown",        "WorkerReady",      "StepReport",      "CapturedPosition",
    "SequenceFailed", "WorkerStats",     "Heartbeat",        "FatalError",      "SubmitRequest",
    "CancelRequest",  "StatusRequest",   "MetricsRequest",   "ShutdownRequest", "JobState",
    "TextDelta",      "RequestDone",     "RequestCapture",   "StatusReply",     "MetricsReply",
    "TokenBytes",     "PublishTables",   "ExpertReport",     "ExpertsRequest",  "ExpertsReply",
    "PublishBoard",   "PredictorLearnt", "PredictorVersion", "StrideReport",    "StridePublished"};

template <size_t kType>
Message Emplace() {
  return Message(std::in_place_index<kType>);
}

// A default message of each type, by index.
template <size_t... kIndex>
constexpr auto MakeFactories(std::index_sequence<kIndex...>) {
  return std::array<Message (*)(), kTypes>{&Emplace<kIndex>...};
}
constexpr auto kFactories = MakeFactories(std::make_index_sequence<kTypes>());

Status Malformed(uint16_t type, std::string_view problem) {
  return InvalidArgument(fmt::format("malformed {} message: it has {}", kNames[type], problem));
}

}  // namespace

std::string_view MessageName(const Message& message) {
  return kNames[message.index()];
}

std::vector<uint8_t> EncodeMessage(const Message& message) {
  const wire::FrameHeader header{kMessageMagic, kProtocolVersion,
                                 static_cast<uint16_t>(message.index()), 0};
  return std::visit([&](const auto& payload) { return wire::EncodeFrame(header, payload); },
                    message);
}

Result<Message> DecodeMessage(std::span<const uint8_t> bytes) {
  wire::Decoder decoder(bytes);
  wire::FrameHeader header;
  if (!decoder.Get(header)) {
    return InvalidArgument(
        fmt::format("a message of {} bytes is shorter than a message header", bytes.size()));
  }
  if (header.magic != kMessageMagic) {
    return InvalidArgument(
        fmt::format("not an ExpertFlow message (it starts with {:#010x})", header.magic));
  }
  if (header.version != kProtocolVersion) {
    return FailedPrecondition(
        fmt::format("peer speaks protocol {}, this is {}; all processes must be of one version",
                    header.version, kProtocolVersion));
  }
  if (header.type >= kTypes) {
    return InvalidArgument(fmt::format("unknown message type {}", header.type));
  }
  if (header.payload_bytes != decoder.remaining()) {
    return InvalidArgument(fmt::format("malformed {} message: its header says {} bytes, it has {}",
                                       kNames[header.type], header.payload_bytes,
                                       decoder.remaining()));
  }
  Message message = kFactories[header.type]();
  if (!std::visit([&](auto& payload) { return decoder.Get(payload); }, message)) {
    return Malformed(header.type, decoder.problem());
  }
  if (decoder.remaining() != 0) return Malformed(header.type, "bytes behind its last field");
  return message;
}

StatusCode ErrorCodeFrom(uint8_t code) {
  if (code == static_cast<uint8_t>(StatusCode::kOk)) return StatusCode::kInternal;
  return static_cast<StatusCode>(
      std::min<uint8_t>(code, static_cast<uint8_t>(StatusCode::kInternal)));
}

FrameSplitter::FrameSplitter(size_t frame_bytes_max)
    : FrameSplitter(frame_bytes_max, kMessageMagic) {}

FrameSplitter::FrameSplitter(size_t frame_bytes_max, uint32_t magic)
    : frame_bytes_max_(frame_bytes_max), magic_(magic) {}

void FrameSplitter::Append(std::span<const uint8_t> bytes) {
  if (begin_ > 0) {
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<ptrdiff_t>(begin_));
    begin_ = 0;
  }
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

Result<std::span<const uint8_t>> FrameSplitter::Next() {
  const std::span<const uint8_t> held = std::span(buffer_).subspan(begin_);
  wire::FrameHeader header;
  if (held.size() < wire::FrameHeader::kBytes) return std::span<const uint8_t>();
  wire::Decoder(held).Get(header);
  if (header.magic != magic_) {
    return InvalidArgument(
        fmt::format("not an ExpertFlow stream (a frame starts with {:#010x})", header.magic));
  }
  const size_t frame_bytes = wire::FrameHeader::kBytes + size_t{header.payload_bytes};
  if (frame_bytes > frame_bytes_max_) {
    return InvalidArgument(fmt::format("a message of {} bytes is longer than the limit of {}",
                                       frame_bytes, frame_bytes_max_));
  }
  if (held.size() < frame_bytes) return std::span<const uint8_t>();
  begin_ += frame_bytes;
  return held.first(frame_bytes);
}

}  // namespace expertflow

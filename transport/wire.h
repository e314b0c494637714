// Messages as bytes. The only door through which bytes of another process become a Message: it
// checks every bound and every enum and never trusts a count, so what it returns is well-formed
// (whether it makes sense is the receiver's business). Fuzzed by tests/fuzz/fuzz_wire.cpp.
//
// A message is {u32 magic, u16 protocol version, u16 type, u32 payload bytes}, then its fields
// (wire_codec.h). The type is the alternative's index in Message. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "transport/messages.h"

namespace expertflow {

// "StartSequence", ...
std::string_view MessageName(const Message& message);

// The code of an error that a peer reports; anything that is not an error's code is kInternal.
StatusCode ErrorCodeFrom(uint8_t code);

std::vector<uint8_t> EncodeMessage(const Message& message);
// Exactly one message; trailing bytes are an error. kFailedPrecondition for a peer of another
// protocol version, kInvalidArgument for anything else that is wrong.
Result<Message> DecodeMessage(std::span<const uint8_t> bytes);

// Cuts a byte stream into frames by their headers, for sockets. Holds at most one frame of
// `frame_bytes_max` plus what one Append() brought.
class FrameSplitter {
 public:
  // Splits frames that start with `magic`; the default is that of messages.
  explicit FrameSplitter(size_t frame_bytes_max);
  FrameSplitter(size_t frame_bytes_max, uint32_t magic);

  void Append(std::span<const uint8_t> bytes);
  // The next whole frame, header included, or an empty span when more bytes are needed; valid until
  // the next call of Append() or Next(). kInvalidArgument when the stream holds anything else; it
  // cannot be resumed then.
  Result<std::span<const uint8_t>> Next();
  // Bytes that are held and not yet returned.
  size_t pending_bytes() const { return buffer_.size() - begin_; }

 private:
  size_t frame_bytes_max_;
  uint32_t magic_;
  std::vector<uint8_t> buffer_;
  size_t begin_ = 0;
};

}  // namespace expertflow

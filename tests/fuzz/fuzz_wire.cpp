// Bytes from a peer: messages, the frames of a joiner, and the splitting of a stream. What decodes
// must encode to the same bytes again.
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "common/check.h"
#include "transport/rendezvous_protocol.h"
#include "transport/wire.h"

using namespace expertflow;  // NOLINT: a fuzz target is one function

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const uint8_t> input(data, size);
  const auto message = DecodeMessage(input);
  if (message.ok()) {
    const std::vector<uint8_t> again = EncodeMessage(*message);
    CHECK(std::equal(again.begin(), again.end(), input.begin(), input.end()));
  }
  rendezvous::Decode<rendezvous::Challenge>(rendezvous::Kind::kChallenge, input).ok();
  rendezvous::Decode<rendezvous::JoinRequest>(rendezvous::Kind::kJoinRequest, input).ok();
  rendezvous::Decode<rendezvous::JoinReply>(rendezvous::Kind::kJoinReply, input).ok();

  // The same frames come out however the stream is cut.
  constexpr size_t kFrameBytesMax = 4096;
  size_t frames[2] = {};
  size_t frame_bytes[2] = {};
  for (const int way : {0, 1}) {
    FrameSplitter splitter(kFrameBytesMax);
    const size_t step = way == 0 ? std::max<size_t>(size, 1) : 3;
    bool sound = true;
    for (size_t begin = 0; begin < size && sound; begin += step) {
      splitter.Append(input.subspan(begin, std::min(step, size - begin)));
      while (true) {
        const auto frame = splitter.Next();
        sound = frame.ok();
        if (!sound || frame->empty()) break;
        ++frames[way];
        frame_bytes[way] += frame->size();
      }
    }
  }
  CHECK(frames[0] == frames[1] && frame_bytes[0] == frame_bytes[1]);
  return 0;
}

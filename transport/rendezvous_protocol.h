// What a joiner and the RendezvousServer say to each other. Internal to transport/.
//
// server: Challenge. client: JoinRequest. server: JoinReply, and the connection ends. Frames are
// those of wire_codec.h with a magic of their own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "common/status.h"
#include "transport/message_fields.h"
#include "transport/messages.h"
#include "transport/wire_codec.h"

namespace expertflow::rendezvous {

inline constexpr uint32_t kMagic = 0x4a464645;  // "EFFJ" in memory order
inline constexpr size_t kRequestBytesMax = size_t{64} << 10;
inline constexpr size_t kReplyBytesMax = size_t{16} << 20;
inline constexpr size_t kSecretBytesMax = 256;

enum class Kind : uint16_t { kChallenge = 1, kJoinRequest = 2, kJoinReply = 3 };

struct Challenge {
  std::string server_nonce;
};
struct JoinRequest {
  std::string client_nonce;
  std::string proof;
  ProcessInfo info;
};
struct MemberEntry {
  int32_t id = -1;
  ProcessInfo info;
};
struct JoinReply {
  uint8_t code = 0;  // StatusCode; the rest is empty unless ok
  std::string message;
  std::string proof;
  int32_t id = -1;
  std::vector<MemberEntry> members;
};

template <wire::Is<Challenge> T>
auto Fields(T& m) {
  return std::tie(m.server_nonce);
}
template <wire::Is<JoinRequest> T>
auto Fields(T& m) {
  return std::tie(m.client_nonce, m.proof, m.info);
}
template <wire::Is<MemberEntry> T>
auto Fields(T& m) {
  return std::tie(m.id, m.info);
}
template <wire::Is<JoinReply> T>
auto Fields(T& m) {
  return std::tie(m.code, m.message, m.proof, m.id, m.members);
}

Status CheckSecret(std::string_view secret);
// 16 characters of crypt(3)'s salt alphabet: 96 random bits.
Result<std::string> MakeNonce();
bool IsNonce(std::string_view text);
// Only who knows `secret` can compute it. `role` ("server", "client") keeps one side's proof from
// being played back by the other. REQUIRES: IsNonce() of both, and a secret that passed its check
Result<std::string> Prove(std::string_view role, std::string_view secret,
                          std::string_view own_nonce, std::string_view other_nonce);
// In a time that does not depend on where they differ.
bool SameProof(std::string_view a, std::string_view b);

template <typename T>
std::vector<uint8_t> Encode(Kind kind, const T& payload) {
  return wire::EncodeFrame({kMagic, kProtocolVersion, static_cast<uint16_t>(kind), 0}, payload);
}
// Header checks of a received frame; another protocol version is refused by name.
Result<std::span<const uint8_t>> CheckFrame(Kind kind, std::span<const uint8_t> frame);
template <typename T>
Result<T> Decode(Kind kind, std::span<const uint8_t> frame) {
  ASSIGN_OR_RETURN(const std::span<const uint8_t> payload, CheckFrame(kind, frame));
  wire::Decoder decoder(payload);
  T value;
  if (!decoder.Get(value)) {
    return InvalidArgument(std::string("malformed frame: it has ") + decoder.problem());
  }
  if (decoder.remaining() != 0) return InvalidArgument("malformed frame: it has trailing bytes");
  return value;
}

}  // namespace expertflow::rendezvous

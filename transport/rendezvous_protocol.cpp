#include "transport/rendezvous_protocol.h"

#include <crypt.h>
#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <memory>

namespace expertflow::rendezvous {
namespace {

constexpr size_t kNonceChars = 16;
constexpr std::string_view kSaltAlphabet =
    "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
static_assert(kSaltAlphabet.size() == 64);

}  // namespace

Status CheckSecret(std::string_view secret) {
  if (secret.empty() || secret.size() > kSecretBytesMax ||
      secret.find('\0') != std::string_view::npos) {
    return InvalidArgument(
        fmt::format("the job secret has {} bytes; it must have 1 to {}, none of "
                    "them NUL",
                    secret.size(), kSecretBytesMax));
  }
  return OkStatus();
}

Result<std::string> MakeNonce() {
  uint8_t random[kNonceChars];
  if (::getrandom(random, sizeof(random), 0) != sizeof(random)) {
    return FromErrno(errno, "cannot get random bytes");
  }
  std::string nonce;
  for (const uint8_t byte : random) nonce.push_back(kSaltAlphabet[byte % kSaltAlphabet.size()]);
  return nonce;
}

bool IsNonce(std::string_view text) {
  return text.size() == kNonceChars &&
         text.find_first_not_of(kSaltAlphabet) == std::string_view::npos;
}

Result<std::string> Prove(std::string_view role, std::string_view secret,
                          std::string_view own_nonce, std::string_view other_nonce) {
  const std::string phrase = fmt::format("{}:{}:{}", role, own_nonce, secret);
  const std::string setting = fmt::format("$5$rounds=1000${}$", other_nonce);
  const auto data = std::make_unique<crypt_data>();
  const char* proof = crypt_r(phrase.c_str(), setting.c_str(), data.get());
  if (proof == nullptr || proof[0] == '*') return Internal("crypt(3) cannot hash with SHA-256");
  return std::string(proof);
}

bool SameProof(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<uint8_t>(a[i] ^ b[i]);
  return difference == 0;
}

Result<std::span<const uint8_t>> CheckFrame(Kind kind, std::span<const uint8_t> frame) {
  wire::Decoder decoder(frame);
  wire::FrameHeader header;
  if (!decoder.Get(header) || header.magic != kMagic) {
    return InvalidArgument("the other side is not an ExpertFlow process");
  }
  if (header.version != kProtocolVersion) {
    return InvalidArgument(
        fmt::format("peer speaks protocol {}, this is {}; all processes must be of one version",
                    header.version, kProtocolVersion));
  }
  if (header.type != static_cast<uint16_t>(kind)) {
    return InvalidArgument(
        fmt::format("frame of kind {} where {} is due", header.type, static_cast<uint16_t>(kind)));
  }
  return frame.subspan(wire::FrameHeader::kBytes);
}

}  // namespace expertflow::rendezvous

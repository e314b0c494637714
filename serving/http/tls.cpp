#include "serving/http/tls.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <array>
#include <cstddef>
#include <utility>

#include "common/check.h"
#include "common/log.h"
#include "common/mapped_file.h"

namespace expertflow {
namespace {

constexpr size_t kPemBytesMax = size_t{1} << 20;
constexpr size_t kRecordBytes = size_t{16} << 10;  // a record has no more

// Of the latest failure.
std::string Reason() {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason == nullptr ? "no reason given" : reason;
}

// OpenSSL would ask at the terminal.
int RefusePassword(char* /*buffer*/, int /*size*/, int /*writing*/, void* asked) {
  *static_cast<bool*>(asked) = true;
  return 0;
}

Status UseKey(SSL_CTX* context, const std::string& file) {
  ASSIGN_OR_RETURN(const std::string pem, ReadFileToString(file, kPemBytesMax));
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &BIO_free);
  bool password = false;
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      PEM_read_bio_PrivateKey(bio.get(), nullptr, &RefusePassword, &password), &EVP_PKEY_free);
  if (password) {
    ERR_clear_error();
    return InvalidArgument(file + ": the key has a password; remove it (openssl pkey)");
  }
  if (key == nullptr) {
    return InvalidArgument(fmt::format("{}: expected a private key (PEM): {}", file, Reason()));
  }
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    return InvalidArgument(
        fmt::format("{}: the key does not go with the certificate: {}", file, Reason()));
  }
  return OkStatus();
}

}  // namespace

// --- identity ----------------------------------------------------------------------------------

void TlsIdentity::ContextDeleter::operator()(ssl_ctx_st* context) const {
  SSL_CTX_free(context);
}

TlsIdentity::TlsIdentity(std::string certificate_file, std::string key_file)
    : certificate_file_(std::move(certificate_file)), key_file_(std::move(key_file)) {}
TlsIdentity::~TlsIdentity() = default;

Result<std::unique_ptr<TlsIdentity>> TlsIdentity::Load(std::string certificate_file,
                                                       std::string key_file) {
  std::unique_ptr<TlsIdentity> identity(
      new TlsIdentity(std::move(certificate_file), std::move(key_file)));
  RETURN_IF_ERROR(identity->Reload());
  return identity;
}

Status TlsIdentity::Reload() {
  ASSIGN_OR_RETURN(context_, ReadFiles());
  return OkStatus();
}

Result<TlsIdentity::Context> TlsIdentity::ReadFiles() const {
  // OpenSSL's own message about a file that cannot be read does not name it.
  RETURN_IF_ERROR(ReadFileToString(certificate_file_, kPemBytesMax).status());
  ERR_clear_error();
  Context context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr) return Internal("OpenSSL does not start: " + Reason());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  // An idle client costs no buffers.
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS);
  if (SSL_CTX_use_certificate_chain_file(context.get(), certificate_file_.c_str()) != 1) {
    return InvalidArgument(
        fmt::format("{}: expected a certificate (PEM): {}", certificate_file_, Reason()));
  }
  RETURN_IF_ERROR(UseKey(context.get(), key_file_));
  const X509* certificate = SSL_CTX_get0_certificate(context.get());
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
    LogWarning("{}: the certificate is no longer valid", certificate_file_);
  }
  return context;
}

std::unique_ptr<TlsSession> TlsIdentity::NewSession() const {
  return std::make_unique<TlsSession>(context_.get());
}

// --- session -----------------------------------------------------------------------------------

void TlsSession::SessionDeleter::operator()(ssl_st* session) const {
  SSL_free(session);
}

TlsSession::TlsSession(ssl_ctx_st* context) : session_(SSL_new(context)) {
  CHECK(session_ != nullptr);
  // The session frees them.
  SSL_set_bio(session_.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  SSL_set_accept_state(session_.get());
}
TlsSession::~TlsSession() = default;

TlsSession::Outcome TlsSession::Receive(std::string_view received, std::string* text,
                                        std::string* network) {
  ERR_clear_error();
  BIO_write(SSL_get_rbio(session_.get()), received.data(), static_cast<int>(received.size()));
  std::array<char, kRecordBytes> buffer;
  int count = 0;
  // The first of these goes through the handshake.
  while ((count = SSL_read(session_.get(), buffer.data(), static_cast<int>(buffer.size()))) > 0) {
    text->append(buffer.data(), static_cast<size_t>(count));
  }
  const int error = SSL_get_error(session_.get(), count);
  const bool plain =
      error == SSL_ERROR_SSL && ERR_GET_REASON(ERR_peek_error()) == SSL_R_HTTP_REQUEST;
  ERR_clear_error();
  if (plain) return Outcome::kPlainHttp;
  TakeOutput(network);
  switch (error) {
    case SSL_ERROR_WANT_READ: return Outcome::kOpen;
    case SSL_ERROR_ZERO_RETURN: return Outcome::kClosed;
    default: return Outcome::kBroken;
  }
}

bool TlsSession::established() const {
  return SSL_is_init_finished(session_.get()) == 1;
}

bool TlsSession::Send(std::string_view text, std::string* network) {
  if (text.empty()) return true;
  ERR_clear_error();
  size_t written = 0;
  // Into memory: takes all of it.
  const bool taken = SSL_write_ex(session_.get(), text.data(), text.size(), &written) == 1;
  TakeOutput(network);
  return taken;
}

void TlsSession::Close(std::string* network) {
  ERR_clear_error();
  SSL_shutdown(session_.get());
  TakeOutput(network);
}

void TlsSession::TakeOutput(std::string* network) {
  BIO* bio = SSL_get_wbio(session_.get());
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  if (size > 0) network->append(data, static_cast<size_t>(size));
  BIO_reset(bio);
}

}  // namespace expertflow

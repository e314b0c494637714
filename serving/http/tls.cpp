#include "serving/http/tls.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

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

// What both sides have in common.
Result<TlsContext> NewContext(const SSL_METHOD* method) {
  ERR_clear_error();
  TlsContext context(SSL_CTX_new(method));
  if (context == nullptr) return Internal("OpenSSL does not start: " + Reason());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  // An idle connection costs no buffers.
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS);
  return context;
}

bool IsAddress(const std::string& host) {
  in6_addr address;
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

}  // namespace

void TlsContextDeleter::operator()(ssl_ctx_st* context) const {
  SSL_CTX_free(context);
}

// --- identity ----------------------------------------------------------------------------------

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

Result<TlsContext> TlsIdentity::ReadFiles() const {
  // OpenSSL's own message about a file that cannot be read does not name it.
  RETURN_IF_ERROR(ReadFileToString(certificate_file_, kPemBytesMax).status());
  ASSIGN_OR_RETURN(TlsContext context, NewContext(TLS_server_method()));
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
  return std::make_unique<TlsSession>(context_.get(), TlsSession::Side::kServer);
}

// --- trust -------------------------------------------------------------------------------------

Result<std::unique_ptr<TlsTrust>> TlsTrust::InAuthorities(const std::string& file) {
  ASSIGN_OR_RETURN(TlsContext context, NewContext(TLS_client_method()));
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  // A file may name the server's own certificate, or one between it and a root.
  X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(context.get()), X509_V_FLAG_PARTIAL_CHAIN);
  if (file.empty()) {
    // Where there are none, servers have nobody who vouches for them.
    SSL_CTX_set_default_verify_paths(context.get());
    ERR_clear_error();
  } else {
    // OpenSSL's own message about a file that cannot be read does not name it.
    RETURN_IF_ERROR(ReadFileToString(file, kPemBytesMax).status());
    if (SSL_CTX_load_verify_file(context.get(), file.c_str()) != 1) {
      return InvalidArgument(fmt::format("{}: expected certificates (PEM): {}", file, Reason()));
    }
  }
  return std::unique_ptr<TlsTrust>(new TlsTrust(std::move(context)));
}

Result<std::unique_ptr<TlsTrust>> TlsTrust::InAnybody() {
  ASSIGN_OR_RETURN(TlsContext context, NewContext(TLS_client_method()));
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  return std::unique_ptr<TlsTrust>(new TlsTrust(std::move(context)));
}

std::unique_ptr<TlsSession> TlsTrust::NewSession(const std::string& host) const {
  auto session = std::make_unique<TlsSession>(context_.get(), TlsSession::Side::kClient);
  ssl_st* ssl = session->session_.get();
  // Only alternative names count, as in RFC 9525; the common name is for people.
  SSL_set_hostflags(ssl,
                    X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  if (IsAddress(host)) {
    CHECK(X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str()) == 1);
  } else {
    CHECK(SSL_set1_host(ssl, host.c_str()) == 1);
    // Fails for a name that is too long for the wire; the certificate is checked all the same.
    SSL_set_tlsext_host_name(ssl, host.c_str());
    ERR_clear_error();
  }
  return session;
}

// --- session -----------------------------------------------------------------------------------

void TlsSession::SessionDeleter::operator()(ssl_st* session) const {
  SSL_free(session);
}

TlsSession::TlsSession(ssl_ctx_st* context, Side side) : session_(SSL_new(context)) {
  CHECK(session_ != nullptr);
  // The session frees them.
  SSL_set_bio(session_.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  if (side == Side::kServer) {
    SSL_set_accept_state(session_.get());
  } else {
    SSL_set_connect_state(session_.get());
  }
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
  if (error == SSL_ERROR_SSL) {
    const int code = ERR_GET_REASON(ERR_peek_error());
    // A server is asked in plain HTTP; a client reads whatever such a server says to its hello.
    const bool plain = code == (SSL_is_server(session_.get()) == 1 ? SSL_R_HTTP_REQUEST
                                                                   : SSL_R_WRONG_VERSION_NUMBER);
    if (plain) {
      ERR_clear_error();
      return Outcome::kPlainHttp;
    }
    const long verified = SSL_get_verify_result(session_.get());
    reason_ = verified == X509_V_OK ? Reason() : X509_verify_cert_error_string(verified);
  }
  ERR_clear_error();
  TakeOutput(network);
  switch (error) {
    case SSL_ERROR_WANT_READ: return Outcome::kOpen;
    case SSL_ERROR_ZERO_RETURN: return Outcome::kClosed;
    default: return Outcome::kBroken;
  }
}

TlsSession::CertificateFault TlsSession::certificate_fault() const {
  if (SSL_get_verify_mode(session_.get()) == SSL_VERIFY_NONE) return CertificateFault::kNone;
  switch (SSL_get_verify_result(session_.get())) {
    case X509_V_OK: return CertificateFault::kNone;
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH: return CertificateFault::kName;
    case X509_V_ERR_CERT_HAS_EXPIRED:
    case X509_V_ERR_CERT_NOT_YET_VALID: return CertificateFault::kTime;
    default: return CertificateFault::kAuthority;
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

// TLS of the HTTP server and of our clients, by OpenSSL and without sockets: a session turns what
// came from the network into what the other side says, and what it shall get into what goes to the
// network. So reading, writing, limits and time-outs are the same with and without it.
//
// TLS 1.2 or later, no renegotiation, no session cache (the server's tickets resume). One thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "common/status.h"

struct ssl_ctx_st;
struct ssl_st;

namespace expertflow {

class TlsSession;

struct TlsContextDeleter {
  void operator()(ssl_ctx_st* context) const;
};
using TlsContext = std::unique_ptr<ssl_ctx_st, TlsContextDeleter>;

// A server's certificate and key.
class TlsIdentity {
 public:
  // PEM files: the certificate, followed by those that vouch for it, and its key, which has no
  // password. An error names the file.
  static Result<std::unique_ptr<TlsIdentity>> Load(std::string certificate_file,
                                                   std::string key_file);
  ~TlsIdentity();

  // Reads the files anew, for sessions that begin later. After an error all is as it was.
  Status Reload();
  std::unique_ptr<TlsSession> NewSession() const;

 private:
  TlsIdentity(std::string certificate_file, std::string key_file);
  Result<TlsContext> ReadFiles() const;

  const std::string certificate_file_;
  const std::string key_file_;
  TlsContext context_;
};

// Whose certificates a client takes.
class TlsTrust {
 public:
  // Those that one of the authorities in a PEM file vouches for, or, without a file, one that the
  // system knows. An error names the file.
  static Result<std::unique_ptr<TlsTrust>> InAuthorities(const std::string& file);
  // Anybody's: whoever sits in between can read and change everything.
  static Result<std::unique_ptr<TlsTrust>> InAnybody();

  // With the server of that name or address, which its certificate must have among its alternative
  // names. The session's first Receive(), of nothing, begins the handshake.
  std::unique_ptr<TlsSession> NewSession(const std::string& host) const;

 private:
  explicit TlsTrust(TlsContext context) : context_(std::move(context)) {}

  const TlsContext context_;
};

// One side of a connection.
class TlsSession {
 public:
  enum class Side { kServer, kClient };
  TlsSession(ssl_ctx_st* context, Side side);
  ~TlsSession();

  enum class Outcome {
    kOpen,
    kClosed,     // the other side says nothing more
    kPlainHttp,  // it does not speak TLS but HTTP; `network` got nothing
    kBroken,     // the connection cannot go on: see reason()
  };
  // Appends what the other side says to `text`, and what it must get to `network`, whatever the
  // outcome.
  Outcome Receive(std::string_view received, std::string* text, std::string* network);
  // Until then nothing has been said, and nothing may be sent.
  bool established() const;
  // False: the session is broken. REQUIRES: established()
  [[nodiscard]] bool Send(std::string_view text, std::string* network);
  // Says that nothing follows. REQUIRES: established()
  void Close(std::string* network);

  // Why it is broken, in OpenSSL's words.
  const std::string& reason() const { return reason_; }
  enum class CertificateFault {
    kNone,
    kAuthority,  // nobody who is trusted vouches for it
    kName,       // it is another one's
    kTime,       // it is not valid now
  };
  // Of the other side's certificate, for which the session is broken.
  CertificateFault certificate_fault() const;

 private:
  friend class TlsTrust;
  struct SessionDeleter {
    void operator()(ssl_st* session) const;
  };

  void TakeOutput(std::string* network);

  const std::unique_ptr<ssl_st, SessionDeleter> session_;
  std::string reason_;
};

}  // namespace expertflow

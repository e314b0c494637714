// TLS of the HTTP server, by OpenSSL and without sockets: a session turns what came from the
// network into what the client says, and what the client shall get into what goes to the network.
// So the server's reading, writing, limits and time-outs are the same with and without it.
//
// TLS 1.2 or later, no renegotiation, no session cache (tickets resume). One thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "common/status.h"

struct ssl_ctx_st;
struct ssl_st;

namespace expertflow {

class TlsSession;

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
  struct ContextDeleter {
    void operator()(ssl_ctx_st* context) const;
  };
  using Context = std::unique_ptr<ssl_ctx_st, ContextDeleter>;

  TlsIdentity(std::string certificate_file, std::string key_file);
  Result<Context> ReadFiles() const;

  const std::string certificate_file_;
  const std::string key_file_;
  Context context_;
};

// The server's side of one connection.
class TlsSession {
 public:
  explicit TlsSession(ssl_ctx_st* context);
  ~TlsSession();

  enum class Outcome {
    kOpen,
    kClosed,     // the client says nothing more
    kPlainHttp,  // it does not speak TLS but HTTP; `network` got nothing
    kBroken,     // the connection cannot go on
  };
  // Appends what the client says to `text`, and what it must get to `network`, whatever the
  // outcome.
  Outcome Receive(std::string_view received, std::string* text, std::string* network);
  // Until then the client has said nothing, and nothing may be sent.
  bool established() const;
  // False: the session is broken. REQUIRES: established()
  [[nodiscard]] bool Send(std::string_view text, std::string* network);
  // Says that nothing follows. REQUIRES: established()
  void Close(std::string* network);

 private:
  struct SessionDeleter {
    void operator()(ssl_st* session) const;
  };

  void TakeOutput(std::string* network);

  const std::unique_ptr<ssl_st, SessionDeleter> session_;
};

}  // namespace expertflow

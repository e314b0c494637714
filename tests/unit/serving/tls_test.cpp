#include "serving/http/tls.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <openssl/ssl.h>

#include <filesystem>
#include <fstream>

#include "tests/certificate.h"
#include "tests/unit/serving/http_server_testing.h"

namespace expertflow {
namespace {

using ::testing::HasSubstr;

// Certificates and keys in a folder of the test's own.
class TlsTest : public HttpServerTest {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "tls-" + std::to_string(::getpid());
    std::filesystem::create_directory(folder_);
    Make("first");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string File(const std::string& name) const { return folder_ + "/" + name; }
  // NAME.pem and NAME.key
  void Make(const std::string& name) const { Certificate({.common_name = name}).Write(File(name)); }
  void StartTls(HttpServerOptions options = {}) {
    auto identity = TlsIdentity::Load(File("first.pem"), File("first.key"));
    ASSERT_TRUE(identity.ok()) << identity.status().message();
    identity_ = std::move(*identity);
    options.tls = identity_.get();
    Start(options);
  }

  std::string folder_;
  std::unique_ptr<TlsIdentity> identity_;
};

// OpenSSL's side of a client. The server runs while the client waits.
class TlsClient {
 public:
  explicit TlsClient(UniqueFd fd, int version_max = 0)
      : fd_(std::move(fd)),
        context_(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free),
        session_(nullptr, &SSL_free) {
    // Old versions are only there at this level.
    if (version_max != 0) SSL_CTX_set_cipher_list(context_.get(), "DEFAULT:@SECLEVEL=0");
    SSL_CTX_set_max_proto_version(context_.get(), version_max);
    session_.reset(SSL_new(context_.get()));
    SSL_set_fd(session_.get(), fd_.get());
    const int flags = ::fcntl(fd_.get(), F_GETFL);
    ::fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK);
  }

  const UniqueFd& fd() const { return fd_; }
  // 1: done; 0: not yet; -1: refused
  int Connect() {
    const int result = SSL_connect(session_.get());
    if (result == 1) return 1;
    return SSL_get_error(session_.get(), result) == SSL_ERROR_WANT_READ ? 0 : -1;
  }
  bool Write(const std::string& text) {
    return SSL_write(session_.get(), text.data(), static_cast<int>(text.size())) ==
           static_cast<int>(text.size());
  }
  // What has come by now; "<closed>" at its end when the server said that nothing follows.
  const std::string& Read() {
    char buffer[4096];
    int count = 0;
    while ((count = SSL_read(session_.get(), buffer, sizeof(buffer))) > 0) {
      all_.append(buffer, static_cast<size_t>(count));
    }
    if (SSL_get_error(session_.get(), count) == SSL_ERROR_ZERO_RETURN && !closed_) {
      closed_ = true;
      all_ += "<closed>";
    }
    return all_;
  }
  std::string ServersName() const {
    X509* certificate = SSL_get1_peer_certificate(session_.get());
    char name[100] = "";
    X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name,
                              sizeof(name));
    X509_free(certificate);
    return name;
  }

 private:
  UniqueFd fd_;
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
  std::unique_ptr<SSL, decltype(&SSL_free)> session_;
  bool closed_ = false;
  std::string all_;
};

TEST_F(TlsTest, FilesThatAreNoneAreNamed) {
  Make("other");
  std::ofstream(File("text")) << "hello\n";
  Certificate({}).WriteKey(File("locked.key"), "x");
  const struct {
    const char* certificate;
    const char* key;
    std::vector<const char*> words;
  } cases[] = {{"none.pem", "first.key", {"none.pem", "No such file"}},
               {"first.pem", "none.key", {"none.key", "No such file"}},
               {"text", "first.key", {"text", "expected a certificate (PEM)"}},
               {"first.pem", "text", {"text", "expected a private key (PEM)"}},
               {"first.pem", "other.key", {"other.key", "does not go with the certificate"}},
               {"first.pem", "locked.key", {"locked.key", "password"}}};
  for (const auto& test : cases) {
    const auto identity = TlsIdentity::Load(File(test.certificate), File(test.key));
    ASSERT_FALSE(identity.ok());
    for (const char* words : test.words) {
      EXPECT_THAT(std::string(identity.status().message()), HasSubstr(words));
    }
  }
}

TEST_F(TlsTest, RequestsInPiecesPipelinedAndStreamed) {
  StartTls();
  TlsClient client(Connect());
  ASSERT_TRUE(Until([&] { return client.Connect() == 1; }));
  ASSERT_TRUE(client.Write("POST /a HTTP/1.1\r\nHost: x\r\nContent-Len"));
  server_->HandleEvents();
  ASSERT_TRUE(client.Write("gth: 3\r\n\r\nabc"));
  ASSERT_TRUE(Until([&] { return client.Read().ends_with("POST /a abc"); })) << client.Read();
  ASSERT_TRUE(
      client.Write("GET /later HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\n"
                   "Connection: close\r\n\r\n"));
  ASSERT_TRUE(Until([&] { return echo_.requests.size() == 2; }));
  const HttpConnectionId id = echo_.requests[1].connection;
  server_->StartStream(id, "text/event-stream");
  server_->Send(id, "hello");
  ASSERT_TRUE(Until([&] { return client.Read().ends_with("5\r\nhello\r\n"); })) << client.Read();
  // More than the network takes at once.
  server_->Send(id, std::string(size_t{8} << 20, 'x'));
  server_->EndStream(id);
  ASSERT_TRUE(Until([&] { return client.Read().ends_with("GET /2 <closed>"); }));
  EXPECT_GT(client.Read().size(), size_t{8} << 20);
}

TEST_F(TlsTest, AClientThatResetsIsGone) {
  StartTls();
  UniqueFd fd = Connect();
  const int copy = ::dup(fd.get());
  TlsClient client(std::move(fd));
  ASSERT_TRUE(Until([&] { return client.Connect() == 1; }));
  ASSERT_TRUE(client.Write("GET /later HTTP/1.1\r\nHost: x\r\n\r\n"));
  ASSERT_TRUE(Until([&] { return echo_.requests.size() == 1; }));
  ::shutdown(copy, SHUT_RDWR);
  ::close(copy);
  EXPECT_TRUE(Until([&] { return echo_.gone.size() == 1; }));
}

TEST_F(TlsTest, OldVersionsAreRefused) {
  StartTls();
  TlsClient old(Connect(), TLS1_1_VERSION);
  int result = 0;
  ASSERT_TRUE(Until([&] { return (result = old.Connect()) != 0; }));
  EXPECT_EQ(result, -1);
  TlsClient client(Connect(), TLS1_2_VERSION);
  EXPECT_TRUE(Until([&] { return client.Connect() == 1; }));
}

TEST_F(TlsTest, PlainHttpIsToldSo) {
  StartTls();
  const UniqueFd client = Connect();
  Write(client, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string answer = Read(client, "");
  EXPECT_THAT(answer, HasSubstr("HTTP/1.1 400 Bad Request"));
  EXPECT_THAT(answer, HasSubstr("https://"));
  EXPECT_TRUE(answer.ends_with("<closed>"));
  EXPECT_TRUE(echo_.requests.empty());
}

TEST_F(TlsTest, WhatIsNoTlsEndsTheConnectionAndNothingElse) {
  StartTls();
  const UniqueFd noise = Connect();
  Write(noise, "nonsense\r\n\r\n");
  EXPECT_TRUE(Read(noise, "").ends_with("<closed>"));
  TlsClient broken(Connect());
  ASSERT_TRUE(Until([&] { return broken.Connect() == 1; }));
  Write(broken.fd(), std::string("\x17\x03\x03\x00\x20", 5) + std::string(32, 'x'));
  EXPECT_TRUE(Until([&] {
    char byte = 0;
    broken.Read();
    return ::recv(broken.fd().get(), &byte, 1, MSG_DONTWAIT) == 0;
  }));
  TlsClient client(Connect());
  ASSERT_TRUE(Until([&] { return client.Connect() == 1; }));
  ASSERT_TRUE(client.Write("GET /b HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_TRUE(Until([&] { return client.Read().ends_with("GET /b "); }));
}

TEST_F(TlsTest, AHandshakeThatTricklesIsGivenUpLikeASlowRequest) {
  StartTls({.request_timeout_ns = 1'000'000'000, .idle_timeout_ns = 5'000'000'000});
  const UniqueFd slow = Connect();
  TlsClient idle(Connect());
  ASSERT_TRUE(Until([&] { return idle.Connect() == 1; }));
  const int64_t now_ns = NowNs();
  Write(slow, std::string("\x16\x03\x01\x02\x00\x01", 6));
  server_->HandleEvents();
  server_->OnTick(now_ns + 500'000'000);
  Write(slow, std::string("\x00\x01\xfc", 3));  // more of it gains no time
  server_->HandleEvents();
  EXPECT_EQ(server_->stats().connections, 2U);
  server_->OnTick(now_ns + 2'000'000'000);
  EXPECT_EQ(Read(slow, ""), "<closed>");
  EXPECT_EQ(server_->stats().timed_out, 1U);
  // One that is established waits like any other.
  ASSERT_TRUE(idle.Write("GET /c HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_TRUE(Until([&] { return idle.Read().ends_with("GET /c "); }));
}

TEST_F(TlsTest, ANewCertificateIsForNewClients) {
  StartTls();
  TlsClient before(Connect());
  ASSERT_TRUE(Until([&] { return before.Connect() == 1; }));
  std::ofstream(File("first.key")) << "no key";
  EXPECT_FALSE(identity_->Reload().ok());
  TlsClient still(Connect());
  ASSERT_TRUE(Until([&] { return still.Connect() == 1; }));
  EXPECT_EQ(still.ServersName(), "first");
  Make("second");
  std::filesystem::rename(File("second.pem"), File("first.pem"));
  std::filesystem::rename(File("second.key"), File("first.key"));
  ASSERT_TRUE(identity_->Reload().ok());
  TlsClient after(Connect());
  ASSERT_TRUE(Until([&] { return after.Connect() == 1; }));
  EXPECT_EQ(after.ServersName(), "second");
  ASSERT_TRUE(before.Write("GET /d HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_TRUE(Until([&] { return before.Read().ends_with("GET /d "); }));
}

}  // namespace
}  // namespace expertflow

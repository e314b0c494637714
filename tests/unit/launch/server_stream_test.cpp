// What `chat`, `top` and `bench serve` have in common: a server behind http or https, believed or
// not, and what is said when it is not there, or another one.
#include "launch/load/server_stream.h"

#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "launch/load/http_exchange.h"
#include "launch/load/load_client.h"
#include "tests/certificate.h"
#include "tests/loopback_listener.h"
#include "tests/unit/serving/http_server_testing.h"

namespace expertflow {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ServerStreamTest : public HttpServerTest {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "stream-" + std::to_string(::getpid());
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string File(const std::string& name) const { return folder_ + "/" + name; }
  void StartTls(const Certificate& certificate, HttpServerOptions options = {}) {
    certificate.Write(File("server"));
    auto identity = TlsIdentity::Load(File("server.pem"), File("server.key"));
    ASSERT_TRUE(identity.ok()) << identity.status().message();
    identity_ = std::move(*identity);
    options.tls = identity_.get();
    Start(options);
  }
  std::string Port() const {
    const std::string address = server_->address();
    return address.substr(address.rfind(':') + 1);
  }
  // `trusted` is a PEM file; empty: whoever answers. Null for http.
  ServerTarget Target(const std::string& scheme, const std::string& host, const std::string& port,
                      const std::string* trusted = nullptr) const {
    auto url = ServerUrl::Parse(scheme + "://" + host + ":" + port);
    EXPECT_TRUE(url.ok());
    std::shared_ptr<const TlsTrust> trust;
    if (trusted != nullptr) {
      auto made = trusted->empty() ? TlsTrust::InAnybody() : TlsTrust::InAuthorities(*trusted);
      EXPECT_TRUE(made.ok()) << made.status().message();
      trust = std::move(*made);
    }
    auto target = ServerTarget::Find(*url, trust);
    EXPECT_TRUE(target.ok()) << target.status().message();
    return *target;
  }
  // The server works while the client does.
  void Meanwhile(const std::function<void()>& client) {
    std::atomic<bool> done = false;
    std::thread thread([&] {
      client();
      done = true;
    });
    EXPECT_TRUE(Until([&] { return done.load(); }));
    thread.join();
  }
  std::string Get(const ServerTarget& target) {
    std::string answer;
    Meanwhile([&] {
      const auto got = HttpGet(target, "/a", "", Deadline::AfterMs(10'000));
      answer = got.ok() ? *got : got.status().message();
    });
    return answer;
  }

  std::string folder_;
  std::unique_ptr<TlsIdentity> identity_;
};

TEST_F(ServerStreamTest, AnswersAreTheSameWithAndWithoutTls) {
  const std::string body(size_t{6} << 20, 'x');  // more than the network takes at once
  for (const bool tls : {false, true}) {
    HttpServerOptions options;
    options.request_bytes_max = size_t{8} << 20;
    if (tls) {
      StartTls(Certificate({}), options);
    } else {
      Start(options);
    }
    const std::string trusted = File("server.pem");
    const ServerTarget target =
        Target(tls ? "https" : "http", "localhost", Port(), tls ? &trusted : nullptr);
    EXPECT_EQ(Get(target), "GET /a ");
    std::string answer;
    AnswerReader reader([&answer](std::string_view text) { answer = text; });
    Status status;
    Meanwhile([&] {
      status = Exchange(target,
                        target.url.Head("POST", "/b", "") +
                            "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body,
                        {}, &reader);
    });
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(answer, "POST /b " + body);
    server_.reset();
  }
}

TEST_F(ServerStreamTest, WhoIsNotToBeTrustedIsNamedWithWhatToDo) {
  const Certificate authority({.common_name = "authority", .is_authority = true});
  const Certificate other({.common_name = "authority", .is_authority = true});
  authority.WriteCertificate(File("authority.pem"));
  other.WriteCertificate(File("other.pem"));
  const struct {
    const char* host;
    CertificateOptions certificate;
    const char* trusted;
    std::vector<const char*> words;  // none: it is trusted
  } cases[] = {
      {"localhost", {}, "authority.pem", {}},
      {"127.0.0.1", {}, "authority.pem", {}},
      {"localhost", {}, "server.pem", {}},
      {"localhost", {}, "other.pem", {"no known authority", "--ca-file"}},
      {"localhost",
       {.alternative_names = "DNS:elsewhere"},
       "authority.pem",
       {"not for localhost", "a name that it has"}},
      {"127.0.0.1",
       {.alternative_names = "DNS:localhost,IP:127.0.0.2"},
       "authority.pem",
       {"not for 127.0.0.1", "a name that it has"}},
      // The common name says nothing.
      {"localhost", {.alternative_names = ""}, "authority.pem", {"not for localhost"}},
      {"localhost", {.valid_s = 1800}, "authority.pem", {"has expired", "renew it", "clock"}},
  };
  for (const auto& test : cases) {
    StartTls(Certificate(test.certificate, &authority));
    const std::string trusted = File(test.trusted);
    const ServerTarget target = Target("https", test.host, Port(), &trusted);
    const std::string answer = Get(target);
    if (test.words.empty()) {
      EXPECT_EQ(answer, "GET /a ") << test.host;
    } else {
      EXPECT_THAT(answer, HasSubstr("https://" + std::string(test.host) + ":" + Port() + ": "));
      EXPECT_THAT(answer, Not(HasSubstr("\n")));
      for (const char* words : test.words) EXPECT_THAT(answer, HasSubstr(words));
      EXPECT_TRUE(echo_.requests.empty());  // the key of a request is for nobody else
    }
    const std::string anybody;
    EXPECT_EQ(Get(Target("https", test.host, Port(), &anybody)), "GET /a ");
    server_.reset();
    echo_.requests.clear();
  }
  // What the system trusts is not made here.
  StartTls(Certificate({}));
  auto system = TlsTrust::InAuthorities("");
  ASSERT_TRUE(system.ok()) << system.status().message();
  ServerTarget target = Target("http", "localhost", Port());
  target.url.secure = true;
  target.trust = std::move(*system);
  EXPECT_THAT(Get(target), HasSubstr("--ca-file"));
}

TEST_F(ServerStreamTest, FilesOfAuthoritiesThatAreNoneAreNamed) {
  std::ofstream(File("text")) << "hello\n";
  for (const char* name : {"none", "text"}) {
    const auto trust = TlsTrust::InAuthorities(File(name));
    ASSERT_FALSE(trust.ok());
    EXPECT_THAT(trust.status().message(), HasSubstr(File(name)));
  }
}

TEST_F(ServerStreamTest, TheOtherSchemeIsNamed) {
  Start();
  const std::string anybody;
  EXPECT_THAT(Get(Target("https", "127.0.0.1", Port(), &anybody)), HasSubstr("use http://"));
  server_.reset();
  StartTls(Certificate({}));
  // Our server says so itself.
  EXPECT_THAT(Get(Target("http", "127.0.0.1", Port())), HasSubstr("use https://"));
}

// A server that is none: takes what comes and answers with `answer`.
class Listener {
 public:
  explicit Listener(std::string answer) : answer_(std::move(answer)) {
    const timeval patience{.tv_sec = 20, .tv_usec = 0};
    EXPECT_EQ(::setsockopt(socket_.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
    thread_ = std::thread([this] {
      // Where a host has several addresses, one connection may only try whether somebody is there.
      while (received_.empty()) {
        const UniqueFd client = socket_.Accept();
        if (!client.valid()) break;  // nobody comes
        char buffer[4096];
        ssize_t count = 0;
        while ((count = ::recv(client.get(), buffer, sizeof(buffer), 0)) > 0) {
          received_.append(buffer, static_cast<size_t>(count));
          (void)!::send(client.get(), answer_.data(), answer_.size(), MSG_NOSIGNAL);
        }
      }
    });
  }
  std::string port() const { return std::to_string(socket_.port()); }
  // All, when the client is gone.
  const std::string& Received() {
    thread_.join();
    return received_;
  }

 private:
  const std::string answer_;
  const LoopbackListener socket_{16};
  std::string received_;
  std::thread thread_;
};

TEST_F(ServerStreamTest, AServerThatSpeaksTlsToPlainHttpIsToldApart) {
  Listener alert(std::string("\x15\x03\x01\x00\x02\x02\x46", 7));
  const auto got =
      HttpGet(Target("http", "127.0.0.1", alert.port()), "/", "", Deadline::AfterMs(10'000));
  ASSERT_FALSE(got.ok());
  EXPECT_THAT(got.status().message(), HasSubstr("use https://"));
  alert.Received();
}

TEST_F(ServerStreamTest, AHandshakeThatDoesNotEndIsGivenUp) {
  const std::string anybody;
  Listener silent("");
  const auto got = HttpGet(Target("https", "localhost", silent.port(), &anybody), "/", "",
                           Deadline::AfterMs(300));
  EXPECT_EQ(got.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(got.status().message(), HasSubstr("handshake"));
  const std::string hello = silent.Received();
  // It asks for the host by name, and for TLS 1.3 or 1.2.
  EXPECT_THAT(hello, HasSubstr("localhost"));
  EXPECT_THAT(hello, HasSubstr(std::string("\x00\x2b\x00\x05\x04\x03\x04\x03\x03", 9)));

  Listener stuck("");
  const auto outcomes = RunLoad(Target("https", "127.0.0.1", stuck.port(), &anybody),
                                {{0, "GET / HTTP/1.1\r\n\r\n"}}, {.timeout_ns = 300'000'000});
  ASSERT_TRUE(outcomes.ok());
  EXPECT_FALSE((*outcomes)[0].ok);
  EXPECT_EQ((*outcomes)[0].sent_ns, 0);
  EXPECT_THAT((*outcomes)[0].error, HasSubstr("within the time"));
  EXPECT_THAT(stuck.Received(), Not(HasSubstr("GET")));
}

// Whoever cuts a connection must not be able to cut an answer that ends with it.
TEST_F(ServerStreamTest, ACutConnectionIsNoEndOfAnAnswer) {
  for (const bool cut : {false, true}) {
    StartTls(Certificate({}));
    const std::string trusted = File("server.pem");
    const ServerTarget target = Target("https", "localhost", Port(), &trusted);
    AnswerReader reader;
    Status status;
    std::thread client(
        [&] { status = Exchange(target, "GET /later HTTP/1.0\r\n\r\n", {}, &reader); });
    EXPECT_TRUE(Until([&] { return !echo_.requests.empty(); }));
    const HttpConnectionId id = echo_.requests[0].connection;
    server_->StartStream(id, "text/plain");
    server_->Send(id, "hello");
    if (!cut) server_->EndStream(id);
    EXPECT_TRUE(Until([&] { return server_->Flushed(); }));
    server_.reset();
    client.join();
    EXPECT_EQ(status.ok(), !cut) << status.message();
    EXPECT_THAT(status.message(), HasSubstr(cut ? "broken off" : ""));
    echo_.requests.clear();
  }
}

TEST_F(ServerStreamTest, ALoadGoesOverTlsToo) {
  constexpr size_t kRequests = 60;
  StartTls(Certificate({}));
  const std::string trusted = File("server.pem");
  const ServerTarget target = Target("https", "localhost", Port(), &trusted);
  std::vector<LoadRequest> requests;
  for (size_t i = 0; i < kRequests; ++i) {
    // Some at once, and some that find a connection free.
    requests.push_back({static_cast<int64_t>(i / 6) * 20'000'000,
                        target.url.Head("GET", "/" + std::to_string(i), "") + "\r\n"});
  }
  std::vector<LoadOutcome> outcomes;
  Meanwhile([&] {
    auto run = RunLoad(target, requests, {.timeout_ns = 20'000'000'000});
    ASSERT_TRUE(run.ok()) << run.status().message();
    outcomes = std::move(*run);
  });
  ASSERT_EQ(outcomes.size(), kRequests);
  for (size_t i = 0; i < kRequests; ++i) {
    EXPECT_TRUE(outcomes[i].ok) << outcomes[i].error;
    EXPECT_EQ(outcomes[i].due_ns, requests[i].at_ns);
    EXPECT_GE(outcomes[i].sent_ns, outcomes[i].due_ns);
    EXPECT_GE(outcomes[i].done_ns, outcomes[i].sent_ns);
  }
  EXPECT_EQ(echo_.requests.size(), kRequests);

  Certificate({.common_name = "other"}).WriteCertificate(File("other.pem"));
  const std::string other = File("other.pem");
  const ServerTarget stranger = Target("https", "localhost", Port(), &other);
  Meanwhile([&] {
    auto run = RunLoad(stranger, requests, {.timeout_ns = 20'000'000'000});
    ASSERT_TRUE(run.ok()) << run.status().message();
    outcomes = std::move(*run);
  });
  for (const LoadOutcome& outcome : outcomes) {
    EXPECT_FALSE(outcome.ok);
    EXPECT_THAT(outcome.error, HasSubstr("--ca-file"));
  }
  EXPECT_EQ(echo_.requests.size(), kRequests);
}

}  // namespace
}  // namespace expertflow

// `expertflow chat`, `top` and `bench serve` before a server of https.
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>

#include "tests/certificate.h"
#include "tests/process/folder_test.h"
#include "tests/process/server.h"

namespace expertflow::testing {
namespace {

using ::testing::HasSubstr;

class HttpsClientsTest : public FolderTest {
 protected:
  static std::unique_ptr<Program> Client(std::vector<std::string> arguments,
                                         const std::vector<std::string>& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    if (arguments[0] != "chat") return std::make_unique<Program>(arguments);
    std::vector<std::string> talk = {"/bin/sh", "-c", "echo Hello | \"$0\" \"$@\"",
                                     EXPERTFLOW_PROGRAM};
    talk.insert(talk.end(), arguments.begin(), arguments.end());
    return std::make_unique<Program>(Program::Whole(), talk, std::vector<std::string>());
  }
  static void ExpectRefused(Program& program, int code, const std::vector<std::string>& words) {
    EXPECT_EQ(program.Wait(), code) << program.err();
    const std::string err = program.err();
    EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
    for (const std::string& word : words) EXPECT_THAT(err, HasSubstr(word));
  }

  const std::vector<std::vector<std::string>> clients_ = {
      {"chat", "--temperature", "0", "--max-tokens", "12"},
      {"top", "--interval", "100ms", "--looks", "1"},
      {"bench", "serve", "--requests", "20", "--rate", "100", "--prompt-tokens", "5",
       "--max-tokens", "8"}};
};

TEST_F(HttpsClientsTest, TalkToAServerThatIsTrusted) {
  Certificate({}).Write(folder_ + "/server");
  const std::string trusted = folder_ + "/server.pem";
  Server server({"--tls-cert", trusted, "--tls-key", folder_ + "/server.key"});
  const std::string port = std::to_string(server.port());
  const std::string url = "https://localhost:" + port;
  std::string said;
  for (const auto& client : clients_) {
    const auto program = Client(client, {"--url", url, "--ca-file", trusted});
    EXPECT_EQ(program->Wait(), 0) << program->err();
    EXPECT_EQ(program->err(), "");
    EXPECT_THAT(program->out(), HasSubstr(client[0] == "bench" ? "20 of 20 requests done"
                                          : client[0] == "top" ? "ready   1 workers"
                                                               : "\n"));
    if (client[0] == "chat") said = program->out();

    const auto insecure = Client(client, {"--url", url, "--insecure"});
    EXPECT_EQ(insecure->Wait(), 0) << insecure->err();
    EXPECT_THAT(insecure->err(), HasSubstr("--insecure: nobody verifies that " + url));
    if (client[0] == "chat") {
      EXPECT_EQ(insecure->out(), said);
    }

    const auto stranger = Client(client, {"--url", url});
    ExpectRefused(*stranger, 1, {url + ": ", "--ca-file"});
    const auto plain = Client(client, {"--url", "http://localhost:" + port});
    ExpectRefused(*plain, 1, {"http://localhost:" + port, "use https://"});
  }
  EXPECT_GT(said.size(), 5U);
  server.ExpectEnds();
}

TEST_F(HttpsClientsTest, RefuseWhatIsWrongInUrlAndOptions) {
  for (const auto& client : clients_) {
    const struct {
      std::vector<std::string> arguments;
      std::vector<std::string> words;
    } cases[] = {
        {{"--url", "ftp://a"}, {"--url", "ftp://a", "https://host"}},
        {{"--url", "https://127.0.0.1:port"}, {"--url", "https://127.0.0.1:port", "correct"}},
        {{"--url", "https://127.0.0.1:1", "--ca-file", "/none.pem"}, {"--ca-file", "/none.pem"}},
        {{"--url", "http://127.0.0.1:1", "--ca-file", "/none.pem"}, {"--ca-file", "is for https"}},
        {{"--url", "http://127.0.0.1:1", "--insecure"}, {"--insecure", "is for https"}},
        {{"--url", "https://127.0.0.1:1", "--insecure", "--ca-file", "/none.pem"},
         {"--insecure", "leave out"}}};
    for (const auto& test : cases) {
      const auto program = Client(client, test.arguments);
      ExpectRefused(*program, 2, test.words);
    }
    const auto nobody = Client(client, {"--url", "https://127.0.0.1:1"});
    ExpectRefused(*nobody, 1,
                  {"https://127.0.0.1:1: ", "Connection refused; is the server running?"});
  }
}

}  // namespace
}  // namespace expertflow::testing

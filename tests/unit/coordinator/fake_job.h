// A coordinator with stores, workers and clients that are objects of the test. Workers generate a
// script: the token at position p depends on p alone, as with a real model and greedy sampling it
// depends on the tokens before it alone.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/coordinator.h"
#include "tests/unit/model_tokenizer/small_tokenizer.h"

namespace expertflow::testing {

inline constexpr int64_t kMs = 1'000'000;
inline constexpr int64_t kSecond = 1'000'000'000;

inline ServedModel SmallServedModel() {
  auto tokenizer = Tokenizer::Parse(SmallTokenizerJson().dump(), "small.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  ServedModel model;
  model.tokenizer = std::move(tokenizer).value();
  model.vocab = 301;
  model.context = 64;
  model.eos = {300};
  return model;
}

class FakeJob final : public CoordinatorPort {
 public:
  FakeJob() : model(SmallServedModel()) {
    options.workers_expected = 1;
    options.start_timeout_ns = 60 * kSecond;
    options.sequences_per_worker_max = 4;
    options.queued_requests_max = 8;
  }

  // --- what the coordinator asks for ---
  void Send(ProcessId process, const Message& message) override {
    EXPECT_FALSE(gone.contains(process)) << "a message to a process that was given up";
    sent[process].push_back(message);
    if (const auto* start = std::get_if<StartSequence>(&message)) {
      EXPECT_TRUE(running[process].emplace(start->sequence, *start).second);
    }
    if (const auto* cancel = std::get_if<CancelSequence>(&message)) {
      running[process].erase(cancel->sequence);
    }
  }
  void Disconnect(ProcessId process) override {
    gone.insert(process);
    running.erase(process);
  }
  void Kill(ProcessId process) override { killed.push_back(process); }
  bool SendToClient(ClientId client, const Message& message) override {
    if (slow_clients.contains(client)) return false;
    received[client].push_back(message);
    return true;
  }
  Result<int64_t> Spawn(ProcessRole role) override {
    spawned.push_back(role);
    if (!spawn_status.ok()) return spawn_status;
    return int64_t{900} + static_cast<int64_t>(spawned.size());
  }
  void KillChild(int64_t pid) override { killed_children.push_back(pid); }
  std::optional<PublishBoard> Board() override { return PublishBoard{100, 9, 77}; }
  void PostOnBoard(const Message& message) override { board.push_back(message); }
  void SetBoardWord(uint64_t word) override { board_words.push_back(word); }

  // --- events ---
  void Create() {
    coordinator = std::make_unique<Coordinator>(options, model, *this, now_ns);
    coordinator->SetSelf(MemberOf(0, ProcessRole::kCoordinator));
  }
  Member MemberOf(int32_t id, ProcessRole role, int64_t pid = 0,
                  const std::string& host = "a") const {
    Member member;
    member.id = ProcessId(id);
    member.info.role = role;
    member.info.host = host;
    member.info.pid = pid == 0 ? 100 + id : pid;
    return member;
  }
  void Join(int32_t id, ProcessRole role, int64_t pid = 0, const std::string& host = "a") {
    coordinator->OnMember(MemberOf(id, role, pid, host), now_ns);
  }
  void JoinLater(int32_t id, ProcessRole role, int64_t pid = 0, const std::string& host = "a") {
    coordinator->OnJoiner(MemberOf(id, role, pid, host), now_ns);
  }
  void Say(int32_t id, const Message& message) {
    coordinator->OnMessage(ProcessId(id), message, now_ns);
    Check();
  }
  void Die(int32_t id) {
    coordinator->OnProcessGone(ProcessId(id), "killed", now_ns);
    Check();
  }
  static StoreReady Segment(const std::string& fingerprint = "f") {
    StoreReady ready;
    ready.name = "segment";
    ready.fingerprint = fingerprint;
    return ready;
  }
  // A store (id 1) and `workers` (ids 2, ...), all ready, and one client (id 1).
  void Start(int32_t workers = 1) {
    options.workers_expected = workers;
    Create();
    coordinator->OnClient(ClientId(1));
    Join(1, ProcessRole::kStore);
    for (int32_t i = 0; i < workers; ++i) Join(2 + i, ProcessRole::kWorker);
    Say(1, Segment());
    for (int32_t i = 0; i < workers; ++i) Say(2 + i, WorkerReady{.arithmetic = "16 lanes"});
  }
  // Lets time pass as the loop does: a tick each half second, heartbeats of all but `silent`.
  void Pass(int64_t ns, const std::set<int32_t>& silent = {}) {
    for (const int64_t end_ns = now_ns + ns; now_ns < end_ns;) {
      now_ns += 500 * kMs;
      for (int32_t id = 1; id < 20; ++id) {
        if (!silent.contains(id)) coordinator->OnMessage(ProcessId(id), Heartbeat{}, now_ns);
      }
      coordinator->OnTick(now_ns);
      Check();
    }
  }
  void Submit(uint64_t request, const std::string& text, uint32_t tokens,
              std::vector<std::string> stop = {}, int32_t client = 1) {
    SubmitRequest submit;
    submit.request = request;
    submit.text = text;
    submit.max_new_tokens = tokens;
    submit.stop = std::move(stop);
    FromClient(client, submit);
  }
  void FromClient(int32_t client, const Message& message) {
    coordinator->OnClientMessage(ClientId(client), message, now_ns);
    Check();
  }
  // One step of a worker: the next token of each of its sequences.
  void Step(int32_t worker) {
    now_ns += kMs;
    StepReport report;
    auto& sequences = running[ProcessId(worker)];
    for (auto& [sequence, start] : sequences) {
      const auto position = static_cast<uint32_t>(start.tokens.size());
      const uint32_t generated = position - start.prompt_tokens;
      const int32_t token = static_cast<uint8_t>(script[generated % script.size()]);
      start.tokens.push_back(token);
      report.tokens.push_back(
          {sequence, position, token,
           generated + 1 == start.max_new_tokens ? FinishReason::kLength : FinishReason::kNone});
    }
    for (const TokenEvent& event : report.tokens) {
      if (event.finish != FinishReason::kNone) sequences.erase(event.sequence);
    }
    Say(worker, report);
  }
  void RunAll(const std::vector<int32_t>& workers, int steps_max = 200) {
    for (int i = 0; i < steps_max; ++i) {
      for (const int32_t worker : workers) {
        if (!running[ProcessId(worker)].empty()) Step(worker);
      }
    }
  }
  void Check() const {
    const Status status = coordinator->placement().CheckInvariants();
    EXPECT_TRUE(status.ok()) << status.ToString();
  }

  // --- what clients and processes got ---
  template <typename T>
  std::vector<T> Got(int32_t client = 1) const {
    return Only<T>(received, ClientId(client));
  }
  template <typename T>
  std::vector<T> SentTo(int32_t process) const {
    return Only<T>(sent, ProcessId(process));
  }
  std::string Text(uint64_t request, int32_t client = 1) const {
    std::string text;
    for (const TextDelta& delta : Got<TextDelta>(client)) {
      if (delta.request == request) text += delta.text;
    }
    return text;
  }
  size_t TokensOf(uint64_t request, int32_t client = 1) const {
    size_t tokens = 0;
    for (const TextDelta& delta : Got<TextDelta>(client)) {
      if (delta.request == request) tokens += delta.tokens.size();
    }
    return tokens;
  }
  // REQUIRES: the request has ended, once
  RequestDone Done(uint64_t request, int32_t client = 1) const {
    std::vector<RequestDone> found;
    for (const RequestDone& done : Got<RequestDone>(client)) {
      if (done.request == request) found.push_back(done);
    }
    EXPECT_EQ(found.size(), 1U) << "ends of request " << request;
    return found.empty() ? RequestDone{} : found.front();
  }
  JobState LastState() const {
    const auto states = Got<JobState>();
    return states.empty() ? JobState{} : states.back();
  }

  CoordinatorOptions options;
  ServedModel model;
  std::string script =
      "the \xC3\xA9"
      "cho ";
  int64_t now_ns = kSecond;
  std::unique_ptr<Coordinator> coordinator;
  std::map<ProcessId, std::vector<Message>> sent;
  std::map<ProcessId, std::map<SequenceId, StartSequence>> running;
  std::map<ClientId, std::vector<Message>> received;
  std::set<ProcessId> gone;
  std::set<ClientId> slow_clients;
  std::vector<ProcessId> killed;
  std::vector<ProcessRole> spawned;
  std::vector<int64_t> killed_children;
  std::vector<Message> board;  // what was posted
  std::vector<uint64_t> board_words;
  Status spawn_status;

 private:
  template <typename T, typename Map, typename Key>
  static std::vector<T> Only(const Map& messages, const Key& key) {
    std::vector<T> only;
    const auto found = messages.find(key);
    if (found == messages.end()) return only;
    for (const Message& message : found->second) {
      if (const T* one = std::get_if<T>(&message)) only.push_back(*one);
    }
    return only;
  }
};

}  // namespace expertflow::testing

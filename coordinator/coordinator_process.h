// The coordinator role: owns requests and decisions, never touches tensors (ARCHITECTURE 6).
//
// One thread, one loop: messages of workers and stores, clients on the control socket, joiners at
// the rendezvous, deaths, signals, timers. Workers run decode steps on their own; the coordinator
// is not on the critical path of a step.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/process.h"
#include "common/status.h"
#include "transport/transport.h"
#include "transport/wireup.h"

namespace expertflow {

struct CoordinatorOptions {
  std::string job;             // name; part of the segment's name
  std::string control_socket;  // AF_UNIX path where clients connect
  // Model folder: config.json (context length), tokenizer.json, generation_config.json (stop
  // tokens).
  std::string model;
  std::string tokenizer;              // file; empty: <model>/tokenizer.json
  std::vector<PublishTables> tables;  // that workers get
  bool shares_learning = true;        // what predictors of workers learn, among all of them
  bool shares_stride = true;          // one lead of the prefetch for all workers
  std::string join_address;           // "host:port" of the rendezvous; empty: loopback, a free port
  std::string join_secret;            // empty: a random one is made
  int32_t workers_expected = 1;
  int32_t stores_expected = 1;
  int32_t sequences_per_worker_max = 16;
  uint32_t queued_requests_max = 1024;
  int64_t start_timeout_ns = 600'000'000'000;  // until all workers are ready
  int64_t heartbeat_ns = 1'000'000'000;        // between our own, for processes of other hosts
  int64_t heartbeat_timeout_ns = 10'000'000'000;
  int64_t stall_timeout_ns = 120'000'000'000;  // busy without progress
  // Command lines that start a replacement; "--join ADDRESS" is appended, the secret goes through
  // the environment (EXPERTFLOW_JOIN_SECRET). Empty: a dead one is not replaced.
  std::vector<std::string> store_command;
  std::vector<std::string> worker_command;
  // Called at once after SIGINT or SIGTERM, before anybody is told: what must not stay goes here,
  // for mpirun may kill at any moment from then on. May be empty.
  std::function<void()> on_signal;
  // Requested options and where each came from, as a JSON object, shown by `status`.
  std::string requested_config;
};

// Runs until a client asks for shutdown, a signal arrives, or the job cannot go on. kCancelled
// after SIGINT or SIGTERM. `members` is what wire-up told; the transport's self is the coordinator.
Status RunCoordinator(const CoordinatorOptions& options, Transport& transport,
                      const std::vector<Member>& members, SignalWatcher& signals);

}  // namespace expertflow

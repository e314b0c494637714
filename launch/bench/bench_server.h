// `expertflow serve` as a child of a benchmark.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/process.h"
#include "common/status.h"
#include "launch/load/server_stream.h"

namespace expertflow {

class BenchServer {
 public:
  // Takes requests when this returns. `arguments` follow those that choose model and address.
  static Result<std::unique_ptr<BenchServer>> Start(const std::string& program,
                                                    const std::string& model,
                                                    const std::vector<std::string>& arguments);
  // Ends it.
  ~BenchServer();

  const ServerTarget& target() const { return target_; }

 private:
  BenchServer(ChildProcess child, ServerTarget target)
      : child_(std::move(child)), target_(std::move(target)) {}

  ChildProcess child_;
  ServerTarget target_;
};

}  // namespace expertflow

// Requests that come to several simulated devices: each is served whole, and what happens follows
// from the same policies as one device's steps.
#include "sim/job_simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "predictor/core/dynamic_stride.h"
#include "sim/measured_times.h"
#include "sim/shared_link.h"
#include "sim/synthetic_routing.h"
#include "worker/schedule/kv_blocks.h"

namespace expertflow {
namespace {

constexpr uint64_t kExpertBytes = 4'000'000;
constexpr int32_t kLayers = 4;
constexpr int32_t kExperts = 16;

constexpr MeasuredCosts kCosts = {.layer = 100'000,
                                  .layer_row = 1'000,
                                  .experts = 10'000,
                                  .expert = 40'000,
                                  .step_end = 200'000,
                                  .step_end_row = 5'000};

RoutingTrace Trace(int32_t sequences, int32_t tokens) {
  SyntheticRouting options;
  options.experts.assign(kLayers, kExperts);
  options.top_k = 4;
  options.sequences = sequences;
  options.tokens = tokens;
  return SynthesizeRouting(options);
}

// Our cache with predictions that are mostly right, or LRU on demand.
class Maker final : public SimDeviceMaker {
 public:
  Maker(const RoutingTrace& trace, int32_t slots, uint64_t rate, bool prefetch)
      : trace_(trace), slots_(slots), rate_(rate), prefetch_(prefetch) {}

  Result<SimJobDevice> Make(const Lockstep& lockstep) const override {
    SimJobDevice device;
    device.options.slots = {slots_};
    device.options.expert_bytes = kExpertBytes;
    device.options.link_bytes_per_second = rate_;
    device.options.link_latency_ns = 10'000;
    if (!prefetch_) {
      device.options.ranks = CacheRanks::kRecency;
      return device;
    }
    device.predictions =
        std::make_unique<NoisyOracle>(trace_, lockstep, std::vector<double>{0.9, 0.8}, 1);
    device.options.predictions = device.predictions.get();
    device.options.stride = std::make_unique<FixedStride>(1);
    return device;
  }

 private:
  const RoutingTrace& trace_;
  const int32_t slots_;
  const uint64_t rate_;
  const bool prefetch_;
};

SimJobOptions Options(int32_t devices) {
  SimJobOptions options;
  options.devices = devices;
  options.kv_blocks = 1'000;
  options.scheduler.sequences_max = 4;
  options.scheduler.prefill_tokens_max = 16;
  options.check_invariants = true;
  return options;
}

std::vector<SimRequest> Requests(const RoutingTrace& trace, int64_t every_ns, int32_t prompt) {
  std::vector<SimRequest> requests;
  for (size_t s = 0; s < trace.sequences.size(); ++s) {
    requests.push_back({static_cast<int64_t>(s) * every_ns, static_cast<int32_t>(s), prompt,
                        static_cast<int32_t>(trace.sequences[s].rows)});
  }
  return requests;
}

SimJobResult RunJob(const RoutingTrace& trace, const std::vector<SimRequest>& requests,
                    const SimDeviceMaker& maker, const SimJobOptions& options) {
  auto result = SimulateJob(trace, requests, MeasuredTimes(kCosts), maker, options);
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  return result.ok() ? *std::move(result) : SimJobResult{};
}

// One request after the other is what a single device does with the same steps.
TEST(JobSimulatorTest, OneAtATimeIsTheDevicesOwnSimulation) {
  const RoutingTrace trace = Trace(3, 20);
  const std::vector<SimRequest> requests = Requests(trace, 0, 6);
  for (const bool prefetch : {false, true}) {
    const Maker maker(trace, 24, 4'000'000'000, prefetch);
    SimJobOptions options = Options(1);
    options.scheduler.sequences_max = 1;
    const SimJobResult job = RunJob(trace, requests, maker, options);

    std::vector<RecordedRow> rows;
    uint32_t step = 0;
    for (const SimRequest& request : requests) {
      for (int32_t i = 0; i < request.rows; ++i) {
        const bool prompt = i < request.prompt_tokens;
        const bool last = i + 1 >= request.prompt_tokens;
        rows.push_back({step, request.sequence, prompt, last});
        step += last ? 1 : 0;
      }
    }
    const Lockstep lockstep = MakeRecordedSteps(trace, rows);
    auto device = maker.Make(lockstep);
    ASSERT_TRUE(device.ok());
    const auto alone =
        SimulateDevice(trace, lockstep, MeasuredTimes(kCosts), std::move(device->options));
    ASSERT_TRUE(alone.ok());
    ASSERT_EQ(job.devices.size(), 1u);
    EXPECT_EQ(job.devices[0].digest, alone->digest);
    EXPECT_EQ(job.devices[0].total_ns, alone->total_ns);
    EXPECT_EQ(job.devices[0].step_ns, alone->step_ns);
    EXPECT_EQ(job.total_ns, alone->total_ns);
  }
}

TEST(JobSimulatorTest, EveryRequestGetsAllItsTokensOnWhateverDevice) {
  const RoutingTrace trace = Trace(24, 30);
  for (const int32_t devices : {1, 2, 3}) {
    const std::vector<SimRequest> requests = Requests(trace, 3'000'000, 10);
    const SimJobResult job =
        RunJob(trace, requests, Maker(trace, 20, 8'000'000'000, true), Options(devices));
    std::vector<int32_t> served(static_cast<size_t>(devices));
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(job.requests[i].tokens, 30 - 10 + 1);
      EXPECT_GT(job.requests[i].first_token_ns, requests[i].arrival_ns);
      EXPECT_GT(job.requests[i].end_ns, job.requests[i].first_token_ns);
      ++served[static_cast<size_t>(job.requests[i].device)];
    }
    EXPECT_EQ(job.tokens, 24u * 21u);
    EXPECT_EQ(job.gaps_ns.size(), 24u * 20u);
    EXPECT_GT(*std::min_element(served.begin(), served.end()), 0);
    uint64_t rows = 0;
    for (const DeviceSimResult& device : job.devices) rows += device.tokens + device.prefill_tokens;
    EXPECT_EQ(rows, 24u * 30u);
    EXPECT_EQ(job.preemptions, 0u);
  }
}

TEST(JobSimulatorTest, EqualRunsAreEqual) {
  const RoutingTrace trace = Trace(12, 24);
  SimJobOptions options = Options(2);
  options.shared_bytes_per_second = 5'000'000'000;
  const auto run = [&] {
    return RunJob(trace, Requests(trace, 1'000'000, 8), Maker(trace, 20, 4'000'000'000, true),
                  options);
  };
  const SimJobResult a = run();
  const SimJobResult b = run();
  EXPECT_EQ(a.gaps_ns, b.gaps_ns);
  EXPECT_EQ(a.devices[0].digest, b.devices[0].digest);
  EXPECT_EQ(a.devices[1].digest, b.devices[1].digest);
}

TEST(JobSimulatorTest, ANarrowSharedLinkMakesDevicesWait) {
  const RoutingTrace trace = Trace(16, 24);
  const std::vector<SimRequest> requests = Requests(trace, 0, 4);
  const Maker maker(trace, 12, 8'000'000'000, false);
  SimJobOptions options = Options(4);
  const SimJobResult alone = RunJob(trace, requests, maker, options);
  options.shared_bytes_per_second = 1'000'000'000'000;
  const SimJobResult wide = RunJob(trace, requests, maker, options);
  options.shared_bytes_per_second = 8'000'000'000;
  const SimJobResult narrow = RunJob(trace, requests, maker, options);
  const auto stall = [](const SimJobResult& job) {
    int64_t sum = 0;
    for (const DeviceSimResult& device : job.devices) sum += device.stall_ns;
    return sum;
  };
  // Nearly as if it were not there, and never less than what all copies take in a row.
  EXPECT_LT(wide.total_ns, alone.total_ns * 101 / 100);
  EXPECT_GT(stall(narrow), 2 * stall(alone));
  EXPECT_GE(narrow.total_ns, narrow.shared_busy_ns);
  uint64_t bytes = 0;
  for (const DeviceSimResult& device : narrow.devices) {
    bytes += device.bytes_demand + device.bytes_prefetch;
  }
  EXPECT_NEAR(static_cast<double>(narrow.shared_busy_ns), static_cast<double>(bytes) / 8.0,
              static_cast<double>(bytes) * 1e-3);
}

TEST(JobSimulatorTest, ASmallKvCachePreemptsAndEverybodyStillEnds) {
  const RoutingTrace trace = Trace(8, 60);
  SimJobOptions options = Options(1);
  options.kv_blocks = KvBlocks::BlocksFor(60) + 2;
  const SimJobResult job =
      RunJob(trace, Requests(trace, 0, 5), Maker(trace, 24, 8'000'000'000, true), options);
  EXPECT_GT(job.preemptions, 0u);
  for (const SimRequestResult& request : job.requests) EXPECT_EQ(request.tokens, 56);
  EXPECT_EQ(job.devices[0].tokens + job.devices[0].prefill_tokens > 8u * 60u, true);
}

TEST(JobSimulatorTest, ARequestThatNeverFitsIsNamed) {
  const RoutingTrace trace = Trace(1, 60);
  SimJobOptions options = Options(1);
  options.kv_blocks = KvBlocks::BlocksFor(60) - 1;
  const auto job = SimulateJob(trace, Requests(trace, 0, 5), MeasuredTimes(kCosts),
                               Maker(trace, 24, 8'000'000'000, false), options);
  ASSERT_FALSE(job.ok());
  EXPECT_NE(job.status().message().find("request 0 has 60 tokens"), std::string::npos);
}

TEST(SharedLinkTest, GivesOutTheFirstFreeTimes) {
  SharedLink link(1'000'000'000);  // a byte a nanosecond
  const auto take = [&](int64_t from_ns, uint64_t bytes) {
    const SharedLink::Passage passage = link.Take(from_ns, bytes);
    return std::pair(passage.begin_ns, passage.end_ns);
  };
  EXPECT_EQ(take(100, 50), std::pair(int64_t{100}, int64_t{150}));
  EXPECT_EQ(take(100, 50), std::pair(int64_t{150}, int64_t{200}));
  EXPECT_EQ(take(300, 100), std::pair(int64_t{300}, int64_t{400}));
  EXPECT_EQ(take(120, 60), std::pair(int64_t{200}, int64_t{260}));
  EXPECT_EQ(take(120, 60), std::pair(int64_t{260}, int64_t{420}));  // in two pieces
  EXPECT_EQ(take(0, 100), std::pair(int64_t{0}, int64_t{100}));
  EXPECT_EQ(take(0, 1), std::pair(int64_t{420}, int64_t{421}));  // all is taken before
  EXPECT_EQ(link.busy_ns(), 421);
  link.Forget(421);
  EXPECT_EQ(take(421, 1), std::pair(int64_t{421}, int64_t{422}));
}

// Copies of any size at any time: the link is never idle while one waits, and nothing is moved
// faster than it can.
TEST(SharedLinkTest, LosesNoTime) {
  SharedLink link(1'000'000'000);
  uint64_t state = 1;
  const auto below = [&](uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
  };
  std::vector<bool> taken(20'000);
  for (int i = 0; i < 200; ++i) {
    const auto from = static_cast<size_t>(below(5'000));
    uint64_t left = 1 + below(40);
    const SharedLink::Passage passage = link.Take(static_cast<int64_t>(from), left);
    size_t at = from;
    while (taken[at]) ++at;
    EXPECT_EQ(passage.begin_ns, static_cast<int64_t>(at));
    for (; left > 0; ++at) {
      if (taken[at]) continue;
      taken[at] = true;
      --left;
    }
    EXPECT_EQ(passage.end_ns, static_cast<int64_t>(at));
  }
}

}  // namespace
}  // namespace expertflow

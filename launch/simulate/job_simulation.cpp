#include "launch/simulate/job_simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/units.h"
#include "launch/simulate/hardware_profiles.h"
#include "sim/arms.h"
#include "worker/schedule/kv_blocks.h"

namespace expertflow {
namespace {

std::vector<SimRequest> RequestsOf(const RoutingTrace& trace,
                                   const std::vector<Arrival>& arrivals) {
  std::vector<SimRequest> requests;
  for (const Arrival& arrival : arrivals) {
    SimRequest request;
    request.arrival_ns = arrival.at_ns;
    request.sequence = static_cast<int32_t>(requests.size() % trace.sequences.size());
    const size_t rows = trace.sequences[static_cast<size_t>(request.sequence)].rows;
    // The last token that is generated is not computed.
    const int64_t wanted = int64_t{arrival.prompt_tokens} + arrival.max_tokens - 1;
    request.rows = static_cast<int32_t>(std::min<int64_t>(wanted, static_cast<int64_t>(rows)));
    request.prompt_tokens = std::min(arrival.prompt_tokens, request.rows);
    requests.push_back(request);
  }
  return requests;
}

class ArmMaker final : public SimDeviceMaker {
 public:
  ArmMaker(std::string arm, const ArmSetup& setup, const JobCell& cell)
      : arm_(std::move(arm)), setup_(setup), cell_(cell) {}

  Result<SimJobDevice> Make(const Lockstep& lockstep) const override {
    ArmSetup setup = setup_;
    setup.lockstep = &lockstep;
    ASSIGN_OR_RETURN(Arm arm, MakeArm(arm_, setup, cell_.model.expert_bytes));
    if (arm.options.ranks == CacheRanks::kOracle) {
      return InvalidArgument(
          fmt::format("arm {}: it knows which experts come next, and with requests that are yet to "
                      "be scheduled nobody does",
                      arm_));
    }
    SetDevice(cell_.hardware, cell_.room.slots, &arm.options);
    return SimJobDevice{std::move(arm.options), std::move(arm.predictions)};
  }

 private:
  const std::string arm_;
  const ArmSetup setup_;
  const JobCell& cell_;
};

// What a report shows of an arm.
struct JobCellFigures {
  Percentiles ttft_ms;
  Percentiles tpot_ms;
  Percentiles gap_ms;
  double seconds = 0;
  double tokens_per_second = 0;
  double good_per_second = 0;  // requests within the service level
  double stall_share = 0;      // of the time that devices run steps
  double hit_share = 0;
  double bytes_per_token = 0;
  double link_share = 0;  // of the time, the mean over devices
  double shared_share = 0;
};

JobCellFigures JobCellFiguresOf(const JobCell& cell, const SimJobResult& result) {
  JobCellFigures figures;
  std::vector<float> ttft;
  std::vector<float> tpot;
  double good = 0;
  const ServiceLevel& level = cell.options.level;
  for (size_t i = 0; i < result.requests.size(); ++i) {
    const SimRequestResult& r = result.requests[i];
    const double first_ms =
        static_cast<double>(r.first_token_ns - cell.requests[i].arrival_ns) / 1e6;
    const double each_ms =
        Ratio(static_cast<double>(r.end_ns - r.first_token_ns) / 1e6, r.tokens - 1);
    ttft.push_back(static_cast<float>(first_ms));
    if (r.tokens > 1) tpot.push_back(static_cast<float>(each_ms));
    const bool in_time = level.ttft_ms == 0 || first_ms <= level.ttft_ms;
    good += in_time && (level.tpot_ms == 0 || each_ms <= level.tpot_ms) ? 1 : 0;
  }
  std::vector<float> gaps;
  for (const int64_t ns : result.gaps_ns) gaps.push_back(static_cast<float>(ns) / 1e6F);
  figures.ttft_ms = PercentilesOf(std::move(ttft));
  figures.tpot_ms = PercentilesOf(std::move(tpot));
  figures.gap_ms = PercentilesOf(std::move(gaps));
  double stall = 0;
  double running = 0;
  double hits = 0;
  double uses = 0;
  double bytes = 0;
  double link = 0;
  for (const DeviceSimResult& device : result.devices) {
    stall += static_cast<double>(device.stall_ns);
    for (const int64_t ns : device.step_ns) running += static_cast<double>(ns);
    hits += static_cast<double>(device.hits);
    uses += static_cast<double>(device.hits + device.late_hits + device.misses);
    bytes += static_cast<double>(device.bytes_demand + device.bytes_prefetch);
    link += static_cast<double>(device.link_busy_ns);
  }
  const auto total = static_cast<double>(result.total_ns);
  figures.seconds = total / 1e9;
  figures.tokens_per_second = Ratio(static_cast<double>(result.tokens), figures.seconds);
  figures.good_per_second = Ratio(good, figures.seconds);
  figures.stall_share = Ratio(stall, running);
  figures.hit_share = Ratio(hits, uses);
  figures.bytes_per_token = Ratio(bytes, static_cast<double>(result.tokens));
  figures.link_share = Ratio(link, total * static_cast<double>(result.devices.size()));
  figures.shared_share = Ratio(static_cast<double>(result.shared_busy_ns), total);
  return figures;
}

std::string Headline(const JobCell& cell) {
  const size_t experts = cell.model.layers.size() * static_cast<size_t>(cell.model.experts);
  std::string text = fmt::format(
      "{} on {} x {} (simulated): {} of {} experts resident on each ({:.0f} %), {} each; KV cache "
      "of {} tokens, {} sequences at once; link {}",
      cell.model.name, cell.options.devices, cell.hardware.name, cell.room.slots, experts,
      100 * cell.room.resident, FormatBytes(cell.model.expert_bytes), cell.kv_tokens,
      cell.options.each.batch,
      FormatBytesPerSecond(static_cast<double>(cell.hardware.link_bytes_per_second)));
  if (cell.options.shared_bytes_per_second > 0) {
    text += fmt::format(
        ", all links together {}",
        FormatBytesPerSecond(static_cast<double>(cell.options.shared_bytes_per_second)));
  }
  return text;
}

nlohmann::json PercentilesJson(const Percentiles& p) {
  return {{"p50", p.p50}, {"p90", p.p90}, {"p95", p.p95},
          {"p99", p.p99}, {"max", p.max}, {"mean", p.mean}};
}

}  // namespace

Result<JobCell> SimulateJobCell(const SimModel& model, const HardwareProfile& hardware,
                                const RoutingTrace& trace, const std::string& routing,
                                const JobSimulationOptions& options) {
  JobCell cell;
  cell.model = model;
  cell.hardware = hardware;
  cell.routing = routing;
  cell.options = options;
  cell.requests = RequestsOf(trace, options.arrivals);
  int32_t longest = 1;
  for (const SimRequest& request : cell.requests) longest = std::max(longest, request.rows);
  const auto block_bytes = model.kv_bytes_per_token * static_cast<uint64_t>(kKvBlockTokens);
  int64_t blocks = KvBlocks::BlocksFor(longest) * options.each.batch;
  if (options.kv_bytes > 0 && block_bytes > 0) {
    blocks = static_cast<int64_t>(options.kv_bytes / block_bytes);
  }
  cell.kv_tokens = blocks * kKvBlockTokens;
  if (blocks < KvBlocks::BlocksFor(longest)) {
    return ResourceExhausted(fmt::format(
        "{}: a KV cache of {} tokens is too small for a request of {}; raise --kv-cache",
        model.name, cell.kv_tokens, longest));
  }
  ASSIGN_OR_RETURN(cell.room, RoomForExperts(model, hardware, options.each.memory_bytes,
                                             static_cast<uint64_t>(blocks) * block_bytes));
  const std::vector<uint64_t> uses = TrainingUses(trace);
  const ArmSetup setup = ArmSetupFor(trace, uses, options.each);
  SimJobOptions job;
  job.devices = options.devices;
  job.kv_blocks = blocks;
  job.scheduler.sequences_max = options.each.batch;
  job.scheduler.prefill_tokens_max = options.prefill_tokens_max;
  job.shared_bytes_per_second = options.shared_bytes_per_second;
  const Roofline roofline(cell.model, cell.hardware);
  for (const std::string& name : options.each.arms) {
    ASSIGN_OR_RETURN(SimJobResult result,
                     SimulateJob(trace, cell.requests, roofline, ArmMaker(name, setup, cell), job));
    cell.arms.push_back({name, std::move(result)});
  }
  return cell;
}

std::string JobSimulationTable(const std::vector<JobCell>& cells) {
  std::string text;
  for (const JobCell& cell : cells) {
    text += fmt::format("\n{}\nhardware: {}\nrouting: {}\nrequests: {}, {}\n", Headline(cell),
                        DescribeHardware(cell.hardware), cell.routing, cell.requests.size(),
                        cell.options.arrivals_from);
    text += fmt::format(
        "  {:<23} {:>9} {:>9} {:>17} {:>17} {:>9} {:>7} {:>6} {:>12} {:>6} {:>6} {:>9}\n", "arm",
        "tokens/s", "good/s", "TTFT p50, p99 ms", "TPOT p50, p99 ms", "gap p99", "stall", "hit",
        "bytes/token", "link", "shared", "preempted");
    for (const JobArm& arm : cell.arms) {
      const JobCellFigures f = JobCellFiguresOf(cell, arm.result);
      text += fmt::format(
          "  {:<23} {:>9.1f} {:>9.3f} {:>8.1f} {:>8.1f} {:>8.2f} {:>8.2f} {:>6.1f} ms {:>5.1f} % "
          "{:>4.0f} % {:>12} {:>4.0f} % {:>4.0f} % {:>9}\n",
          arm.arm, f.tokens_per_second, f.good_per_second, f.ttft_ms.p50, f.ttft_ms.p99,
          f.tpot_ms.p50, f.tpot_ms.p99, f.gap_ms.p99, 100 * f.stall_share, 100 * f.hit_share,
          FormatBytes(static_cast<uint64_t>(f.bytes_per_token)), 100 * f.link_share,
          100 * f.shared_share, arm.result.preemptions);
    }
  }
  text += "\ngood: requests within the service level. Every figure here is simulated.\n";
  return text;
}

std::string JobSimulationJson(const std::vector<JobCell>& cells) {
  nlohmann::json json = {{"format", "expertflow-simulate-job"},
                         {"version", 1},
                         {"simulated", true},
                         {"rows", nlohmann::json::array()}};
  for (const JobCell& cell : cells) {
    for (const JobArm& arm : cell.arms) {
      const JobCellFigures f = JobCellFiguresOf(cell, arm.result);
      nlohmann::json devices = nlohmann::json::array();
      for (const DeviceSimResult& d : arm.result.devices) {
        devices.push_back({{"steps", d.steps},
                           {"tokens", d.tokens},
                           {"prefill_tokens", d.prefill_tokens},
                           {"total_ns", d.total_ns},
                           {"stall_ns", d.stall_ns},
                           {"hits", d.hits},
                           {"late_hits", d.late_hits},
                           {"misses", d.misses},
                           {"bytes_demand", d.bytes_demand},
                           {"bytes_prefetch", d.bytes_prefetch},
                           {"bytes_wasted", d.bytes_wasted},
                           {"link_busy_ns", d.link_busy_ns},
                           {"digest", fmt::format("{:016x}", d.digest)}});
      }
      json["rows"].push_back({{"model", cell.model.name},
                              {"hardware", cell.hardware.name},
                              {"profile", HardwareJson(cell.hardware)},
                              {"routing", cell.routing},
                              {"arrivals", cell.options.arrivals_from},
                              {"requests", cell.requests.size()},
                              {"sequences_max", cell.options.each.batch},
                              {"slots", cell.room.slots},
                              {"resident", cell.room.resident},
                              {"kv_tokens", cell.kv_tokens},
                              {"link_bytes_per_second", cell.hardware.link_bytes_per_second},
                              {"shared_bytes_per_second", cell.options.shared_bytes_per_second},
                              {"arm", arm.arm},
                              {"tokens", arm.result.tokens},
                              {"total_ns", arm.result.total_ns},
                              {"tokens_per_second", f.tokens_per_second},
                              {"good_per_second", f.good_per_second},
                              {"ttft_ms", PercentilesJson(f.ttft_ms)},
                              {"tpot_ms", PercentilesJson(f.tpot_ms)},
                              {"gap_ms", PercentilesJson(f.gap_ms)},
                              {"preemptions", arm.result.preemptions},
                              {"shared_busy_ns", arm.result.shared_busy_ns},
                              {"devices", std::move(devices)}});
    }
  }
  return json.dump(2);
}

}  // namespace expertflow

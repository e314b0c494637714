#include "sim/job_simulator.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "common/check.h"
#include "coordinator/policy/placement.h"
#include "sim/shared_link.h"
#include "worker/schedule/kv_blocks.h"

namespace expertflow {
namespace {

// The shared link is tidied up after so many layers.
constexpr uint64_t kForgetLayers = 1024;

class JobSimulator {
 public:
  JobSimulator(const RoutingTrace& trace, std::span<const SimRequest> requests,
               const SimJobOptions& options)
      : trace_(trace),
        requests_(requests),
        options_(options),
        placement_({.sequences_per_worker_max = options.scheduler.sequences_max,
                    .queued_max = UINT32_MAX}) {
    if (options.shared_bytes_per_second > 0) shared_.emplace(options.shared_bytes_per_second);
  }

  Status Init(const ComputeTimes& compute, const SimDeviceMaker& maker);
  Result<SimJobResult> Run();

 private:
  enum class Doing : uint8_t { kNothing, kLayers, kStepEnd };
  struct Device {
    Device(const RoutingTrace& trace, const SchedulerOptions& options, int64_t kv_blocks)
        : steps(trace, options.sequences_max),
          scheduler(options, kv_blocks),
          lanes(static_cast<size_t>(options.sequences_max)) {}

    LockstepBuilder steps;
    std::unique_ptr<PredictionSource> predictions;
    std::unique_ptr<SimulatedDevice> device;
    StepScheduler scheduler;
    std::vector<bool> lanes;  // taken
    Doing doing = Doing::kNothing;
    std::vector<StepPlan::Rows> rows;  // of the step
  };
  struct Request {
    ScheduledSequence scheduled;
    Device* device = nullptr;
    int32_t lane = -1;
    int64_t latest_token_ns = 0;
    SimRequestResult result;
  };

  Request& Of(SequenceId id) { return running_[static_cast<size_t>(id.value - 1)]; }
  // The next device that has something to do; null: none has.
  Device* Next();
  void Arrive(size_t request);
  // Gives waiting requests to devices that have places, from `now_ns` on.
  void Assign(int64_t now_ns);
  void BeginStep(Device* device);
  void AddRows(Device* device, const StepPlan::Rows& rows);
  void EndStep(Device* device);
  void Token(Request* request, int64_t now_ns);

  const RoutingTrace& trace_;
  const std::span<const SimRequest> requests_;
  const SimJobOptions options_;
  Placement placement_;
  std::optional<SharedLink> shared_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<Request> running_;  // by request
  uint64_t layers_ = 0;
  SimJobResult result_;
};

Status JobSimulator::Init(const ComputeTimes& compute, const SimDeviceMaker& maker) {
  running_.resize(requests_.size());
  for (size_t i = 0; i < requests_.size(); ++i) {
    const SimRequest& r = requests_[i];
    const size_t rows = trace_.sequences[static_cast<size_t>(r.sequence)].rows;
    CHECK(r.prompt_tokens > 0 && r.prompt_tokens <= r.rows && static_cast<size_t>(r.rows) <= rows);
    CHECK(i == 0 || requests_[i - 1].arrival_ns <= r.arrival_ns);
    const int64_t blocks = KvBlocks::BlocksFor(r.rows);
    if (blocks > options_.kv_blocks) {
      return ResourceExhausted("request " + std::to_string(i) + " has " + std::to_string(r.rows) +
                               " tokens in " + std::to_string(blocks) +
                               " KV blocks, a device has " + std::to_string(options_.kv_blocks));
    }
    ScheduledSequence& scheduled = running_[i].scheduled;
    scheduled.id = SequenceId{i + 1};
    scheduled.rank = static_cast<int64_t>(i);
    scheduled.prompt_tokens = r.prompt_tokens;
    scheduled.tokens.assign(static_cast<size_t>(r.prompt_tokens), 0);
  }
  SchedulerOptions scheduler = options_.scheduler;
  scheduler.reuse_prefixes = false;  // a routing says nothing of the tokens
  for (int32_t d = 0; d < options_.devices; ++d) {
    auto device = std::make_unique<Device>(trace_, scheduler, options_.kv_blocks);
    ASSIGN_OR_RETURN(SimJobDevice made, maker.Make(device->steps.lockstep()));
    CHECK(made.options.ranks != CacheRanks::kOracle);
    device->predictions = std::move(made.predictions);
    device->device =
        std::make_unique<SimulatedDevice>(trace_, device->steps.lockstep(), compute,
                                          std::move(made.options), shared_ ? &*shared_ : nullptr);
    placement_.WorkerReady(WorkerId(d), 0);
    devices_.push_back(std::move(device));
  }
  return OkStatus();
}

JobSimulator::Device* JobSimulator::Next() {
  Device* next = nullptr;
  for (const auto& device : devices_) {
    if (device->doing == Doing::kNothing) continue;
    if (next == nullptr || device->device->now_ns() < next->device->now_ns()) next = device.get();
  }
  return next;
}

void JobSimulator::Arrive(size_t request) {
  const ScheduledSequence& scheduled = running_[request].scheduled;
  CHECK(placement_.Add(scheduled.id, scheduled.rank, {}));
  Assign(requests_[request].arrival_ns);
}

void JobSimulator::Assign(int64_t now_ns) {
  for (const Assignment& assigned : placement_.Assign()) {
    Request& request = Of(assigned.sequence);
    request.result.device = assigned.worker.value;
    request.device = devices_[assigned.worker.index()].get();
    request.device->scheduler.Add(&request.scheduled);
    if (request.device->doing != Doing::kNothing) continue;
    request.device->device->WaitUntil(now_ns);
    BeginStep(request.device);
  }
}

void JobSimulator::BeginStep(Device* device) {
  const StepPlan& plan = device->scheduler.Plan(false);
  for (const ScheduledSequence* preempted : plan.preempted) {
    Request& request = Of(preempted->id);
    device->lanes[static_cast<size_t>(request.lane)] = false;
    request.lane = -1;
  }
  device->rows = plan.rows;
  for (const StepPlan::Rows& rows : device->rows) AddRows(device, rows);
  device->doing = Doing::kNothing;
  if (device->steps.rows() == 0) return;
  device->steps.EndStep();
  device->device->BeginStep(device->steps.lockstep().steps() - 1);
  device->doing = Doing::kLayers;
}

void JobSimulator::AddRows(Device* device, const StepPlan::Rows& rows) {
  const ScheduledSequence& scheduled = *rows.sequence;
  Request& request = Of(scheduled.id);
  const bool first = request.lane < 0;
  if (first) {
    const auto free = std::find(device->lanes.begin(), device->lanes.end(), false);
    CHECK(free != device->lanes.end());
    *free = true;
    request.lane = static_cast<int32_t>(free - device->lanes.begin());
  }
  const int32_t sequence = requests_[static_cast<size_t>(scheduled.rank)].sequence;
  const size_t row = trace_.sequences[static_cast<size_t>(sequence)].first;
  const bool decodes = scheduled.computed >= scheduled.given;
  for (int32_t i = 0; i < rows.count; ++i) {
    const int32_t position = scheduled.computed + i;
    const bool last = position + 1 == static_cast<int32_t>(scheduled.tokens.size());
    device->steps.AddRow({request.lane, sequence, row + static_cast<size_t>(position),
                          first && i == 0, !decodes, last});
  }
}

void JobSimulator::Token(Request* request, int64_t now_ns) {
  if (request->result.tokens++ == 0) {
    request->result.first_token_ns = now_ns;
  } else {
    result_.gaps_ns.push_back(now_ns - request->latest_token_ns);
  }
  request->latest_token_ns = now_ns;
  ++result_.tokens;
}

void JobSimulator::EndStep(Device* device) {
  const int64_t now_ns = device->device->now_ns();
  device->scheduler.Advance();
  for (const StepPlan::Rows& rows : device->rows) {
    ScheduledSequence* scheduled = rows.sequence;
    if (scheduled->pending() > 0) continue;  // in the middle of its prompt
    Request& request = Of(scheduled->id);
    Token(&request, now_ns);
    if (scheduled->computed < requests_[static_cast<size_t>(scheduled->rank)].rows) {
      scheduled->tokens.push_back(0);
      continue;
    }
    request.result.end_ns = now_ns;
    device->lanes[static_cast<size_t>(request.lane)] = false;
    device->scheduler.Remove(scheduled);
    placement_.Remove(scheduled->id);
  }
  device->doing = Doing::kNothing;
  BeginStep(device);
  Assign(now_ns);
}

Result<SimJobResult> JobSimulator::Run() {
  size_t arrived = 0;
  while (true) {
    Device* next = Next();
    if (arrived < requests_.size() &&
        (next == nullptr || requests_[arrived].arrival_ns <= next->device->now_ns())) {
      Arrive(arrived++);
      continue;
    }
    if (next == nullptr) break;
    if (next->doing == Doing::kStepEnd) {
      EndStep(next);
      if (options_.check_invariants) {
        RETURN_IF_ERROR(next->device->CheckInvariants());
        RETURN_IF_ERROR(next->scheduler.CheckInvariants());
      }
      continue;
    }
    if (!next->device->RunLayer()) next->doing = Doing::kStepEnd;
    if (++layers_ % kForgetLayers == 0 && shared_) shared_->Forget(Next()->device->now_ns());
  }
  for (const auto& device : devices_) {
    result_.devices.push_back(device->device->result());
    result_.total_ns = std::max(result_.total_ns, result_.devices.back().total_ns);
    result_.preemptions += device->scheduler.preemptions();
  }
  for (const Request& request : running_) result_.requests.push_back(request.result);
  if (shared_) result_.shared_busy_ns = shared_->busy_ns();
  return std::move(result_);
}

}  // namespace

Result<SimJobResult> SimulateJob(const RoutingTrace& trace, std::span<const SimRequest> requests,
                                 const ComputeTimes& compute, const SimDeviceMaker& maker,
                                 const SimJobOptions& options) {
  CHECK(options.devices > 0);
  JobSimulator simulator(trace, requests, options);
  RETURN_IF_ERROR(simulator.Init(compute, maker));
  return simulator.Run();
}

}  // namespace expertflow

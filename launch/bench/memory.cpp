#include <fmt/format.h>

#include <string>
#include <vector>

#include "common/units.h"
#include "launch/bench/bench_engine.h"
#include "launch/bench/bench_host.h"
#include "launch/bench/bench_model.h"
#include "launch/bench/job_benches.h"
#include "launch/generation.h"
#include "worker/memory_plan.h"

namespace expertflow {
namespace {

constexpr int32_t kWorkers = 2;
constexpr double kResidentPercent = 30;
constexpr uint64_t kKvBytes = uint64_t{32} << 20;
constexpr uint64_t kSpareBytesPerWorker = uint64_t{64} << 20;
constexpr int32_t kTokens = 20'000;
constexpr int32_t kPromptTokens = 16;
constexpr int32_t kNewTokens = 400;
constexpr int32_t kRequestsAtOnce = 10;
constexpr int64_t kSilenceNs = 60'000'000'000;

Status Generate(Job& job, int32_t requests, int32_t vocab, uint64_t* tokens) {
  std::vector<SubmitRequest> batch;
  for (int32_t i = 0; i < requests; ++i) {
    SubmitRequest request;
    request.is_text = false;
    request.tokens = RandomPrompt(kPromptTokens, vocab, static_cast<uint32_t>(i));
    request.max_new_tokens = kNewTokens;
    request.ignore_eos = true;
    batch.push_back(std::move(request));
  }
  const Generation generation = RunRequests(job, std::move(batch), {}, kSilenceNs);
  RETURN_IF_ERROR(generation.status);
  RETURN_IF_ERROR(generation.FirstFailure());
  *tokens += generation.generated_tokens();
  return OkStatus();
}

uint64_t StoreAndWorkers(const std::vector<ProcessUsage>& processes) {
  uint64_t bytes = 0;
  for (const ProcessUsage& process : processes) {
    if (process.role != "coordinator") bytes += process.resident_bytes;
  }
  return bytes;
}

double Megabytes(uint64_t bytes) {
  return static_cast<double>(bytes) * 1e-6;
}

}  // namespace

Result<BenchReport> BenchMemory(const BenchSetup& setup) {
  const std::string path = setup.model.empty() ? setup.bundled_model : setup.model;
  ASSIGN_OR_RETURN(const BenchModel model, BenchModel::Open(path, setup.work_folder));
  const StoreView& store = model.store();
  MemoryPlanInput input;
  input.store = StoreSizesOf(store);
  input.expert_memory = {.is_percent = true, .percent = kResidentPercent};
  input.kv_memory_bytes = kKvBytes;
  ASSIGN_OR_RETURN(const MemoryPlan plan, MakeMemoryPlan(model.architecture(), input));
  const uint64_t arena = plan.dense_bytes + plan.expert_bytes + plan.streaming_bytes;
  const uint64_t bound =
      store.total_bytes() + kWorkers * (arena + plan.kv_bytes + kSpareBytesPerWorker);

  HostWatch host;
  ASSIGN_OR_RETURN(
      const auto job,
      StartBenchJob(path, kWorkers,
                    {"--expert-memory", fmt::format("{:.0f}%", kResidentPercent), "--kv-memory",
                     fmt::format("{}", kKvBytes), "--threads", "1", "--kernels", setup.kernels}));
  const int32_t vocab = model.architecture().shape().vocab;
  uint64_t tokens = 0;
  RETURN_IF_ERROR(Generate(*job, kRequestsAtOnce, vocab, &tokens));
  const uint64_t at_start = StoreAndWorkers(UsageOf(job->name()));
  tokens = 0;
  while (tokens < kTokens) RETURN_IF_ERROR(Generate(*job, kRequestsAtOnce, vocab, &tokens));
  const std::vector<ProcessUsage> processes = UsageOf(job->name());
  EndBenchJob(*job);
  const uint64_t at_end = StoreAndWorkers(processes);
  if (processes.size() != kWorkers + 2) {
    return Internal(fmt::format("{} processes of the job are left, {} were started",
                                processes.size(), kWorkers + 2));
  }

  BenchReport report;
  report.bench = "memory";
  report.title = "proportional set size of store and workers";
  report.machine = host.Describe();
  report.AddSetting("model", fmt::format("{}: {}", model.name(), FormatBytes(store.total_bytes())));
  report.AddSetting("job", fmt::format("store and {} workers, {:.0f} % of the experts resident",
                                       kWorkers, kResidentPercent));
  report.AddSetting(
      "plan of a worker",
      fmt::format("arena {}, keys and values {}", FormatBytes(arena), FormatBytes(plan.kv_bytes)));
  report.AddSetting("load",
                    fmt::format("{} sequences at once, {} tokens in all", kRequestsAtOnce, tokens));
  report.AddRow("model + N x (arena + KV + 64 MiB)", "MB", {Megabytes(bound)}, "limit");
  report.AddRow("store + workers, after a warm-up", "MB", {Megabytes(at_start)});
  report.AddRow("store + workers, at the end", "MB", {Megabytes(at_end)});
  for (const ProcessUsage& process : processes) {
    report.AddRow(process.role + ", at the end", "MB", {Megabytes(process.resident_bytes)});
  }
  const double growth = Megabytes(at_end) - Megabytes(at_start);
  report.AddRow("growth", "MB", {growth});
  report.AddGoal("store + workers", "MB", {Megabytes(at_end)}, false, Megabytes(bound));
  report.AddGoal("growth over 20,000 tokens", "MB", {growth}, false, 1);
  return report;
}

}  // namespace expertflow

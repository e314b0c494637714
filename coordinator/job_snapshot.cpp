#include "coordinator/job_snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace expertflow {
namespace {

using Json = nlohmann::ordered_json;

const char* PhaseName(JobPhase phase) {
  switch (phase) {
    case JobPhase::kStarting: return "starting";
    case JobPhase::kLoading: return "loading";
    case JobPhase::kReady: return "ready";
    case JobPhase::kStopping: return "stopping";
    case JobPhase::kFailed: return "failed";
  }
  return "?";
}

Json ParseOrNull(const std::string& text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_discarded() ? Json(nullptr) : json;
}

// The counters of a worker by name: the one list for both renderings.
struct WorkerFigure {
  const char* name;
  const char* help;
  bool counter;
  uint64_t (*value)(const WorkerStats&);
};

#define FIGURE(field, help, counter)                                                      \
  {                                                                                       \
#field, help, counter, [](const WorkerStats& stats) { return uint64_t{stats.field}; } \
  }
constexpr WorkerFigure kWorkerFigures[] = {
    FIGURE(steps, "Forward passes", true),
    FIGURE(prefill_tokens, "Prompt tokens computed", true),
    FIGURE(decode_tokens, "Tokens computed one step at a time", true),
    FIGURE(step_ns, "Time in forward passes, ns", true),
    FIGURE(stall_ns, "Time that compute waited for an expert, ns", true),
    FIGURE(hits, "Expert uses (step, layer, expert) that were resident", true),
    FIGURE(late_hits, "Expert uses that were on their way", true),
    FIGURE(misses, "Expert uses that had to be loaded", true),
    FIGURE(bypasses, "Misses served through a streaming buffer", true),
    FIGURE(bytes_demand, "Bytes copied on demand", true),
    FIGURE(bytes_prefetch, "Bytes copied ahead of demand", true),
    FIGURE(bytes_wasted, "Prefetched bytes that left unused", true),
    FIGURE(prefetch_cancelled, "Prefetches cancelled at the true routing", true),
    FIGURE(prefetch_enabled, "1 while prefetch is on", false),
    FIGURE(stride, "Layers of lead of the prefetch", false),
    FIGURE(stride_changes, "How often the stride has changed", true),
    FIGURE(link_bound, "1 while misses ask for more than the link carries", false),
    FIGURE(forecast_on, "1 while a forecaster ranks what leaves the cache", false),
    FIGURE(predictor_on, "1 while prefetch goes by a fitted predictor", false),
    FIGURE(predictor_version, "Version of what all workers learnt that is in use, 0 for none",
           false),
    FIGURE(prefetch_predictions, "Experts predicted for the next layer", true),
    FIGURE(prefetch_correct, "Predicted experts that were routed", true),
    FIGURE(prefetch_routed, "Experts routed in layers that were predicted", true),
    FIGURE(sampled_uses, "Expert uses in windows that were sampled", true),
    FIGURE(sampled_misses, "Of those, missed", true),
    FIGURE(sampled_lru_misses, "Of those, what plain LRU would have missed", true),
    FIGURE(sampled_best_misses, "Of those, what the best possible cache would have missed", true),
    FIGURE(link_busy_ns, "Time that the link was in use, ns", true),
    FIGURE(link_bytes_per_second, "Capacity of the link, 0 when not limited", false),
    FIGURE(link_emulated, "1 when the link is emulated", false),
    FIGURE(reused_tokens, "Tokens found in the KV cache instead of computed", true),
    FIGURE(preemptions, "Sequences that gave their KV blocks back for a while", true),
    FIGURE(kv_blocks_used, "KV blocks in use", false),
    FIGURE(kv_blocks_kept, "KV blocks with prefixes that nobody uses now", false),
    FIGURE(kv_blocks_total, "KV blocks", false),
    FIGURE(sequences, "Sequences running or waiting", false),
    FIGURE(resident_bytes, "Proportional set size of the process", false),
};
#undef FIGURE

const char* ReasonName(StrideReason reason) {
  switch (reason) {
    case StrideReason::kStart: return "start";
    case StrideReason::kMeasured: return "measured";
    case StrideReason::kLate: return "late";
    case StrideReason::kWaste: return "waste";
    case StrideReason::kLinkBound: return "link bound";
  }
  return "?";
}

Json MovesJson(const std::vector<StrideMove>& moves) {
  Json json = Json::array();
  for (const StrideMove& move : moves) {
    json.push_back(
        {{"event", move.event}, {"stride", move.stride}, {"reason", ReasonName(move.reason)}});
  }
  return json;
}

Json StatsJson(const WorkerStats& stats) {
  Json json;
  for (const WorkerFigure& figure : kWorkerFigures) json[figure.name] = figure.value(stats);
  json["stride_moves"] = MovesJson(stats.stride_moves);
  json["decision_digest"] = fmt::format("{:016x}", stats.decision_digest);
  json["link_emulated"] = stats.link_emulated;
  json["prefetch_enabled"] = stats.prefetch_enabled;
  json["link_bound"] = stats.link_bound;
  json["forecast_on"] = stats.forecast_on;
  json["predictor_on"] = stats.predictor_on;
  return json;
}

Json LearningJson(const LearningSnapshot& learning) {
  Json json = {{"version", learning.version},
               {"age_ms", learning.age_ns / 1'000'000},
               {"batches", learning.batches},
               {"tokens", learning.tokens},
               {"tokens_left_out", learning.tokens_left_out},
               {"leaves", learning.leaves},
               {"recall", Json::array()}};
  for (const LearningSnapshot::Recall& recall : learning.recall) {
    json["recall"].push_back({{"distance", recall.distance},
                              {"recall", recall.recall},
                              {"pre_gate_recall", recall.pre_gate_recall},
                              {"overconfidence", recall.overconfidence},
                              {"falls_back", recall.falls_back}});
  }
  return json;
}

Json StrideJson(const StrideSnapshot& stride) {
  return {{"stride", stride.stride},
          {"reason", ReasonName(stride.reason)},
          {"link_bound", stride.link_bound},
          {"number", stride.number},
          {"age_ms", stride.age_ns / 1'000'000},
          {"rounds", stride.rounds},
          {"moves", MovesJson(stride.moves)}};
}

Json ProcessJson(const ProcessSnapshot& process) {
  const ProcessInfo& info = process.member.info;
  return {{"id", process.member.id.value},
          {"role", RoleName(info.role)},
          {"host", info.host},
          {"pid", info.pid},
          {"ready", process.ready},
          {"busy", process.busy},
          {"last_heard_ms", process.last_heard_age_ns / 1'000'000}};
}

Json PercentilesJson(const LatencyWindow& window) {
  Json json = {{"count", window.size()}};
  for (const auto& [name, share] : {std::pair("p50", 0.5), {"p90", 0.9}, {"p99", 0.99}}) {
    json[name] = nullptr;
    if (window.size() > 0) json[name] = static_cast<double>(window.QuantileNs(share)) / 1e6;
  }
  return json;
}

uint64_t CountReady(const JobSnapshot& snapshot, ProcessRole role) {
  return static_cast<uint64_t>(std::count_if(
      snapshot.processes.begin(), snapshot.processes.end(),
      [role](const auto& process) { return process.ready && process.member.info.role == role; }));
}

class PrometheusText {
 public:
  void Head(std::string_view name, std::string_view help, std::string_view type) {
    fmt::format_to(Out(), "# HELP expertflow_{} {}\n# TYPE expertflow_{} {}\n", name, help, name,
                   type);
  }
  void Value(std::string_view name, std::string_view labels, uint64_t value) {
    fmt::format_to(Out(), "expertflow_{}{} {}\n", name, labels, value);
  }
  void Single(std::string_view name, std::string_view help, std::string_view type, uint64_t value) {
    Head(name, help, type);
    Value(name, "", value);
  }
  void Histogram(std::string_view name, std::string_view help, const LatencyHistogram& histogram) {
    Head(name, help, "histogram");
    uint64_t count = 0;
    for (size_t i = 0; i < LatencyHistogram::kBoundsSeconds.size(); ++i) {
      count += histogram.counts[i];
      fmt::format_to(Out(), "expertflow_{}_bucket{{le=\"{}\"}} {}\n", name,
                     LatencyHistogram::kBoundsSeconds[i], count);
    }
    count += histogram.counts.back();
    fmt::format_to(Out(), "expertflow_{}_bucket{{le=\"+Inf\"}} {}\n", name, count);
    fmt::format_to(Out(), "expertflow_{}_sum {}\n", name,
                   static_cast<double>(histogram.sum_ns) / 1e9);
    fmt::format_to(Out(), "expertflow_{}_count {}\n", name, count);
  }
  std::string Take() { return std::move(text_); }

 private:
  std::back_insert_iterator<std::string> Out() { return std::back_inserter(text_); }
  std::string text_;
};

}  // namespace

const char* RoleName(ProcessRole role) {
  switch (role) {
    case ProcessRole::kCoordinator: return "coordinator";
    case ProcessRole::kStore: return "store";
    case ProcessRole::kWorker: return "worker";
  }
  return "?";
}

void LatencyHistogram::Add(int64_t ns) {
  const double seconds = static_cast<double>(ns) / 1e9;
  size_t bucket = 0;
  while (bucket < kBoundsSeconds.size() && seconds > kBoundsSeconds[bucket]) ++bucket;
  ++counts[bucket];
  sum_ns += static_cast<uint64_t>(ns < 0 ? 0 : ns);
}

void LatencyWindow::Add(int64_t ns) {
  if (values_ns_.size() < kValues) {
    values_ns_.push_back(ns);
    return;
  }
  values_ns_[next_] = ns;
  next_ = (next_ + 1) % kValues;
}

int64_t LatencyWindow::QuantileNs(double share) const {
  std::vector<int64_t> sorted = values_ns_;
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  const auto at = sorted.begin() + static_cast<ptrdiff_t>(std::max<size_t>(rank, 1) - 1);
  std::nth_element(sorted.begin(), at, sorted.end());
  return *at;
}

std::string StatusJson(const JobSnapshot& snapshot) {
  const JobCounters& counters = snapshot.counters;
  Json json = {{"job", snapshot.job},
               {"phase", PhaseName(snapshot.phase)},
               {"uptime_ms", snapshot.uptime_ns / 1'000'000},
               {"join_address", snapshot.join_address},
               {"restarts", counters.restarts},
               {"requests",
                {{"queued", snapshot.queued},
                 {"running", snapshot.running},
                 {"done", counters.requests_done},
                 {"failed", counters.requests_failed},
                 {"cancelled", counters.requests_cancelled},
                 {"refused", counters.requests_refused},
                 {"requeues", counters.requeues}}},
               {"processes", Json::array()},
               {"stores", Json::array()},
               {"workers", Json::array()}};
  json["latency"] = {{"ttft_ms", PercentilesJson(counters.ttft.recent)},
                     {"tpot_ms", PercentilesJson(counters.tpot.recent)}};
  json["learning"] = LearningJson(snapshot.learning);
  json["stride"] = StrideJson(snapshot.stride);
  json["events"] = Json::array();
  for (const KeptLogLine& line : snapshot.events) {
    json["events"].push_back({{"time_ms", line.time_ms},
                              {"level", std::string(LogLevelName(line.level))},
                              {"text", line.text}});
  }
  json["placement_digest"] = fmt::format("{:016x}", snapshot.placement_digest);
  for (const ProcessSnapshot& process : snapshot.processes) {
    json["processes"].push_back(ProcessJson(process));
    if (process.member.info.role == ProcessRole::kStore) {
      const StoreReady& store = process.store;
      json["stores"].push_back({{"id", process.member.id.value},
                                {"ready", process.ready},
                                {"kind", store.kind == 0 ? "shared memory" : "file"},
                                {"name", store.name},
                                {"bytes", store.total_bytes},
                                {"fingerprint", store.fingerprint},
                                {"load_ms", store.load_ns / 1'000'000},
                                {"adopted", store.adopted}});
    }
    if (process.member.info.role == ProcessRole::kWorker) {
      const WorkerReady& worker = process.worker;
      json["workers"].push_back({{"id", process.member.id.value},
                                 {"ready", process.ready},
                                 {"device", worker.device},
                                 {"kernels", worker.kernels},
                                 {"arithmetic", worker.arithmetic},
                                 {"threads", worker.threads},
                                 {"in_place", worker.in_place},
                                 {"expert_slots", worker.expert_slots},
                                 {"kv_tokens", worker.kv_tokens},
                                 {"effective_config", ParseOrNull(worker.effective_config)},
                                 {"memory_plan", ParseOrNull(worker.memory_plan)},
                                 {"stats", StatsJson(process.stats)}});
    }
  }
  json["requested_config"] = ParseOrNull(snapshot.requested_config);
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string MetricsText(const JobSnapshot& snapshot) {
  PrometheusText text;
  const JobCounters& counters = snapshot.counters;
  text.Head("job_ready", "1 while the job takes requests", "gauge");
  text.Value("job_ready", "", snapshot.phase == JobPhase::kReady ? 1 : 0);
  text.Head("requests_total", "Requests by how they ended", "counter");
  text.Value("requests_total", R"({outcome="done"})", counters.requests_done);
  text.Value("requests_total", R"({outcome="failed"})", counters.requests_failed);
  text.Value("requests_total", R"({outcome="cancelled"})", counters.requests_cancelled);
  text.Value("requests_total", R"({outcome="refused"})", counters.requests_refused);
  text.Single("requests_queued", "Requests that wait for a worker", "gauge", snapshot.queued);
  text.Single("requests_running", "Requests that run", "gauge", snapshot.running);
  text.Single("workers_ready", "Workers that take sequences", "gauge",
              CountReady(snapshot, ProcessRole::kWorker));
  text.Single("stores_ready", "Stores that hold the model", "gauge",
              CountReady(snapshot, ProcessRole::kStore));
  text.Single("requeues_total", "Sequences moved because their worker died", "counter",
              counters.requeues);
  text.Single("workers_lost_total", "Workers that died", "counter", counters.workers_lost);
  text.Single("stores_lost_total", "Stores that died", "counter", counters.stores_lost);
  text.Single("stalls_total", "Workers given up because they made no progress", "counter",
              counters.stalls);
  text.Single("restarts_total", "Replacements started", "counter", counters.restarts);
  text.Single("prompt_tokens_total", "Prompt tokens of finished requests", "counter",
              counters.prompt_tokens);
  text.Single("cached_prompt_tokens_total",
              "Prompt tokens of finished requests that another request had computed", "counter",
              counters.cached_tokens);
  text.Single("generated_tokens_total", "Tokens generated for finished requests", "counter",
              counters.generated_tokens);
  text.Histogram("ttft_seconds", "Submission to first token", counters.ttft.all);
  text.Histogram("tpot_seconds", "Mean time per token after the first, by request",
                 counters.tpot.all);
  const LearningSnapshot& learning = snapshot.learning;
  text.Single("predictor_version", "Version of what workers have learnt, as published", "gauge",
              learning.version);
  text.Single("predictor_age_ms", "Time since that version was published, ms", "gauge",
              static_cast<uint64_t>(learning.age_ns) / 1'000'000);
  text.Single("predictor_batches_total", "What workers have sent, added up", "counter",
              learning.batches);
  text.Single("predictor_tokens", "Token ids that workers have learnt about", "gauge",
              learning.tokens);
  text.Single("stride", "Layers of lead of all workers' prefetch, as published, 0 for none",
              "gauge", snapshot.stride.stride);
  text.Single("stride_published_total", "How often the lead or its reason has changed", "counter",
              snapshot.stride.number);
  text.Single("stride_age_ms", "Time since it was published, ms", "gauge",
              static_cast<uint64_t>(snapshot.stride.age_ns) / 1'000'000);
  for (const WorkerFigure& figure : kWorkerFigures) {
    const std::string name =
        fmt::format("worker_{}{}", figure.name, figure.counter ? "_total" : "");
    text.Head(name, figure.help, figure.counter ? "counter" : "gauge");
    for (const ProcessSnapshot& process : snapshot.processes) {
      if (process.member.info.role != ProcessRole::kWorker) continue;
      text.Value(name, fmt::format(R"({{worker="{}"}})", process.member.id.value),
                 figure.value(process.stats));
    }
  }
  return text.Take();
}

std::string ExpertsJson(std::span<const WorkerExperts> workers) {
  constexpr std::array<char, 3> kPlaces = {'.', 'l', 'r'};  // by ExpertPlace
  Json json = {{"format", "expertflow-experts"}, {"version", 1}, {"workers", Json::array()}};
  for (const WorkerExperts& worker : workers) {
    const ExpertReport& report = worker.report;
    Json layers = Json::array();
    size_t begin = 0;
    for (size_t i = 0; i < report.layers.size(); ++i) {
      const size_t end = begin + report.experts[i];
      Json rows = Json::array();
      std::string places;
      for (size_t expert = begin; expert < end; ++expert) {
        rows.push_back(report.rows[expert]);
        places += kPlaces[static_cast<size_t>(report.places[expert])];
      }
      layers.push_back({{"layer", report.layers[i]}, {"rows", rows}, {"places", places}});
      begin = end;
    }
    json["workers"].push_back({{"id", worker.id.value}, {"layers", layers}});
  }
  return json.dump();
}

}  // namespace expertflow

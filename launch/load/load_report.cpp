#include "launch/load/load_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace expertflow {
namespace {

float Ms(int64_t ns) {
  return static_cast<float>(static_cast<double>(ns) / 1e6);
}

size_t MostAtOnce(const std::vector<LoadOutcome>& outcomes) {
  std::vector<std::pair<int64_t, int>> changes;
  for (const LoadOutcome& outcome : outcomes) {
    changes.emplace_back(outcome.due_ns, 1);
    changes.emplace_back(outcome.done_ns, -1);
  }
  std::sort(changes.begin(), changes.end());
  int64_t now = 0;
  int64_t most = 0;
  for (const auto& [at, change] : changes) most = std::max(most, now += change);
  return static_cast<size_t>(most);
}

}  // namespace

Percentiles PercentilesOf(std::vector<float> values) {
  Percentiles found;
  found.count = values.size();
  if (values.empty()) return found;
  std::sort(values.begin(), values.end());
  const auto at = [&values](double share) {
    const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
    return static_cast<double>(values[std::max<size_t>(rank, 1) - 1]);
  };
  found.p50 = at(0.5);
  found.p90 = at(0.9);
  found.p95 = at(0.95);
  found.p99 = at(0.99);
  found.max = static_cast<double>(values.back());
  found.mean =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  return found;
}

LoadReport ReportOf(const std::vector<LoadOutcome>& outcomes, const ServiceLevel& level) {
  LoadReport report;
  report.requests = outcomes.size();
  std::vector<float> ttft;
  std::vector<float> tpot;
  std::vector<float> gaps;
  std::vector<float> total;
  std::vector<float> late;
  std::map<std::string, size_t> errors;
  int64_t end_ns = 0;
  for (const LoadOutcome& outcome : outcomes) {
    end_ns = std::max(end_ns, outcome.done_ns);
    if (outcome.sent_ns > 0) late.push_back(Ms(outcome.sent_ns - outcome.due_ns));
    if (!outcome.ok) {
      if (report.first_error.empty()) report.first_error = outcome.error;
      ++errors[outcome.status == 0         ? "no answer"
               : outcome.status / 100 == 2 ? "an answer that broke off"
                                           : fmt::format("status {}", outcome.status)];
      continue;
    }
    ++report.done;
    report.prompt_tokens += outcome.prompt_tokens;
    report.completion_tokens += outcome.completion_tokens;
    total.push_back(Ms(outcome.done_ns - outcome.due_ns));
    gaps.insert(gaps.end(), outcome.gaps_ms.begin(), outcome.gaps_ms.end());
    const float first_ms =
        Ms((outcome.first_ns > 0 ? outcome.first_ns : outcome.done_ns) - outcome.due_ns);
    float between_ms = 0;
    if (outcome.first_ns > 0) ttft.push_back(first_ms);
    if (outcome.completion_tokens > 1 && outcome.first_ns > 0) {
      between_ms = Ms(outcome.last_ns - outcome.first_ns) /
                   static_cast<float>(outcome.completion_tokens - 1);
      tpot.push_back(between_ms);
    }
    const bool good = (level.ttft_ms == 0 || static_cast<double>(first_ms) <= level.ttft_ms) &&
                      (level.tpot_ms == 0 || static_cast<double>(between_ms) <= level.tpot_ms);
    report.good += good ? 1 : 0;
  }
  if (!outcomes.empty()) {
    report.seconds = static_cast<double>(end_ns - outcomes.front().due_ns) / 1e9;
  }
  report.ttft_ms = PercentilesOf(std::move(ttft));
  report.tpot_ms = PercentilesOf(std::move(tpot));
  report.gap_ms = PercentilesOf(std::move(gaps));
  report.total_ms = PercentilesOf(std::move(total));
  report.lateness_ms = PercentilesOf(std::move(late));
  report.concurrent_max = MostAtOnce(outcomes);
  report.errors.assign(errors.begin(), errors.end());
  std::stable_sort(report.errors.begin(), report.errors.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return report;
}

}  // namespace expertflow

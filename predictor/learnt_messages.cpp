#include "predictor/learnt_messages.h"

#include <utility>

namespace expertflow {
namespace {

PredictorSums SumsOf(LearntStatistics statistics) {
  PredictorSums sums{std::move(statistics.leaves),
                     std::move(statistics.leaf_count),
                     std::move(statistics.leaf_rest),
                     std::move(statistics.tokens),
                     std::move(statistics.token_count),
                     std::move(statistics.token_experts),
                     std::move(statistics.experts),
                     std::move(statistics.uses),
                     {}};
  for (const RecallSums& recall : statistics.recall) {
    sums.recall.push_back(
        {recall.settled, recall.uses, recall.hits, recall.pre_gate_hits, recall.expected});
  }
  return sums;
}

LearntStatistics StatisticsOf(PredictorSums sums) {
  LearntStatistics statistics{
      std::move(sums.leaves),  std::move(sums.leaf_count),  std::move(sums.leaf_rest),
      std::move(sums.tokens),  std::move(sums.token_count), std::move(sums.token_experts),
      std::move(sums.experts), std::move(sums.uses),        {}};
  for (const RecallReport& recall : sums.recall) {
    statistics.recall.push_back(
        {recall.settled, recall.uses, recall.hits, recall.pre_gate_hits, recall.expected});
  }
  return statistics;
}

}  // namespace

PredictorLearnt ToMessage(const LearntBatch& batch) {
  return {batch.number, SumsOf(batch.statistics)};
}

PredictorVersion ToMessage(LearntVersion version) {
  PredictorVersion message;
  message.version = version.version;
  message.sums = SumsOf(std::move(version.totals));
  message.leaf_version = std::move(version.leaf_version);
  message.token_version = std::move(version.token_version);
  message.pre_gate_distances = version.pre_gate_distances;
  return message;
}

Result<LearntBatch> LearntBatchFrom(PredictorLearnt message) {
  LearntBatch batch{message.number, StatisticsOf(std::move(message.sums))};
  RETURN_IF_ERROR(CheckLearnt(batch.statistics));
  return batch;
}

Result<LearntVersion> LearntVersionFrom(PredictorVersion message) {
  LearntVersion version{message.version, StatisticsOf(std::move(message.sums)),
                        std::move(message.leaf_version), std::move(message.token_version),
                        message.pre_gate_distances};
  RETURN_IF_ERROR(CheckLearnt(version));
  return version;
}

StrideReport ToMessage(const StrideWindow& window, uint64_t expert_bytes, int32_t stride_max) {
  return {expert_bytes,         static_cast<uint32_t>(stride_max),
          window.events,        window.timed_events,
          window.distinct,      window.expected,
          window.cached,        window.prefetch_hits,
          window.prefetch_late, window.copied,
          window.wasted,        window.busy_ns,
          window.layer_ns,      window.stall_ns};
}

StrideWindow StrideWindowFrom(const StrideReport& report) {
  return {report.events, report.timed_events,  report.distinct,      report.expected,
          report.cached, report.prefetch_hits, report.prefetch_late, report.copied,
          report.wasted, report.busy_ns,       report.layer_ns,      report.stall_ns};
}

}  // namespace expertflow

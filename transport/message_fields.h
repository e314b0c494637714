// The wire order of every message's fields (wire_codec.h says how they are used). Internal to
// transport/ and its tests.
#pragma once

#include <tuple>

#include "common/status.h"
#include "transport/messages.h"
#include "transport/wire_codec.h"

namespace expertflow {

namespace wire {

inline constexpr uint8_t kStatusCodeMax = static_cast<uint8_t>(StatusCode::kInternal);
inline constexpr uint8_t kStoreKindMax = 1;

template <>
struct EnumMax<ProcessRole> {
  static constexpr ProcessRole kValue = ProcessRole::kWorker;
};
template <>
struct EnumMax<TablesKind> {
  static constexpr TablesKind kValue = TablesKind::kPredictor;
};
template <>
struct EnumMax<ExpertPlace> {
  static constexpr ExpertPlace kValue = ExpertPlace::kResident;
};
template <>
struct EnumMax<FinishReason> {
  static constexpr FinishReason kValue = FinishReason::kError;
};
template <>
struct EnumMax<StrideReason> {
  static constexpr StrideReason kValue = StrideReason::kLinkBound;
};
template <>
struct EnumMax<JobPhase> {
  static constexpr JobPhase kValue = JobPhase::kFailed;
};

}  // namespace wire

// In the messages' own namespace, where argument-dependent look-up finds them.

template <wire::Is<SequenceId> T>
auto Fields(T& m) {
  return std::tie(m.value);
}
template <wire::Is<ProcessInfo> T>
auto Fields(T& m) {
  return std::tie(m.role, m.host, m.boot_id, m.pid, m.pid_start_ticks, m.address);
}
template <wire::Is<LoadProgress> T>
auto Fields(T& m) {
  return std::tie(m.bytes_done, m.bytes_total);
}
template <wire::Is<StoreReady> T>
auto Fields(T& m) {
  return std::tuple_cat(std::tuple(wire::Bounded(m.kind, wire::kStoreKindMax)),
                        std::tie(m.name, m.total_bytes, m.fingerprint, m.load_ns, m.adopted));
}
template <wire::Is<PublishTables> T>
auto Fields(T& m) {
  return std::tie(m.kind, m.name, m.required, m.bytes);
}
template <wire::Is<AttachStore> T>
auto Fields(T& m) {
  return std::tie(m.store);
}
template <wire::Is<PublishBoard> T>
auto Fields(T& m) {
  return std::tie(m.pid, m.descriptor, m.id);
}
template <wire::Is<RecallReport> T>
auto Fields(T& m) {
  return std::tie(m.settled, m.uses, m.hits, m.pre_gate_hits, m.expected);
}
template <wire::Is<PredictorSums> T>
auto Fields(T& m) {
  return std::tie(m.leaves, m.leaf_count, m.leaf_rest, m.tokens, m.token_count, m.token_experts,
                  m.experts, m.uses, m.recall);
}
template <wire::Is<IncludedBatch> T>
auto Fields(T& m) {
  return std::tie(m.process, m.number);
}
template <wire::Is<PredictorVersion> T>
auto Fields(T& m) {
  return std::tie(m.version, m.sums, m.leaf_version, m.token_version, m.included,
                  m.pre_gate_distances);
}
template <wire::Is<StridePublished> T>
auto Fields(T& m) {
  return std::tie(m.word);
}
template <wire::Is<LogitBias> T>
auto Fields(T& m) {
  return std::tie(m.token, m.bias);
}
template <wire::Is<SamplingParams> T>
auto Fields(T& m) {
  return std::tie(m.temperature, m.top_p, m.top_k, m.seed, m.min_p, m.repetition_penalty,
                  m.frequency_penalty, m.presence_penalty, m.logit_bias);
}
template <wire::Is<StartSequence> T>
auto Fields(T& m) {
  return std::tie(m.sequence, m.tokens, m.prompt_tokens, m.max_new_tokens, m.rank, m.sampling,
                  m.stop_tokens, m.grammar, m.trace_id, m.capture_logits, m.capture_routes,
                  m.capture_logprobs, m.capture_from);
}
template <wire::Is<TokenBytes> T>
auto Fields(T& m) {
  return std::tie(m.bytes, m.sizes);
}
template <wire::Is<CancelSequence> T>
auto Fields(T& m) {
  return std::tie(m.sequence);
}
template <wire::Is<Shutdown> T>
auto Fields(T& m) {
  return std::tie(m.reason);
}
template <wire::Is<WorkerReady> T>
auto Fields(T& m) {
  return std::tie(m.device, m.kernels, m.arithmetic, m.threads, m.expert_slots, m.in_place,
                  m.kv_tokens, m.prefix_cache, m.effective_config, m.memory_plan);
}
template <wire::Is<TokenEvent> T>
auto Fields(T& m) {
  return std::tie(m.sequence, m.position, m.token, m.finish);
}
template <wire::Is<PromptDone> T>
auto Fields(T& m) {
  return std::tie(m.sequence, m.cached_tokens);
}
template <wire::Is<StepReport> T>
auto Fields(T& m) {
  return std::tie(m.step, m.tokens, m.prompts);
}
template <wire::Is<TokenLogprob> T>
auto Fields(T& m) {
  return std::tie(m.token, m.logprob);
}
template <wire::Is<CapturedPosition> T>
auto Fields(T& m) {
  return std::tie(m.sequence, m.position, m.logits, m.router_ids, m.router_weights, m.logprobs);
}
template <wire::Is<SequenceFailed> T>
auto Fields(T& m) {
  return std::tuple_cat(std::tie(m.sequence),
                        std::tuple(wire::Bounded(m.code, wire::kStatusCodeMax)),
                        std::tie(m.message));
}
template <wire::Is<PredictorLearnt> T>
auto Fields(T& m) {
  return std::tie(m.number, m.sums);
}
template <wire::Is<StrideReport> T>
auto Fields(T& m) {
  return std::tie(m.expert_bytes, m.stride_max, m.events, m.timed_events, m.distinct, m.expected,
                  m.cached, m.prefetch_hits, m.prefetch_late, m.copied, m.wasted, m.busy_ns,
                  m.layer_ns, m.stall_ns);
}
template <wire::Is<StrideMove> T>
auto Fields(T& m) {
  return std::tie(m.event, m.stride, m.reason);
}
template <wire::Is<WorkerStats> T>
auto Fields(T& m) {
  return std::tie(m.steps, m.prefill_tokens, m.decode_tokens, m.step_ns, m.stall_ns, m.hits,
                  m.late_hits, m.misses, m.bypasses, m.bytes_demand, m.bytes_prefetch,
                  m.bytes_wasted, m.decision_digest, m.prefetch_cancelled, m.link_busy_ns,
                  m.link_bytes_per_second, m.link_emulated, m.prefetch_enabled, m.stride,
                  m.stride_changes, m.stride_moves, m.link_bound, m.forecast_on, m.predictor_on,
                  m.predictor_version, m.prefetch_predictions, m.prefetch_correct,
                  m.prefetch_routed, m.sampled_uses, m.sampled_misses, m.sampled_lru_misses,
                  m.sampled_best_misses, m.reused_tokens, m.preemptions, m.kv_blocks_used,
                  m.kv_blocks_kept, m.kv_blocks_total, m.sequences, m.resident_bytes);
}
template <wire::Is<ExpertReport> T>
auto Fields(T& m) {
  return std::tie(m.layers, m.experts, m.rows, m.places);
}
template <wire::Is<Heartbeat> T>
auto Fields(T& m) {
  return std::tie(m.progress, m.busy);
}
template <wire::Is<FatalError> T>
auto Fields(T& m) {
  return std::tuple_cat(std::tuple(wire::Bounded(m.code, wire::kStatusCodeMax)),
                        std::tie(m.message));
}
template <wire::Is<SubmitRequest> T>
auto Fields(T& m) {
  return std::tie(m.request, m.is_text, m.text, m.tokens, m.max_new_tokens, m.priority, m.sampling,
                  m.stop, m.ignore_eos, m.grammar, m.trace_id, m.capture_logits, m.capture_routes,
                  m.logprobs, m.prompt_logprobs);
}
template <wire::Is<CancelRequest> T>
auto Fields(T& m) {
  return std::tie(m.request);
}
template <wire::Is<StatusRequest> T>
auto Fields(T&) {
  return std::tuple<>();
}
template <wire::Is<MetricsRequest> T>
auto Fields(T&) {
  return std::tuple<>();
}
template <wire::Is<ExpertsRequest> T>
auto Fields(T&) {
  return std::tuple<>();
}
template <wire::Is<ShutdownRequest> T>
auto Fields(T&) {
  return std::tuple<>();
}
template <wire::Is<JobState> T>
auto Fields(T& m) {
  return std::tuple_cat(std::tie(m.phase, m.bytes_done, m.bytes_total),
                        std::tuple(wire::Bounded(m.code, wire::kStatusCodeMax)),
                        std::tie(m.message));
}
template <wire::Is<TextDelta> T>
auto Fields(T& m) {
  return std::tie(m.request, m.text, m.tokens);
}
template <wire::Is<RequestDone> T>
auto Fields(T& m) {
  return std::tuple_cat(std::tie(m.request, m.finish),
                        std::tuple(wire::Bounded(m.code, wire::kStatusCodeMax)),
                        std::tie(m.message, m.prompt_tokens, m.cached_tokens, m.generated_tokens,
                                 m.ttft_ns, m.total_ns, m.requeues));
}
template <wire::Is<RequestCapture> T>
auto Fields(T& m) {
  return std::tie(m.request, m.captured);
}
template <wire::Is<StatusReply> T>
auto Fields(T& m) {
  return std::tie(m.json);
}
template <wire::Is<MetricsReply> T>
auto Fields(T& m) {
  return std::tie(m.text);
}
template <wire::Is<ExpertsReply> T>
auto Fields(T& m) {
  return std::tie(m.json);
}

}  // namespace expertflow

// Every message that processes of a job, and clients of a job, exchange.
//
// Encoded by wire.h: a fixed header (magic, protocol version, type, length), then the fields in
// declaration order, little-endian, strings and lists with a 32-bit count. Decoding checks every
// bound and every enum, and refuses trailing bytes; it is fuzzed. A change of any struct changes
// kProtocolVersion; peers of another version are refused by name.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "common/ids.h"

namespace expertflow {

inline constexpr uint16_t kProtocolVersion = 5;

enum class ProcessRole : uint8_t { kCoordinator = 0, kStore = 1, kWorker = 2 };

// --- wire-up -----------------------------------------------------------------------------------

// What a process tells about itself at wire-up; also how liveness on the same host finds it.
struct ProcessInfo {
  ProcessRole role = ProcessRole::kWorker;
  std::string host;
  std::string boot_id;
  int64_t pid = 0;
  int64_t pid_start_ticks = 0;  // /proc/<pid>/stat field 22: tells a reused pid apart
  std::string address;          // Transport::LocalAddress()
};

// --- store <-> coordinator ---------------------------------------------------------------------

struct LoadProgress {
  uint64_t bytes_done = 0;
  uint64_t bytes_total = 0;
};

// Where a host's model bytes are (expert_store: StoreDescriptor).
struct StoreReady {
  uint8_t kind = 0;  // 0 shared-memory segment, 1 packed file
  std::string name;  // segment name, or absolute path
  uint64_t total_bytes = 0;
  std::string fingerprint;
  int64_t load_ns = 0;
  bool adopted = false;  // a restarted store took over an existing segment
};

// --- coordinator -> worker ---------------------------------------------------------------------

// What a policy was fitted to, as the file that holds it (predictor/). Sent before AttachStore.
enum class TablesKind : uint8_t { kForecaster = 0, kPredictor = 1 };
struct PublishTables {
  TablesKind kind = TablesKind::kForecaster;
  std::string name;       // for messages
  bool required = false;  // else what does not fit the model is left out with a warning
  std::string bytes;
};

struct AttachStore {
  StoreReady store;
};

// Where workers of the coordinator's host read what it publishes (board.h). Sent before
// AttachStore; to the others go the messages themselves.
struct PublishBoard {
  int64_t pid = 0;
  int32_t descriptor = -1;
  uint64_t id = 0;  // that the board begins with
};

// Sums of what predictors saw come (predictor/core/learnt_statistics.h says of what).
struct RecallReport {
  uint64_t settled = 0;
  uint64_t uses = 0;
  uint64_t hits = 0;
  uint64_t pre_gate_hits = 0;
  uint64_t expected = 0;
};
struct PredictorSums {
  std::vector<uint32_t> leaves;
  std::vector<uint32_t> leaf_count;
  std::vector<int64_t> leaf_rest;
  std::vector<int32_t> tokens;
  std::vector<uint32_t> token_count;
  std::vector<uint32_t> token_experts;
  std::vector<uint16_t> experts;
  std::vector<uint16_t> uses;
  std::vector<RecallReport> recall;
};

// What all workers have learnt, by rows: those that have changed since the version that the worker
// has. On the board all rows, each with the version that it last changed in.
struct IncludedBatch {
  int32_t process = 0;
  uint64_t number = 0;  // the latest PredictorLearnt of it that the version has
};
struct PredictorVersion {
  uint64_t version = 0;
  PredictorSums sums;
  std::vector<uint64_t> leaf_version;
  std::vector<uint64_t> token_version;
  std::vector<IncludedBatch> included;
  uint32_t pre_gate_distances = 0;  // bit d - 1: the pre-gate is used at distance d
};

// The lead of all workers' prefetch (predictor/core/published_stride.h).
struct StridePublished {
  uint64_t word = 0;
};

struct LogitBias {
  int32_t token = 0;
  float bias = 0;
};

// What each does, and in which order: worker/sampler.h.
struct SamplingParams {
  float temperature = 0;  // 0: greedy
  float top_p = 1;
  int32_t top_k = 0;  // 0: off
  uint64_t seed = 0;
  float min_p = 0;  // 0: off
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  std::vector<LogitBias> logit_bias;
};

struct StartSequence {
  SequenceId sequence;
  // Prompt and what was generated so far (a re-queued sequence); never empty.
  std::vector<int32_t> tokens;
  uint32_t prompt_tokens = 0;   // how many of `tokens` are prompt
  uint32_t max_new_tokens = 0;  // counted from the prompt's end
  int64_t rank = 0;             // those of a lower one go first (worker/schedule)
  SamplingParams sampling;
  std::vector<int32_t> stop_tokens;  // generation ends with one of these; it is reported
  std::string grammar;   // of what is generated (model/grammar/schema_grammar.h); empty: anything
  std::string trace_id;  // 32 hex digits, for the timeline; empty: none
  // A CapturedPosition is sent for each position from capture_from on, when any of these is set.
  bool capture_logits = false;
  bool capture_routes = false;
  int32_t capture_logprobs =
      -1;  // how many of the likeliest tokens; -1: none, not the token itself
  uint32_t capture_from = 0;
};

// The bytes of every token by id, one after the other; before the first sequence with a grammar.
// A token that no grammar may use has none.
struct TokenBytes {
  std::string bytes;
  std::vector<uint32_t> sizes;
};

struct CancelSequence {
  SequenceId sequence;
};

struct Shutdown {
  std::string reason;
};

// --- worker -> coordinator ---------------------------------------------------------------------

struct WorkerReady {
  std::string device;      // "cpu"
  std::string kernels;     // "avx2", ...
  std::string arithmetic;  // of its sums: workers of a job must agree
  uint32_t threads = 0;
  uint32_t expert_slots = 0;  // 0 with in_place
  bool in_place = false;
  uint64_t kv_tokens = 0;        // capacity of the KV cache
  bool prefix_cache = false;     // it keeps prefixes for other sequences
  std::string effective_config;  // JSON object
  std::string memory_plan;       // JSON object
};

enum class FinishReason : uint8_t { kNone = 0, kStop = 1, kLength = 2, kCancelled = 3, kError = 4 };

struct TokenEvent {
  SequenceId sequence;
  uint32_t position = 0;  // of `token` in the sequence, prompt included
  int32_t token = 0;
  FinishReason finish = FinishReason::kNone;
};

// The prompt of a sequence was computed here, for the first time.
struct PromptDone {
  SequenceId sequence;
  uint32_t cached_tokens = 0;  // of the prompt: another sequence had computed them
};

struct StepReport {
  uint64_t step = 0;
  std::vector<TokenEvent> tokens;
  std::vector<PromptDone> prompts = {};  // of which `tokens` has the first one
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

// Logits after, and routes at, one position; any list may be empty.
struct CapturedPosition {
  SequenceId sequence;
  uint32_t position = 0;
  std::vector<float> logits;          // [vocab]
  std::vector<int32_t> router_ids;    // [moe_layers * top_k], by descending weight
  std::vector<float> router_weights;  // same shape, as applied
  // Of the token at the next position, then of the likeliest ones there.
  std::vector<TokenLogprob> logprobs;
};

struct SequenceFailed {
  SequenceId sequence;
  uint8_t code = 0;  // StatusCode
  std::string message;
};

// What the worker's predictor has learnt since its last such message.
struct PredictorLearnt {
  uint64_t number = 0;  // 1, 2, ...; one that comes twice counts once
  PredictorSums sums;
};

// What decode steps measured since the last such message: the fields of StrideWindow
// (predictor/core/dynamic_stride.h).
struct StrideReport {
  uint64_t expert_bytes = 0;  // of the model's largest
  uint32_t stride_max = 0;
  uint64_t events = 0;
  uint64_t timed_events = 0;
  uint64_t distinct = 0;
  uint64_t expected = 0;
  uint64_t cached = 0;
  uint64_t prefetch_hits = 0;
  uint64_t prefetch_late = 0;
  uint64_t copied = 0;
  uint64_t wasted = 0;
  uint64_t busy_ns = 0;
  uint64_t layer_ns = 0;
  uint64_t stall_ns = 0;
};

// Why the prefetch's lead is what it is (predictor/core/dynamic_stride.h).
enum class StrideReason : uint8_t {
  kStart = 0,      // before anything was measured
  kMeasured = 1,   // copies and layers, as measured
  kLate = 2,       // much of what was prefetched came too late
  kWaste = 3,      // much of what was copied was in vain
  kLinkBound = 4,  // misses ask for more than the link carries
};
struct StrideMove {
  uint64_t event = 0;  // (step, layer) of decode steps, from 0
  uint32_t stride = 0;
  StrideReason reason = StrideReason::kStart;
};

// Cumulative since the worker started. Times in ns.
struct WorkerStats {
  uint64_t steps = 0;
  uint64_t prefill_tokens = 0;
  uint64_t decode_tokens = 0;
  uint64_t step_ns = 0;
  uint64_t stall_ns = 0;   // compute waited for an expert
  uint64_t hits = 0;       // distinct (step, layer, expert) uses: resident
  uint64_t late_hits = 0;  // on the way when asked for
  uint64_t misses = 0;
  uint64_t bypasses = 0;  // misses served through a streaming buffer
  uint64_t bytes_demand = 0;
  uint64_t bytes_prefetch = 0;
  uint64_t bytes_wasted = 0;     // prefetched, evicted or cancelled without use
  uint64_t decision_digest = 0;  // of all that the cache decided
  uint64_t prefetch_cancelled = 0;
  uint64_t link_busy_ns = 0;
  uint64_t link_bytes_per_second = 0;  // emulated or measured capacity; 0: not known
  bool link_emulated = false;
  bool prefetch_enabled = false;  // effective; may switch itself off
  uint32_t stride = 0;            // layers of lead of the prefetch, now
  uint64_t stride_changes = 0;
  std::vector<StrideMove> stride_moves;  // the latest ones, oldest first
  bool link_bound = false;               // misses ask for more than the link carries
  bool forecast_on = false;              // a forecaster ranks what leaves the cache, now
  bool predictor_on = false;             // prefetch goes by a fitted predictor, now
  uint64_t predictor_version = 0;        // of what all workers learnt; 0: none yet
  uint64_t prefetch_predictions = 0;     // experts predicted / of those, truly routed
  uint64_t prefetch_correct = 0;
  uint64_t reused_tokens = 0;    // tokens found in the KV cache instead of computed
  uint64_t preemptions = 0;      // sequences that gave their KV blocks back for a while
  uint64_t prefetch_routed = 0;  // experts routed in the layers that were predicted
  // In sampled windows: uses, what was missed, and what plain LRU and the best possible cache would
  // have missed.
  uint64_t sampled_uses = 0;
  uint64_t sampled_misses = 0;
  uint64_t sampled_lru_misses = 0;
  uint64_t sampled_best_misses = 0;
  uint64_t kv_blocks_used = 0;
  uint64_t kv_blocks_kept = 0;  // not in use, but with prefixes that can be
  uint64_t kv_blocks_total = 0;
  uint32_t sequences = 0;
  uint64_t resident_bytes = 0;  // proportional set size of the process
};

// What each expert was used for since the worker started, and where it is now. Experts are numbered
// through, layer by layer. Sent along with the statistics when something has run.
enum class ExpertPlace : uint8_t { kAbsent = 0, kLoading = 1, kResident = 2 };
struct ExpertReport {
  std::vector<uint32_t> layers;   // of the model, those with experts
  std::vector<uint32_t> experts;  // in each of these
  std::vector<uint64_t> rows;     // [all experts] tokens that were routed to it
  std::vector<ExpertPlace> places;
};

struct Heartbeat {
  uint64_t progress = 0;  // grows while work is done: liveness and progress are watched apart
  bool busy = false;
};

// A process cannot go on; it exits after sending this. From the coordinator: the receiver cannot
// stay in the job.
struct FatalError {
  uint8_t code = 0;  // StatusCode
  std::string message;
};

// --- client -> coordinator ---------------------------------------------------------------------

inline constexpr int32_t kPriorityMost = 1000;

struct SubmitRequest {
  uint64_t request = 0;  // chosen by the client, unique on its connection
  bool is_text = true;
  std::string text;
  std::vector<int32_t> tokens;  // when !is_text
  uint32_t max_new_tokens = 0;
  int32_t priority = 0;  // within kPriorityMost of 0; the lower goes first (coordinator/session.h)
  SamplingParams sampling;
  std::vector<std::string> stop;  // strings that end generation; not part of the output
  bool ignore_eos = false;
  std::string grammar;   // as StartSequence::grammar
  std::string trace_id;  // as StartSequence::trace_id
  bool capture_logits = false;
  bool capture_routes = false;
  int32_t logprobs = -1;         // of each generated token; as StartSequence::capture_logprobs
  bool prompt_logprobs = false;  // of the prompt's, too
};

struct CancelRequest {
  uint64_t request = 0;
};

struct StatusRequest {};
struct MetricsRequest {};
struct ExpertsRequest {};
struct ShutdownRequest {};

// --- coordinator -> client ---------------------------------------------------------------------

enum class JobPhase : uint8_t {
  kStarting = 0,
  kLoading = 1,
  kReady = 2,
  kStopping = 3,
  kFailed = 4
};

struct JobState {
  JobPhase phase = JobPhase::kStarting;
  uint64_t bytes_done = 0;  // kLoading
  uint64_t bytes_total = 0;
  uint8_t code = 0;  // StatusCode, kFailed
  std::string message;
};

struct TextDelta {
  uint64_t request = 0;
  std::string text;  // whole UTF-8 characters
  std::vector<int32_t> tokens;
};

struct RequestDone {
  uint64_t request = 0;
  FinishReason finish = FinishReason::kNone;
  uint8_t code = 0;  // StatusCode when finish is kError
  std::string message;
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;  // of the prompt
  uint32_t generated_tokens = 0;
  int64_t ttft_ns = 0;    // from submission to the first token
  int64_t total_ns = 0;   // from submission to the last token
  uint32_t requeues = 0;  // how often a worker died under it
};

struct RequestCapture {
  uint64_t request = 0;
  CapturedPosition captured;
};

struct StatusReply {
  std::string json;
};
struct MetricsReply {
  std::string text;
};
struct ExpertsReply {
  std::string json;
};

using AnyMessage =
    std::variant<ProcessInfo, LoadProgress, StoreReady, AttachStore, StartSequence, CancelSequence,
                 Shutdown, WorkerReady, StepReport, CapturedPosition, SequenceFailed, WorkerStats,
                 Heartbeat, FatalError, SubmitRequest, CancelRequest, StatusRequest, MetricsRequest,
                 ShutdownRequest, JobState, TextDelta, RequestDone, RequestCapture, StatusReply,
                 MetricsReply, TokenBytes, PublishTables, ExpertReport, ExpertsRequest,
                 ExpertsReply, PublishBoard, PredictorLearnt, PredictorVersion, StrideReport,
                 StridePublished>;

// A message of any type: what std::get_if, std::visit and the like take as the variant that it is.
// Copying and destroying a variant of so many types is much code; it stands in one file.
class Message : public AnyMessage {
 public:
  using Any = AnyMessage;
  using AnyMessage::AnyMessage;
  Message();
  Message(const Message&);
  Message(Message&&) noexcept;
  Message& operator=(const Message&);
  Message& operator=(Message&&) noexcept;
  ~Message();
};

}  // namespace expertflow

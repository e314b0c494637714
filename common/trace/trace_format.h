// The routing trace `.eft`: what a run's router chose, token by token, and what the predictors may
// learn from (docs/file-formats.md). This header has the shape of a trace and its records as the
// program sees them; trace_writer.h and trace_reader.h have the file.
//
// A row is one token of one step in all MoE layers: where it stood, which experts were chosen with
// which weights, and, where the recording asked for it, the router's scores and the hidden states.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"

namespace expertflow {

inline constexpr uint64_t kTraceMagic = 0x3145434152544645;  // "EFTRACE1"
// Version 2 says what each expert takes; a trace of experts that are alike is still written as 1.
inline constexpr uint32_t kTraceVersion = 2;
inline constexpr int32_t kTraceLayersMax = 1024;
inline constexpr int32_t kTraceExpertsMax = 65536;  // of a layer
inline constexpr int32_t kTraceTopKMax = 64;
inline constexpr int32_t kTraceHiddenMax = 65536;

// Optional columns, a bit each.
enum TraceColumn : uint32_t {
  kTraceRouterScores = 1u << 0,   // the router's logits, all experts
  kTraceRouterHidden = 1u << 1,   // the hidden state that the router sees, before its norm
  kTraceExpertResidual = 1u << 2  // the residual after the layer's experts
};
inline constexpr uint32_t kTraceColumnsKnown =
    kTraceRouterScores | kTraceRouterHidden | kTraceExpertResidual;

struct TraceShape {
  std::vector<int32_t> experts;    // of each MoE layer, in order
  std::vector<int32_t> layer_ids;  // their numbers in the model's stack
  int32_t top_k = 0;
  int32_t hidden = 0;         // 0: no hidden states in the trace
  uint32_t columns = 0;       // TraceColumn bits
  uint64_t expert_bytes = 0;  // one expert block, the largest; 0: not known
  // Of each expert, layer by layer, where blocks differ; empty: all take expert_bytes.
  std::vector<uint64_t> block_bytes;
  std::array<uint8_t, 16> fingerprint = {};  // of the model; zeros: not known
  std::string model;                         // name, for people
  std::string config;                        // the run's effective options as JSON; not interpreted

  int32_t layers() const { return static_cast<int32_t>(experts.size()); }
  int32_t experts_total() const;
  int32_t experts_widest() const;
  // All experts take so much.
  void SetExpertBytes(uint64_t bytes);
  friend bool operator==(const TraceShape&, const TraceShape&) = default;
};
// kInvalidArgument says what is out of range.
Status CheckTraceShape(const TraceShape& shape);

struct TraceSequence {
  uint64_t id = 0;
  int32_t prompt_tokens = 0;
  float temperature = 0;
  float top_p = 1;
  int32_t top_k = 0;
  uint64_t seed = 0;
  std::string label;  // at most 63 bytes: data set, category
  friend bool operator==(const TraceSequence&, const TraceSequence&) = default;
};

enum TraceRowFlags : uint8_t {
  kTraceRowPrompt = 1u << 0,   // prefill; else decode
  kTraceRowSampled = 1u << 1,  // the next token was sampled from this row
};
inline constexpr uint8_t kTraceRowFlagsKnown = kTraceRowPrompt | kTraceRowSampled;

// What tells one language model from another: its fingerprint, or, where a trace has none, a hash
// of its name and shape.
std::array<uint8_t, 16> ModelIdentity(const TraceShape& shape);

// Some rows, column by column. With n rows, L layers, K = top_k, X = experts in all, H = hidden:
struct TraceRows {
  std::vector<uint32_t> step;             // [n] rises or stays
  std::vector<uint32_t> sequence;         // [n] index into the trace's sequences
  std::vector<uint32_t> position;         // [n] in its sequence, prompt counted
  std::vector<int32_t> token;             // [n] id that went in; -1: not known
  std::vector<uint8_t> flags;             // [n] TraceRowFlags
  std::vector<uint16_t> experts;          // [n, L, K] best first
  std::vector<uint16_t> weights;          // [n, L, K] binary16
  std::vector<uint16_t> scores;           // [n, X] binary16; empty without the column
  std::vector<uint16_t> router_hidden;    // [n, L, H] binary16; empty without the column
  std::vector<uint16_t> expert_residual;  // [n, L, H] binary16; empty without the column

  size_t size() const { return step.size(); }
  void Clear();
  friend bool operator==(const TraceRows&, const TraceRows&) = default;
};
// Adds row `r` of `from` to `to`, which has the same columns. REQUIRES: r < from.size()
void AppendRow(const TraceRows& from, size_t r, TraceRows* to);
// Every column has the length that `shape` asks for; experts, flags and sequences are in range.
Status CheckTraceRows(const TraceShape& shape, size_t sequences, const TraceRows& rows);

enum class TraceSpanKind : uint8_t {  // values are part of the file format
  kStep = 0,
  kLayer = 1,
  kStall = 2,
  kCopyDemand = 3,
  kCopyPrefetch = 4,
};
inline constexpr uint8_t kTraceSpanKinds = 5;

// A timing, as in worker/timeline.h.
struct TraceSpan {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  uint64_t bytes = 0;  // copies; kStep: rows
  int16_t layer = -1;
  int16_t expert = -1;
  TraceSpanKind kind = TraceSpanKind::kStep;
  uint8_t reserved[3] = {};
  friend bool operator==(const TraceSpan&, const TraceSpan&) = default;
};
static_assert(sizeof(TraceSpan) == 32);

}  // namespace expertflow

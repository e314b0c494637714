// A recorded trace in memory with what the predictor is fitted to and judged by: the routing, the
// router's logits and the hidden states of every token, in the order of its sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/status.h"
#include "common/trace/trace_sink.h"

namespace expertflow {

class FeatureTrace final : public TraceSink {
 public:
  // Traces of one model follow each other. One without these columns, or of another model, and rows
  // that do not follow each other in their sequence, are kInvalidArgument.
  Status Begin(const TraceShape& shape) override;
  Status Sequence(const TraceSequence& sequence) override;
  Status Rows(const TraceRows& rows) override;

  const TraceShape& shape() const { return shape_; }
  size_t sequences() const { return by_sequence_.size(); }
  size_t tokens() const { return tokens_; }
  size_t length(size_t sequence) const { return by_sequence_[sequence].size(); }

  // One token of a sequence, from 0 as recorded (not its position, when the start is missing).
  int32_t TokenId(size_t sequence, size_t at) const;
  // Of its token ids: the same text in another trace.
  uint64_t HashOf(size_t sequence) const;
  std::span<const uint16_t> Chosen(size_t sequence, size_t at, int32_t layer) const;
  // Into floats; out has top_k, experts of the layer, or hidden numbers.
  void Weights(size_t sequence, size_t at, int32_t layer, std::span<float> out) const;
  void Scores(size_t sequence, size_t at, int32_t layer, std::span<float> out) const;
  void RouterState(size_t sequence, size_t at, int32_t layer, std::span<float> out) const;
  void ExpertResidual(size_t sequence, size_t at, int32_t layer, std::span<float> out) const;

 private:
  struct Place {
    uint32_t block = 0;
    uint32_t row = 0;
  };
  const Place& At(size_t sequence, size_t at) const { return by_sequence_[sequence][at]; }

  TraceShape shape_;
  std::vector<size_t> base_;  // first expert of each layer
  std::vector<TraceRows> blocks_;
  std::vector<std::vector<Place>> by_sequence_;
  std::vector<int64_t> last_position_;
  size_t first_sequence_ = 0;  // of the present trace
  size_t tokens_ = 0;
};

}  // namespace expertflow

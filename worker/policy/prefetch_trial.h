// Whether prefetch is worth its time, measured: now and then it is switched off and on in turns for
// some passes over the layers, and the faster way is kept for a while. Prefetch costs predictions
// and the copies' own time, which a model with small experts notices; where few experts miss that
// is more than it saves.
//
// A trial has rounds of four windows: on, off, off, on, so that what drifts cancels out. It ends
// when the means differ by more than chance would make them, or after some rounds, when nothing
// changes. A pure policy, one thread.
#pragma once

#include <cstdint>

namespace expertflow {

struct PrefetchTrialOptions {
  int32_t moe_layers = 0;
  int32_t window_passes = 8;
  int32_t settle_passes =
      1;  // of a window, that do not count: copies of the other way are under way
  int32_t rounds_most = 4;
  double sure = 2.5;  // standard errors that the means must differ by
  // Share of a layer's time that prefetch may cost: it also takes away waits, which come in lumps.
  double cost_most = 0.03;
  int32_t hold_passes = 1024;  // until the next trial; doubles each time it changes nothing
  int32_t hold_passes_most = 65536;
};

class PrefetchTrial {
 public:
  // REQUIRES: moe_layers > 0; 0 <= settle_passes < window_passes
  explicit PrefetchTrial(const PrefetchTrialOptions& options);

  // Whether to prefetch now.
  bool on() const { return running_ ? window_on_ : chosen_; }
  // What the latest trial that was sure has found; at first, to prefetch.
  bool chosen() const { return chosen_; }
  uint64_t switches() const { return switches_; }

  // A (step, layer) of a step that only decodes; 0: its time is not known.
  void OnLayer(int64_t layer_ns);

 private:
  struct Sums {
    double count = 0;
    double sum = 0;
    double squares = 0;
  };

  void BeginTrial();
  void EndWindow();
  void Conclude(bool choose);

  const PrefetchTrialOptions options_;
  bool chosen_ = true;
  bool running_ = false;
  bool window_on_ = true;
  int32_t window_ = 0;  // of the trial
  int64_t events_ = 0;  // in the window, or since the trial
  int64_t hold_events_;
  // A layer that was interrupted would hide all differences: what is longer than several typical
  // ones counts as so many.
  double typical_ns_ = 0;
  Sums on_;
  Sums off_;
  uint64_t switches_ = 0;
};

}  // namespace expertflow

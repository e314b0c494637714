#include "launch/top/top_screen.h"

#include <fmt/format.h>

#include <optional>

namespace expertflow {
namespace {

// "-" where there is nothing to divide by.
std::string Share(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f} %", 100 * part / whole) : "-";
}

std::string Milliseconds(const std::optional<double>& seconds) {
  return seconds ? fmt::format("{:.1f} ms", *seconds * 1e3) : "-";
}

class Screen {
 public:
  Screen(const MetricSamples& before, const MetricSamples& now, double seconds)
      : before_(before), now_(now), seconds_(seconds) {}

  std::string Text() const {
    std::string text = Job();
    text += fmt::format("\n{:>6}{:>6}{:>10}{:>10}{:>9}{:>9}{:>9}{:>9}{:>11}{:>9}{:>8}{:>10}\n",
                        "worker", "seqs", "tokens/s", "prompt/s", "hit", "late", "miss", "stall",
                        "link MB/s", "recall", "stride", "KV");
    for (const std::string& worker : now_.Labels("expertflow_worker_steps_total", "worker")) {
      text += Worker(worker);
    }
    return text;
  }

 private:
  double Grown(const std::string& name, const std::string& worker) const {
    return Of(now_, name, worker) - Of(before_, name, worker);
  }
  static double Of(const MetricSamples& samples, const std::string& name,
                   const std::string& worker) {
    return samples.Value("expertflow_worker_" + name, "worker", worker);
  }

  std::string Job() const {
    const auto of_outcome = [this](const char* outcome) {
      return now_.Value("expertflow_requests_total", "outcome", outcome);
    };
    double tokens = 0;
    for (const std::string& worker : now_.Labels("expertflow_worker_steps_total", "worker")) {
      tokens += Grown("decode_tokens_total", worker) / seconds_;
    }
    const auto quantile = [this](const char* name, double share) {
      return Milliseconds(QuantileBetween(before_, now_, name, share));
    };
    return fmt::format(
        "{}   {} workers, {} stores   lost {}, restarts {}, sequences moved {}\n"
        "requests   running {}, queued {}   done {}, failed {}, cancelled {}, refused {}\n"
        "clients    {} connected   {:.1f} tokens/s\n"
        "first token  p50 {}, p95 {}   per token  p50 {}, p95 {}\n",
        now_.Value("expertflow_job_ready") > 0 ? "ready" : "not ready",
        now_.Value("expertflow_workers_ready"), now_.Value("expertflow_stores_ready"),
        now_.Value("expertflow_workers_lost_total") + now_.Value("expertflow_stores_lost_total"),
        now_.Value("expertflow_restarts_total"), now_.Value("expertflow_requeues_total"),
        now_.Value("expertflow_requests_running"), now_.Value("expertflow_requests_queued"),
        of_outcome("done"), of_outcome("failed"), of_outcome("cancelled"), of_outcome("refused"),
        now_.Value("expertflow_http_connections"), tokens, quantile("expertflow_ttft_seconds", 0.5),
        quantile("expertflow_ttft_seconds", 0.95), quantile("expertflow_tpot_seconds", 0.5),
        quantile("expertflow_tpot_seconds", 0.95));
  }

  std::string Worker(const std::string& worker) const {
    const double hits = Grown("hits_total", worker);
    const double late = Grown("late_hits_total", worker);
    const double misses = Grown("misses_total", worker);
    const double uses = hits + late + misses;
    const double bytes =
        Grown("bytes_demand_total", worker) + Grown("bytes_prefetch_total", worker);
    return fmt::format(
        "{:>6}{:>6}{:>10.1f}{:>10.1f}{:>9}{:>9}{:>9}{:>9}{:>11.1f}{:>9}{:>8}{:>10}\n", worker,
        Of(now_, "sequences", worker), Grown("decode_tokens_total", worker) / seconds_,
        Grown("prefill_tokens_total", worker) / seconds_, Share(hits, uses), Share(late, uses),
        Share(misses, uses), Share(Grown("stall_ns_total", worker), Grown("step_ns_total", worker)),
        bytes / seconds_ / 1e6,
        Share(Grown("prefetch_correct_total", worker), Grown("prefetch_predictions_total", worker)),
        Of(now_, "stride", worker),
        Share(Of(now_, "kv_blocks_used", worker), Of(now_, "kv_blocks_total", worker)));
  }

  const MetricSamples& before_;
  const MetricSamples& now_;
  const double seconds_;
};

}  // namespace

std::string TopScreen(const MetricSamples& before, const MetricSamples& now, double seconds) {
  return Screen(before, now, seconds).Text();
}

}  // namespace expertflow

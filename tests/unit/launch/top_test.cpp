// The metrics as `expertflow top` reads and shows them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "launch/top/metric_samples.h"
#include "launch/top/top_screen.h"

namespace expertflow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Histogram(int a, int b, int c) {
  return "t_bucket{le=\"0.1\"} " + std::to_string(a) + "\nt_bucket{le=\"0.2\"} " +
         std::to_string(b) + "\nt_bucket{le=\"+Inf\"} " + std::to_string(c) + "\n";
}

TEST(MetricSamples, ReadsNamesLabelsAndNumbersAndLeavesOutTheRest) {
  const MetricSamples samples = MetricSamples::Parse(
      "# HELP a what\n# TYPE a gauge\na 2.5\nb{worker=\"3\",kind=\"x y\"} 7\nb{worker=\"12\"} 1e3\n"
      "broken\nbroken{x=\"1\" 2\nbroken{} \nc{} 4\nd 5");
  EXPECT_EQ(samples.Value("a"), 2.5);
  EXPECT_EQ(samples.Value("none"), 0);
  EXPECT_EQ(samples.Value("b", "worker", "12"), 1000);
  EXPECT_EQ(samples.Value("b", "kind", "x y"), 7);
  EXPECT_EQ(samples.Value("b", "worker", "4"), 0);
  EXPECT_EQ(samples.Value("c"), 4);
  EXPECT_EQ(samples.Value("d"), 5);
  EXPECT_EQ(samples.Value("broken"), 0);
  EXPECT_THAT(samples.Labels("b", "worker"), ElementsAre("12", "3"));
}

TEST(MetricSamples, QuantilesAreOfWhatCameBetweenTheLooks) {
  const MetricSamples before = MetricSamples::Parse(Histogram(100, 100, 100));
  const MetricSamples now = MetricSamples::Parse(Histogram(110, 120, 120));
  EXPECT_NEAR(*QuantileBetween(before, now, "t", 0.25), 0.05, 1e-9);
  EXPECT_NEAR(*QuantileBetween(before, now, "t", 0.75), 0.15, 1e-9);
  EXPECT_FALSE(QuantileBetween(now, now, "t", 0.5));
  EXPECT_FALSE(QuantileBetween(before, now, "u", 0.5));
  // Above the last bound nobody knows how far.
  EXPECT_NEAR(*QuantileBetween(before, MetricSamples::Parse(Histogram(100, 100, 102)), "t", 0.9),
              0.2, 1e-9);
}

TEST(TopScreen, ShowsRatesOfTheTimeBetween) {
  const auto look = [](int tokens, int hits, int misses) {
    return MetricSamples::Parse(
        "expertflow_job_ready 1\nexpertflow_workers_ready 2\nexpertflow_requests_running 3\n"
        "expertflow_worker_steps_total{worker=\"2\"} 1\n"
        "expertflow_worker_decode_tokens_total{worker=\"2\"} " +
        std::to_string(tokens) + "\nexpertflow_worker_hits_total{worker=\"2\"} " +
        std::to_string(hits) + "\nexpertflow_worker_misses_total{worker=\"2\"} " +
        std::to_string(misses) + "\nexpertflow_worker_stride{worker=\"2\"} 4\n");
  };
  const std::string text = TopScreen(look(1000, 500, 500), look(1030, 530, 510), 2);
  EXPECT_THAT(text, HasSubstr("ready   2 workers"));
  EXPECT_THAT(text, HasSubstr("running 3, queued 0"));
  EXPECT_THAT(text, HasSubstr("15.0 tokens/s"));
  EXPECT_THAT(text, HasSubstr("75.0 %"));
  EXPECT_THAT(text, HasSubstr("25.0 %"));
  EXPECT_THAT(text, HasSubstr("first token  p50 -"));
}

}  // namespace
}  // namespace expertflow

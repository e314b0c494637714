#include "coordinator/job_snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

namespace expertflow {
namespace {

using ::testing::HasSubstr;

JobSnapshot Sample() {
  JobSnapshot snapshot;
  snapshot.job = "j\"1";
  snapshot.phase = JobPhase::kReady;
  snapshot.uptime_ns = 5'000'000;
  snapshot.requested_config = R"({"workers": {"value": "1", "source": "default"}})";
  snapshot.queued = 3;
  snapshot.counters.requeues = 2;
  ProcessSnapshot worker;
  worker.member.id = ProcessId(4);
  worker.member.info.role = ProcessRole::kWorker;
  worker.member.info.host = "h";
  worker.member.info.pid = 77;
  worker.ready = true;
  worker.worker.device = "cpu";
  worker.worker.effective_config = R"({"threads": 2})";
  worker.worker.memory_plan = "not JSON";
  worker.stats.hits = 11;
  worker.stats.link_emulated = true;
  snapshot.processes.push_back(worker);
  ProcessSnapshot store;
  store.member.id = ProcessId(1);
  store.member.info.role = ProcessRole::kStore;
  store.store.name = "segment";
  snapshot.processes.push_back(store);
  return snapshot;
}

TEST(StatusJsonTest, ShowsProcessesConfigurationAndFigures) {
  const auto json = nlohmann::json::parse(StatusJson(Sample()));
  EXPECT_EQ(json["job"], "j\"1");
  EXPECT_EQ(json["phase"], "ready");
  EXPECT_EQ(json["requests"]["queued"], 3);
  EXPECT_EQ(json["requests"]["requeues"], 2);
  EXPECT_EQ(json["processes"].size(), 2U);
  EXPECT_EQ(json["processes"][0]["pid"], 77);
  EXPECT_EQ(json["workers"][0]["effective_config"]["threads"], 2);
  EXPECT_TRUE(json["workers"][0]["memory_plan"].is_null());
  EXPECT_EQ(json["workers"][0]["stats"]["hits"], 11);
  EXPECT_EQ(json["workers"][0]["stats"]["link_emulated"], true);
  EXPECT_EQ(json["stores"][0]["name"], "segment");
  EXPECT_EQ(json["requested_config"]["workers"]["source"], "default");
}

TEST(StatusJsonTest, TextThatIsNotUtf8DoesNoHarm) {
  JobSnapshot snapshot = Sample();
  snapshot.job = "\xFF";
  EXPECT_TRUE(nlohmann::json::accept(StatusJson(snapshot)));
}

TEST(StatusJsonTest, LatestLatenciesAndEventsAreShown) {
  JobSnapshot snapshot = Sample();
  auto json = nlohmann::json::parse(StatusJson(snapshot));
  EXPECT_TRUE(json["latency"]["ttft_ms"]["p50"].is_null());
  EXPECT_TRUE(json["events"].empty());
  for (int64_t ms = 100; ms >= 1; --ms) snapshot.counters.ttft.Add(ms * 1'000'000);
  snapshot.events = {{.time_ms = 5, .level = LogLevel::kWarning, .text = "a \"worker\" died"}};
  json = nlohmann::json::parse(StatusJson(snapshot));
  EXPECT_EQ(json["latency"]["ttft_ms"]["p50"], 50.0);
  EXPECT_EQ(json["latency"]["ttft_ms"]["p99"], 99.0);
  EXPECT_EQ(json["latency"]["ttft_ms"]["count"], 100);
  EXPECT_EQ(json["latency"]["tpot_ms"]["count"], 0);
  EXPECT_EQ(json["events"][0]["level"], "warning");
  EXPECT_EQ(json["events"][0]["text"], "a \"worker\" died");
}

TEST(LatencyWindowTest, OldValuesAreForgotten) {
  LatencyWindow window;
  for (int i = 0; i < 1000; ++i) window.Add(7);
  for (int i = 0; i < 999; ++i) window.Add(3);
  EXPECT_EQ(window.size(), 1000U);
  EXPECT_EQ(window.QuantileNs(0.99), 3);
  EXPECT_EQ(window.QuantileNs(1), 7);
  window.Add(3);
  EXPECT_EQ(window.QuantileNs(1), 3);
}

TEST(ExpertsJsonTest, ExpertsAreShownByLayer) {
  const ExpertReport report{
      .layers = {1, 3},
      .experts = {2, 3},
      .rows = {5, 0, 1, 2, 3},
      .places = {ExpertPlace::kResident, ExpertPlace::kAbsent, ExpertPlace::kLoading,
                 ExpertPlace::kResident, ExpertPlace::kResident}};
  const ExpertReport none;
  const WorkerExperts workers[] = {{ProcessId(2), report}, {ProcessId(4), none}};
  EXPECT_EQ(ExpertsJson(workers),
            R"({"format":"expertflow-experts","version":1,"workers":[{"id":2,"layers":[)"
            R"({"layer":1,"rows":[5,0],"places":"r."},{"layer":3,"rows":[1,2,3],"places":"lrr"}]},)"
            R"({"id":4,"layers":[]}]})");
}

TEST(LatencyHistogramTest, BoundsAreInclusiveAndTheRestIsCounted) {
  LatencyHistogram histogram;
  histogram.Add(500'000);
  histogram.Add(500'001);
  histogram.Add(60'000'000'000);
  EXPECT_EQ(histogram.counts.front(), 1U);
  EXPECT_EQ(histogram.counts[1], 1U);
  EXPECT_EQ(histogram.counts.back(), 1U);
  EXPECT_EQ(histogram.sum_ns, 60'001'000'001U);
}

// Names of all metrics in the text, histograms by their base name.
std::set<std::string> MetricNames(const std::string& text) {
  std::set<std::string> names;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("# TYPE ", 0) == 0) names.insert(line.substr(7, line.find(' ', 7) - 7));
  }
  return names;
}

TEST(MetricsTextTest, EveryValueHasHelpAndType) {
  JobSnapshot snapshot = Sample();
  snapshot.counters.ttft.Add(3'000'000);
  snapshot.counters.ttft.Add(9'000'000'000);
  const std::string text = MetricsText(snapshot);
  EXPECT_THAT(text, HasSubstr("\nexpertflow_worker_hits_total{worker=\"4\"} 11\n"));
  EXPECT_THAT(text, HasSubstr("\nexpertflow_requests_total{outcome=\"done\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("\nexpertflow_workers_ready 1\n"));
  EXPECT_THAT(text, HasSubstr("\nexpertflow_ttft_seconds_bucket{le=\"0.002\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("\nexpertflow_ttft_seconds_bucket{le=\"0.005\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nexpertflow_ttft_seconds_bucket{le=\"+Inf\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("\nexpertflow_ttft_seconds_count 2\n"));
  const std::set<std::string> names = MetricNames(text);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line[0] == '#') continue;
    std::string name = line.substr(0, line.find_first_of("{ "));
    for (const char* suffix : {"_bucket", "_sum", "_count"}) {
      const std::string base = name.substr(0, name.rfind(suffix));
      if (names.contains(base)) name = base;
    }
    EXPECT_TRUE(names.contains(name)) << line;
    EXPECT_EQ(name.rfind("expertflow_", 0), 0U) << line;
  }
}

TEST(MetricsTextTest, EveryMetricIsDocumented) {
  std::ifstream file(EXPERTFLOW_SOURCE_DIR "/docs/metrics.md");
  std::stringstream page;
  page << file.rdbuf();
  for (const std::string& name : MetricNames(MetricsText(Sample()))) {
    EXPECT_THAT(page.str(), HasSubstr("`" + name + "`"));
  }
}

}  // namespace
}  // namespace expertflow

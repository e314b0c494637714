// `expertflow bench serve`: an open-loop load on any OpenAI-compatible server.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "launch/commands.h"
#include "launch/descriptors.h"
#include "launch/load/arrival_options.h"
#include "launch/load/load_client.h"
#include "launch/load/load_report.h"
#include "launch/load/server_options.h"

namespace expertflow {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kOtherDescriptors = 64;

// About a token each, in most vocabularies.
constexpr std::string_view kWords[] = {" the", " of", " a",   " in",   " to",   " and", " is",
                                       " was", " it", " sea", " on",   " for",  " as",  " at",
                                       " by",  " he", " his", " with", " that", " from"};

std::string PromptOf(int32_t tokens, std::mt19937_64* random) {
  std::string text;
  for (int32_t i = 0; i < tokens; ++i) text += kWords[(*random)() % std::size(kWords)];
  return text;
}

std::vector<LoadRequest> RequestsOf(const Options& options, const ServerUrl& target,
                                    const std::vector<Arrival>& arrivals) {
  std::mt19937_64 random(static_cast<uint64_t>(options.Integer("seed")));
  const std::string get = options.Text("get");
  const std::string key = options.Text("api-key");
  std::vector<LoadRequest> requests;
  for (const Arrival& arrival : arrivals) {
    if (!get.empty()) {
      requests.push_back({arrival.at_ns, target.Head("GET", get, key) + "\r\n"});
      continue;
    }
    Json body = {{"prompt", PromptOf(arrival.prompt_tokens, &random)},
                 {"max_tokens", arrival.max_tokens},
                 {"temperature", 0},
                 {"ignore_eos", true},
                 {"stream", true},
                 {"stream_options", {{"include_usage", true}}}};
    if (const std::string name = options.Text("model-name"); !name.empty()) body["model"] = name;
    const std::string text = body.dump();
    requests.push_back(
        {arrival.at_ns,
         target.Head("POST", "/v1/completions", key) +
             fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
                         text.size(), text)});
  }
  return requests;
}

Json JsonOf(const Percentiles& percentiles) {
  return {{"p50", percentiles.p50},    {"p90", percentiles.p90}, {"p95", percentiles.p95},
          {"p99", percentiles.p99},    {"max", percentiles.max}, {"mean", percentiles.mean},
          {"count", percentiles.count}};
}

std::string JsonOf(const Options& options, const LoadReport& report) {
  Json errors = Json::object();
  for (const auto& [kind, count] : report.errors) errors[kind] = count;
  const Json json = {{"format", "expertflow-bench-serve"},
                     {"version", 1},
                     {"requested", Json::parse(options.ProvenanceJson())},
                     {"requests", report.requests},
                     {"done", report.done},
                     {"errors", std::move(errors)},
                     {"first_error", report.first_error},
                     {"seconds", report.seconds},
                     {"concurrent_max", report.concurrent_max},
                     {"prompt_tokens", report.prompt_tokens},
                     {"completion_tokens", report.completion_tokens},
                     {"requests_per_second", report.PerSecond(static_cast<double>(report.done))},
                     {"completion_tokens_per_second",
                      report.PerSecond(static_cast<double>(report.completion_tokens))},
                     {"ttft_ms", JsonOf(report.ttft_ms)},
                     {"tpot_ms", JsonOf(report.tpot_ms)},
                     {"gap_ms", JsonOf(report.gap_ms)},
                     {"total_ms", JsonOf(report.total_ms)},
                     {"lateness_ms", JsonOf(report.lateness_ms)},
                     {"good", report.good},
                     {"goodput_per_second", report.PerSecond(static_cast<double>(report.good))}};
  return json.dump(2);
}

std::string TextOf(const LoadReport& report) {
  std::string text = fmt::format(
      "{} of {} requests done in {:.2f} s, {} at once at most\n"
      "{:.1f} requests/s, {:.1f} generated tokens/s\n",
      report.done, report.requests, report.seconds, report.concurrent_max,
      report.PerSecond(static_cast<double>(report.done)),
      report.PerSecond(static_cast<double>(report.completion_tokens)));
  for (const auto& [kind, count] : report.errors) {
    text += fmt::format("{} requests: {}\n", count, kind);
  }
  if (!report.first_error.empty()) text += fmt::format("the first: {}\n", report.first_error);
  text +=
      fmt::format("{:26}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "ms", "p50", "p90", "p95", "p99", "max");
  const auto row = [&text](std::string_view name, const Percentiles& percentiles) {
    if (percentiles.count == 0) return;
    text += fmt::format("{:26}{:10.2f}{:10.2f}{:10.2f}{:10.2f}{:10.2f}\n", name, percentiles.p50,
                        percentiles.p90, percentiles.p95, percentiles.p99, percentiles.max);
  };
  row("first text (TTFT)", report.ttft_ms);
  row("per token (TPOT)", report.tpot_ms);
  row("between pieces of text", report.gap_ms);
  row("whole answer", report.total_ms);
  row("sent after it was due", report.lateness_ms);
  text += fmt::format("within the service level: {} ({:.1f} %), {:.2f} requests/s\n", report.good,
                      report.requests == 0 ? 0.0
                                           : 100.0 * static_cast<double>(report.good) /
                                                 static_cast<double>(report.requests),
                      report.PerSecond(static_cast<double>(report.good)));
  return text;
}

}  // namespace

int BenchServeCommand(const Options& options) {
  const Result<ServerTarget> target = ServerTargetFrom(options);
  if (!target.ok()) return Fail(options, target.status());
  const Result<std::vector<Arrival>> arrivals = ArrivalsFrom(options);
  if (!arrivals.ok()) return Fail(options, arrivals.status());
  RaiseDescriptorLimit(arrivals->size() + kOtherDescriptors);
  LoadClientOptions load;
  load.timeout_ns = options.DurationNs("answer-timeout");
  const Result<std::vector<LoadOutcome>> outcomes =
      RunLoad(*target, RequestsOf(options, target->url, *arrivals), load);
  if (!outcomes.ok()) return Fail(options, outcomes.status(), kExitFailure);
  const LoadReport report = ReportOf(*outcomes, ServiceLevelFrom(options));
  fmt::print("{}", TextOf(report));
  if (const Status json = WriteJsonOption(options, JsonOf(options, report)); !json.ok()) {
    return Fail(options, json, kExitFailure);
  }
  if (report.done > 0) return kExitOk;
  return Fail(options,
              Unavailable(fmt::format("{}: no request was done; the first: {}", target->url.Text(),
                                      report.first_error)),
              kExitFailure);
}

}  // namespace expertflow

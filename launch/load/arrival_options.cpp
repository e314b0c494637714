#include "launch/load/arrival_options.h"

#include <string>

#include "common/mapped_file.h"

namespace expertflow {
namespace {

constexpr size_t kArrivalsBytesMax = size_t{256} << 20;

}  // namespace

Result<std::vector<Arrival>> ArrivalsFrom(const Options& options) {
  const auto count = options.Integer("requests");
  const Arrival each{0, static_cast<int32_t>(options.Integer("prompt-tokens")),
                     static_cast<int32_t>(options.Integer("max-tokens"))};
  const std::string file = options.Text("arrivals");
  if (file.empty()) {
    return PoissonArrivals(options.Number("rate"), count,
                           static_cast<uint64_t>(options.Integer("seed")), each);
  }
  auto text = ReadFileToString(file, kArrivalsBytesMax);
  if (!text.ok()) return text.status().WithContext("--arrivals");
  ArrivalScale scale;
  scale.time = options.Number("time-scale");
  scale.lengths = options.Number("length-scale");
  scale.count_max = count;
  scale.prompt_tokens_max = each.prompt_tokens;
  scale.max_tokens_max = each.max_tokens;
  auto arrivals = ParseArrivals(*text, scale);
  if (!arrivals.ok()) return arrivals.status().WithContext("--arrivals " + file);
  return arrivals;
}

ServiceLevel ServiceLevelFrom(const Options& options) {
  return {static_cast<double>(options.DurationNs("slo-ttft")) / 1e6,
          static_cast<double>(options.DurationNs("slo-tpot")) / 1e6};
}

}  // namespace expertflow

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "common/units.h"
#include "launch/bench/bench_engine.h"
#include "launch/bench/bench_host.h"
#include "launch/bench/bench_model.h"
#include "launch/bench/bench_setup.h"

namespace expertflow {
namespace {

constexpr int32_t kRepetitions = 15;
constexpr int32_t kStepsPerRepetition = 8;
constexpr int32_t kPromptTokens = 16;
constexpr int32_t kWarmUpSteps = 3;
constexpr double kGoalPercent = 80;

double GigabytesPerSecond(uint64_t bytes, int64_t ns) {
  return static_cast<double>(bytes) / static_cast<double>(ns);
}

// Parts of the memory in turn, so that none is in a cache when it is read again.
class ReadWindows {
 public:
  explicit ReadWindows(std::span<const uint8_t> memory) : memory_(memory) {}
  // About `bytes`, less where the memory is smaller.
  std::span<const uint8_t> Next(uint64_t bytes) {
    const size_t size = std::min<size_t>(static_cast<size_t>(bytes), memory_.size());
    if (begin_ + size > memory_.size()) begin_ = 0;
    const std::span<const uint8_t> window = memory_.subspan(begin_, size);
    begin_ += size;
    return window;
  }

 private:
  std::span<const uint8_t> memory_;
  size_t begin_ = 0;
};

}  // namespace

Result<BenchReport> BenchDecode(const BenchSetup& setup) {
  const int32_t repetitions = setup.Repetitions(kRepetitions);
  ASSIGN_OR_RETURN(const BenchModel model, setup.model.empty()
                                               ? BenchModel::Synthesize({}, setup.work_folder)
                                               : BenchModel::Open(setup.model, setup.work_folder));
  const int32_t new_tokens = 1 + kWarmUpSteps + repetitions * kStepsPerRepetition;
  ASSIGN_OR_RETURN(const auto engine,
                   BenchEngine::Create(model, {.threads = setup.threads,
                                               .kernels = setup.kernels,
                                               .positions = kPromptTokens + new_tokens + 64}));
  const std::span<const uint8_t> memory = model.expert_memory();

  HostWatch host;
  const int32_t vocab = model.architecture().shape().vocab;
  RETURN_IF_ERROR(engine->Start(RandomPrompt(kPromptTokens, vocab, 1), new_tokens));
  std::vector<int32_t> tokens;
  // The prompt and the first tokens touch the mapped pages; so does a first read.
  for (int32_t i = 0; i < 1 + kWarmUpSteps; ++i) {
    ASSIGN_OR_RETURN([[maybe_unused]] const int64_t ignored, engine->Step(&tokens));
  }
  TimeRead(memory, setup.threads);

  ReadWindows windows(memory);
  std::vector<double> bandwidth, step_ms, step_bandwidth;
  int32_t position = kPromptTokens + kWarmUpSteps;
  for (int32_t repetition = 0; repetition < repetitions; ++repetition) {
    int64_t read_ns = 0, decode_ns = 0;
    uint64_t read_bytes = 0, decode_bytes = 0;
    for (int32_t i = 0; i < kStepsPerRepetition; ++i) {
      const uint64_t touched = BytesPerToken(model, position++).total();
      const std::span<const uint8_t> window = windows.Next(touched);
      read_ns += TimeRead(window, setup.threads);
      read_bytes += window.size();
      ASSIGN_OR_RETURN(const int64_t step_ns, engine->Step(&tokens));
      decode_ns += step_ns;
      decode_bytes += touched;
    }
    bandwidth.push_back(GigabytesPerSecond(read_bytes, read_ns));
    step_ms.push_back(static_cast<double>(decode_ns) * 1e-6 / kStepsPerRepetition);
    step_bandwidth.push_back(GigabytesPerSecond(decode_bytes, decode_ns));
  }
  std::vector<double> share = PairRatios(step_bandwidth, bandwidth);
  for (double& value : share) value *= 100;

  const TouchedBytes touched = BytesPerToken(model, position);
  BenchReport report;
  report.bench = "decode";
  report.title = "decode at batch 1, in place, against the read bandwidth of the same memory";
  report.machine = host.Describe();
  report.AddSetting("device", engine->DeviceSettings());
  report.AddSetting("model", model.name());
  report.AddSetting("bytes a token touches",
                    fmt::format("{}: {} dense, {} experts, {} keys and values",
                                FormatBytes(touched.total()), FormatBytes(touched.dense),
                                FormatBytes(touched.experts), FormatBytes(touched.kv)));
  report.AddSetting("read arm", fmt::format("as many of the {} of mapped expert blocks, {} threads",
                                            FormatBytes(memory.size()), setup.threads));
  report.AddSetting(
      "samples", fmt::format("a read before each step; {} of both a sample, after {} warm-up steps",
                             kStepsPerRepetition, kWarmUpSteps));
  report.AddRow("memory read", "GB/s", bandwidth, "limit");
  report.AddRow("decode step", "ms", step_ms);
  report.AddRow("decode, bytes touched per second", "GB/s", step_bandwidth);
  report.AddRow("share of the limit, pair by pair", "%", share);
  report.AddGoal("decode's share of the read bandwidth", "%", share, true, kGoalPercent);
  return report;
}

}  // namespace expertflow

#include <fmt/format.h>

#include <vector>

#include "common/clock.h"
#include "device/ops.h"
#include "launch/bench/bench_engine.h"
#include "launch/bench/bench_host.h"
#include "launch/bench/bench_model.h"
#include "launch/bench/bench_setup.h"
#include "worker/expert_block_source.h"

namespace expertflow {
namespace {

constexpr int32_t kRepetitions = 5;
constexpr int32_t kPromptTokens = 512;

// One dense matrix of the model at 512 rows: what the kernels reach when nothing else is done.
class SingleProduct {
 public:
  SingleProduct(const BenchModel& model, Device& device) : device_(device) {
    for (const DenseTensor& tensor : model.store().dense()) {
      const bool square = tensor.shape.size() == 2 && tensor.shape[0] == tensor.shape[1];
      if (!square) continue;
      job_.weight = {tensor.data, tensor.dtype, static_cast<int32_t>(tensor.shape[0]),
                     static_cast<int32_t>(tensor.shape[1])};
      break;
    }
    x_.assign(static_cast<size_t>(kPromptTokens) * static_cast<size_t>(job_.weight.cols), 0.5f);
    out_.assign(static_cast<size_t>(kPromptTokens) * static_cast<size_t>(job_.weight.rows), 0);
    job_.x = x_.data();
    job_.out = out_.data();
  }

  bool found() const { return job_.weight.data != nullptr; }
  int32_t size() const { return job_.weight.rows; }
  // FLOP per nanosecond.
  double Rate() {
    constexpr int kProducts = 8;
    const int64_t begin_ns = NowNs();
    for (int i = 0; i < kProducts; ++i) device_.ops().Linear({&job_, 1}, kPromptTokens);
    return 2.0 * kProducts * kPromptTokens * job_.weight.rows * job_.weight.cols /
           static_cast<double>(NowNs() - begin_ns);
  }

 private:
  Device& device_;
  LinearJob job_;
  std::vector<float> x_;
  std::vector<float> out_;
};

}  // namespace

Result<BenchReport> BenchPrefill(const BenchSetup& setup) {
  ASSIGN_OR_RETURN(const BenchModel model, setup.model.empty()
                                               ? BenchModel::Synthesize({}, setup.work_folder)
                                               : BenchModel::Open(setup.model, setup.work_folder));
  ASSIGN_OR_RETURN(const auto engine,
                   BenchEngine::Create(model, {.threads = setup.threads,
                                               .kernels = setup.kernels,
                                               .positions = kPromptTokens + 64}));
  SingleProduct product(model, engine->device());
  const double flops = PrefillFlops(model, kPromptTokens);
  const int32_t vocab = model.architecture().shape().vocab;

  HostWatch host;
  std::vector<double> ms, tokens_per_s, prefill_rate, product_rate;
  std::vector<int32_t> tokens;
  const int32_t repetitions = setup.Repetitions(kRepetitions);
  for (int32_t repetition = -1; repetition < repetitions; ++repetition) {
    if (product.found()) product_rate.push_back(product.Rate());
    RETURN_IF_ERROR(engine->Start(RandomPrompt(kPromptTokens, vocab, 1), 1));
    ASSIGN_OR_RETURN(const int64_t ns, engine->RunToEnd(&tokens));
    if (repetition < 0) {  // warm-up
      product_rate.clear();
      continue;
    }
    ms.push_back(static_cast<double>(ns) * 1e-6);
    tokens_per_s.push_back(kPromptTokens / (static_cast<double>(ns) * 1e-9));
    prefill_rate.push_back(flops / static_cast<double>(ns));
  }

  BenchReport report;
  report.bench = "prefill";
  report.title = "a prompt of 512 tokens, in place";
  report.machine = host.Describe();
  report.AddSetting("device", engine->DeviceSettings());
  report.AddSetting("model", model.name());
  report.AddSetting("matrix products", fmt::format("{:.4g} GFLOP", flops * 1e-9));
  report.AddSetting("samples", "arms take turns, after one warm-up of each");
  report.AddSetting("other libraries", "bench_kernels compares with OpenBLAS and oneDNN");
  report.AddRow("prefill", "ms", ms);
  report.AddRow("prefill", "tokens/s", tokens_per_s);
  report.AddRow("prefill", "GFLOP/s", prefill_rate);
  if (product.found()) {
    report.AddRow(fmt::format("one {0} x {0} product, 512 rows", product.size()), "GFLOP/s",
                  product_rate, "kernel alone");
    std::vector<double> share = PairRatios(prefill_rate, product_rate);
    for (double& value : share) value *= 100;
    report.AddRow("prefill's share of the kernel alone", "%", share);
  }
  return report;
}

}  // namespace expertflow

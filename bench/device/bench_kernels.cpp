// CPU kernels and copies beside what the machine and the usual libraries can do, in one run:
//   read          plain reading of memory, the limit of a GEMV that streams its weights
//   gemv, gemm    Linear with bf16 weights; sgemm and onednn are the same product with f32 weights
//   copy, memcpy  17 MB blocks over the transfer stream, and by memcpy
// Every arm uses kThreads threads (copies: one). Weights rotate through kWeightBytes of memory, so
// that no arm finds them in a cache. The CPU column is the time of all threads together: on a busy
// machine it says more than the clock.
#include <benchmark/benchmark.h>
#include <cblas.h>
#include <fmt/core.h>
#include <omp.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <thread>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "device/ops.h"

namespace expertflow {
namespace {

constexpr int32_t kThreads = 2;
constexpr size_t kWeightBytes = size_t{400} << 20;
constexpr size_t kBlockBytes = 17'301'504;  // one bf16 expert of 3 * 2048 * 1408 weights

struct Shape {
  int32_t cols, rows;
};
constexpr Shape kShapes[] = {{2048, 1408}, {1408, 2048}, {2048, 5632}, {2048, 2048}};
constexpr int32_t kBatches[] = {1, 16, 64, 512};

Device& TestDevice() {
  static const std::unique_ptr<Device> device = [] {
    auto created = CreateCpuDevice({.threads = kThreads});
    if (!created.ok()) {
      std::fprintf(stderr, "%s\n", created.status().ToString().c_str());
      std::exit(1);
    }
    return std::move(created).value();
  }();
  return *device;
}

// Written once, shared by all arms: small values in both bf16 and f32.
std::byte* Memory() {
  static const std::unique_ptr<DeviceAllocation> memory = [] {
    auto allocated = TestDevice().Allocate(kWeightBytes);
    if (!allocated.ok()) {
      std::fprintf(stderr, "%s\n", allocated.status().ToString().c_str());
      std::exit(1);
    }
    auto* words = reinterpret_cast<uint32_t*>((*allocated)->data());
    for (size_t i = 0; i < kWeightBytes / 4; ++i) {
      words[i] = 0x3c003c00u + static_cast<uint32_t>(i * 2654435761u >> 7 & 0x003f003fu);
    }
    return std::move(allocated).value();
  }();
  return memory->data();
}

// Sums `bytes` at `data` as 64-bit integers; the attribute is for this benchmark only.
__attribute__((target("avx2"), optimize("O3"))) uint64_t Sum(const std::byte* data, size_t bytes) {
  const auto* words = reinterpret_cast<const uint64_t*>(data);
  uint64_t sums[16] = {};
  for (size_t i = 0; i + 16 <= bytes / 8; i += 16) {
    for (size_t j = 0; j < 16; ++j) sums[j] += words[i + j];
  }
  return std::accumulate(std::begin(sums), std::end(sums), uint64_t{0});
}

void Read(benchmark::State& state) {
  const std::byte* memory = Memory();
  const size_t share = kWeightBytes / kThreads;
  for (auto _ : state) {
    std::vector<std::thread> threads;
    for (size_t t = 1; t < kThreads; ++t) {
      threads.emplace_back([=] { benchmark::DoNotOptimize(Sum(memory + t * share, share)); });
    }
    benchmark::DoNotOptimize(Sum(memory, share));
    for (std::thread& thread : threads) thread.join();
  }
  state.SetBytesProcessed(static_cast<int64_t>(kWeightBytes) * state.iterations());
}

// The next of the matrices of `bytes` that fit into Memory().
class Rotation {
 public:
  explicit Rotation(size_t bytes) : bytes_(bytes), count_(kWeightBytes / bytes) {}
  std::byte* Next() { return Memory() + bytes_ * (next_++ % count_); }

 private:
  size_t bytes_;
  size_t count_;
  size_t next_ = 0;
};

void CountProduct(benchmark::State& state, const Shape& shape, int32_t m, size_t weight_bytes) {
  const double weights = double{1} * shape.cols * shape.rows;
  const auto total = [&](double each) {
    return benchmark::Counter(each, benchmark::Counter::kIsIterationInvariantRate);
  };
  state.counters["FLOP/s"] = total(2 * weights * m);
  state.counters["weight_bytes/s"] = total(weights * static_cast<double>(weight_bytes));
}

void Ours(benchmark::State& state, Shape shape, int32_t m) {
  const auto cols = static_cast<size_t>(shape.cols), rows = static_cast<size_t>(shape.rows);
  const std::vector<float> x(static_cast<size_t>(m) * cols, 0.5f);
  std::vector<float> out(static_cast<size_t>(m) * rows);
  Rotation weights(cols * rows * 2);
  for (auto _ : state) {
    LinearJob job;
    job.weight = {weights.Next(), DType::kBF16, shape.rows, shape.cols};
    job.x = x.data();
    job.out = out.data();
    TestDevice().ops().Linear({&job, 1}, m);
  }
  CountProduct(state, shape, m, 2);
}

void OpenBlas(benchmark::State& state, Shape shape, int32_t m) {
  const auto cols = static_cast<size_t>(shape.cols), rows = static_cast<size_t>(shape.rows);
  const std::vector<float> x(static_cast<size_t>(m) * cols, 0.5f);
  std::vector<float> out(static_cast<size_t>(m) * rows);
  Rotation weights(cols * rows * 4);
  for (auto _ : state) {
    const auto* w = reinterpret_cast<const float*>(weights.Next());
    if (m == 1) {
      cblas_sgemv(CblasRowMajor, CblasNoTrans, shape.rows, shape.cols, 1, w, shape.cols, x.data(),
                  1, 0, out.data(), 1);
    } else {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, shape.rows, shape.cols, 1, x.data(),
                  shape.cols, w, shape.cols, 0, out.data(), shape.rows);
    }
  }
  CountProduct(state, shape, m, 4);
}

void OneDnn(benchmark::State& state, Shape shape, int32_t m) {
  using dnnl::memory;
  const auto cols = static_cast<size_t>(shape.cols), rows = static_cast<size_t>(shape.rows);
  std::vector<float> x(static_cast<size_t>(m) * cols, 0.5f);
  std::vector<float> out(static_cast<size_t>(m) * rows);
  Rotation weights(cols * rows * 4);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const auto f32 = memory::data_type::f32;
  const memory::desc x_desc({m, shape.cols}, f32, memory::format_tag::ab);
  const memory::desc w_desc({shape.cols, shape.rows}, f32, memory::format_tag::ba);
  const memory::desc out_desc({m, shape.rows}, f32, memory::format_tag::ab);
  const dnnl::matmul product(
      dnnl::matmul::primitive_desc(dnnl::matmul::desc(x_desc, w_desc, out_desc), engine));
  memory x_memory(x_desc, engine, x.data()), out_memory(out_desc, engine, out.data());
  for (auto _ : state) {
    memory w_memory(w_desc, engine, weights.Next());
    product.execute(
        stream,
        {{DNNL_ARG_SRC, x_memory}, {DNNL_ARG_WEIGHTS, w_memory}, {DNNL_ARG_DST, out_memory}});
    stream.wait();
  }
  CountProduct(state, shape, m, 4);
}

void CopyBlocks(benchmark::State& state, bool by_device) {
  auto arena = TestDevice().Allocate(8 * kBlockBytes);
  if (!arena.ok()) return state.SkipWithError(arena.status().ToString().c_str());
  Rotation source(kBlockBytes);
  size_t slot = 0;
  for (auto _ : state) {
    std::byte* to = (*arena)->data() + kBlockBytes * (slot++ % 8);
    if (by_device) {
      const Status copied =
          TestDevice().CopyToDevice(StreamKind::kTransfer, to, source.Next(), kBlockBytes);
      if (!copied.ok()) return state.SkipWithError(copied.ToString().c_str());
    } else {
      std::memcpy(to, source.Next(), kBlockBytes);
      benchmark::ClobberMemory();
    }
  }
  state.SetBytesProcessed(static_cast<int64_t>(kBlockBytes) * state.iterations());
}

// How much of an emulated 4 GB/s link back-to-back chunks of 1 MiB keep in use.
void EmulatedLink(benchmark::State& state) {
  CpuDeviceOptions options;
  options.threads = 1;
  options.link.bytes_per_second = 4'000'000'000;
  options.link.latency_ns = 10'000;
  const auto device = CreateCpuDevice(options);
  if (!device.ok()) return state.SkipWithError(device.status().ToString().c_str());
  std::vector<std::byte> to(1 << 20);
  Rotation source(to.size());
  int64_t wall_ns = -NowNs();
  for (auto _ : state) {
    const Status copied =
        (*device)->CopyToDevice(StreamKind::kTransfer, to.data(), source.Next(), to.size());
    if (!copied.ok()) return state.SkipWithError(copied.ToString().c_str());
  }
  wall_ns += NowNs();
  state.SetBytesProcessed(static_cast<int64_t>(to.size()) * state.iterations());
  state.counters["link_in_use"] =
      static_cast<double>((*device)->transfer_counters().busy_ns) / static_cast<double>(wall_ns);
}

void Register() {
  benchmark::RegisterBenchmark("read", Read)->MeasureProcessCPUTime()->UseRealTime();
  for (const Shape& shape : kShapes) {
    for (int32_t m : kBatches) {
      const std::string name = fmt::format("/{}->{}/m:{}", shape.cols, shape.rows, m);
      benchmark::RegisterBenchmark(("ours_bf16" + name).c_str(), Ours, shape, m)
          ->MeasureProcessCPUTime()
          ->UseRealTime();
      benchmark::RegisterBenchmark(("openblas_f32" + name).c_str(), OpenBlas, shape, m)
          ->MeasureProcessCPUTime()
          ->UseRealTime();
      benchmark::RegisterBenchmark(("onednn_f32" + name).c_str(), OneDnn, shape, m)
          ->MeasureProcessCPUTime()
          ->UseRealTime();
    }
  }
  benchmark::RegisterBenchmark("copy_17MB/device", CopyBlocks, true)
      ->MeasureProcessCPUTime()
      ->UseRealTime();
  benchmark::RegisterBenchmark("copy_17MB/memcpy", CopyBlocks, false)
      ->MeasureProcessCPUTime()
      ->UseRealTime();
  benchmark::RegisterBenchmark("copy_1MiB/emulated_4GB/s", EmulatedLink)
      ->MeasureProcessCPUTime()
      ->UseRealTime();
}

}  // namespace
}  // namespace expertflow

int main(int argc, char** argv) {
  const std::string threads = std::to_string(expertflow::kThreads);
  omp_set_num_threads(expertflow::kThreads);  // oneDNN's runtime
  openblas_set_num_threads(expertflow::kThreads);
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("kernels", expertflow::TestDevice().properties().kernels);
  benchmark::AddCustomContext("threads_per_arm", threads);
  expertflow::Register();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

#include "launch/bench/bench_host.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <thread>

#include "common/clock.h"
#include "common/process.h"

namespace expertflow {
namespace {

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

std::string LoadAverage() {
  std::ifstream file("/proc/loadavg");
  std::string minute;
  file >> minute;
  return minute;
}

// Seconds of all CPUs that were not idle, stolen time included.
double BusySeconds() {
  std::ifstream file("/proc/stat");
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, soft = 0, steal = 0;
  file >> name >> user >> nice >> system >> idle >> wait >> irq >> soft >> steal;
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  return (user + nice + system + irq + soft + steal) / ticks;
}

double OwnSeconds() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    getrusage(who, &usage);
    seconds += static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
               static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
  }
  return seconds;
}

constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr size_t kLineBytes = 64;
// One stream of loads does not saturate memory: each keeps the hardware's prefetchers busy for
// itself only.
constexpr size_t kStreams = 4;

// Loads all of `piece` in kStreams parts at once; the sum only keeps the loads alive.
uint64_t Sum(const uint8_t* piece, size_t bytes) {
  using Words = uint64_t __attribute__((vector_size(16), may_alias, aligned(1)));
  const size_t part = bytes / kStreams / kLineBytes * kLineBytes;
  Words sums[kStreams] = {};
  for (size_t i = 0; i < part; i += kLineBytes) {
    for (size_t stream = 0; stream < kStreams; ++stream) {
      const auto* line = reinterpret_cast<const Words*>(piece + stream * part + i);
      sums[stream] += (line[0] + line[1]) + (line[2] + line[3]);
    }
  }
  uint64_t total = 0;
  for (const Words& sum : sums) total += sum[0] + sum[1];
  return total;
}

}  // namespace

HostWatch::HostWatch()
    : begin_ns_(NowNs()), begin_busy_s_(BusySeconds()), begin_own_s_(OwnSeconds()) {}

std::vector<std::pair<std::string, std::string>> HostWatch::Describe() const {
  const double seconds = static_cast<double>(NowNs() - begin_ns_) * 1e-9;
  const double others = (BusySeconds() - begin_busy_s_) - (OwnSeconds() - begin_own_s_);
  const int cores = CoreCount();
  return {
      {"cpu", fmt::format("{}, {} cores", CpuModel(), cores)},
      {"compiler", fmt::format("gcc-compatible {}", __VERSION__)},
      {"busy with other work", fmt::format("{:.2f} of {} cores on average; load average {}",
                                           std::max(others, 0.0) / seconds, cores, LoadAverage())}};
}

int64_t TimeRead(std::span<const uint8_t> memory, int32_t threads) {
  std::atomic<size_t> next{0};
  std::atomic<uint64_t> sum{0};
  // Pieces are handed out: a thread that the system interrupts does not hold up the others.
  const auto read = [&] {
    while (true) {
      const size_t begin = kPieceBytes * next.fetch_add(1, std::memory_order_relaxed);
      if (begin >= memory.size()) return;
      const std::span<const uint8_t> piece =
          memory.subspan(begin, std::min(kPieceBytes, memory.size() - begin));
      sum.fetch_add(Sum(piece.data(), piece.size()), std::memory_order_relaxed);
    }
  };
  const int64_t begin_ns = NowNs();
  std::vector<std::thread> others;
  for (int32_t thread = 1; thread < threads; ++thread) others.emplace_back(read);
  read();
  for (std::thread& other : others) other.join();
  return NowNs() - begin_ns;
}

}  // namespace expertflow

#include "launch/bench/bench_host.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <sstream>
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

// Eight independent sums keep enough loads in flight; the result only keeps the loads alive.
uint64_t Sum(std::span<const uint8_t> memory) {
  constexpr size_t kLanes = 16;
  uint64_t sums[kLanes] = {};
  const uint8_t* data = memory.data();
  for (size_t i = 0; i + sizeof(sums) <= memory.size(); i += sizeof(sums)) {
    uint64_t words[kLanes];
    std::memcpy(words, data + i, sizeof(words));
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += words[lane];
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
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
  const size_t share = memory.size() / static_cast<size_t>(threads);
  std::atomic<uint64_t> sum{0};
  const auto read = [&](int32_t thread) {
    sum += Sum(memory.subspan(static_cast<size_t>(thread) * share, share));
  };
  const int64_t begin_ns = NowNs();
  std::vector<std::thread> others;
  for (int32_t thread = 1; thread < threads; ++thread) others.emplace_back(read, thread);
  read(0);
  for (std::thread& other : others) other.join();
  return NowNs() - begin_ns;
}

}  // namespace expertflow

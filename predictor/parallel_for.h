// Runs independent pieces of a fit on some threads. What a piece computes may not depend on who
// runs it, so that results do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace expertflow {

// Calls run(0) ... run(count - 1), each once. Returns when all are done.
inline void ParallelFor(int32_t threads, size_t count, const std::function<void(size_t)>& run) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) run(i);
  };
  std::vector<std::thread> others;
  const size_t wanted = std::min(count, static_cast<size_t>(std::max(threads, 1)));
  for (size_t t = 1; t < wanted; ++t) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace expertflow

// The shadow of LRU against LRU written out plainly, on random events.
#include "worker/cache/shadow_lru.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace expertflow {
namespace {

TEST(ShadowLruTest, CountsWhatPlainLruMisses) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const size_t experts = 3 + random() % 20;
    const auto slots = static_cast<int32_t>(random() % (experts + 2));
    ShadowLru shadow(experts, slots);
    std::vector<std::pair<uint64_t, size_t>> held;  // (order of use, expert)
    uint64_t order = 0;
    for (uint64_t event = 1; event <= 200; ++event) {
      std::set<size_t> drawn;
      for (size_t i = 0; i < 1 + random() % 4; ++i) drawn.insert(random() % experts);
      const std::vector<size_t> uses(drawn.begin(), drawn.end());
      int32_t misses = 0;
      const auto is = [](size_t e) { return [e](const auto& h) { return h.second == e; }; };
      std::vector<size_t> newcomers;
      for (const size_t e : uses) {
        const auto found = std::find_if(held.begin(), held.end(), is(e));
        if (found == held.end()) {
          ++misses;
          newcomers.push_back(e);
        } else {
          found->first = ++order;
        }
      }
      for (const size_t e : newcomers) {
        if (static_cast<int32_t>(held.size()) == slots) {
          const auto oldest = std::min_element(held.begin(), held.end());
          if (oldest == held.end() || drawn.count(oldest->second) != 0) continue;
          held.erase(oldest);
        }
        held.emplace_back(++order, e);
      }
      ASSERT_EQ(shadow.OnEvent(uses), misses) << "seed " << seed << ", event " << event;
      ASSERT_TRUE(shadow.IsConsistent());
      ASSERT_EQ(shadow.held(), static_cast<int32_t>(held.size()));
      for (const auto& [at, e] : held) ASSERT_TRUE(shadow.Holds(e));
    }
  }
}

}  // namespace
}  // namespace expertflow

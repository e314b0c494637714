// So many requests a minute for each caller: all at once if it likes, then one by one as they come
// free again. Pure; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace expertflow {

class RateLimiter {
 public:
  // `per_minute` 0: no limit.
  explicit RateLimiter(int64_t per_minute) { SetRate(per_minute); }

  void SetRate(int64_t per_minute);
  int64_t per_minute() const { return per_minute_; }
  // Nothing when the request may go on; else the time until one may.
  std::optional<int64_t> Take(size_t caller, int64_t now_ns);

 private:
  int64_t per_minute_ = 0;
  int64_t cost_ns_ = 0;  // of a request
  // By caller: when all that it has asked for is paid (the generic cell rate algorithm of ATM).
  std::vector<int64_t> paid_ns_;
};

}  // namespace expertflow

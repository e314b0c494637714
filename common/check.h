// CHECK: programmer errors only, on in release. Nothing that comes from outside (request,
// checkpoint, peer, file) may reach one; that is what Status is for.
#pragma once

namespace expertflow::internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);
}

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) [[unlikely]] {                                       \
      ::expertflow::internal::CheckFailed(__FILE__, __LINE__, #condition); \
    }                                                                      \
  } while (0)

// Any bytes as a shard index: no accepted shard name leaves the folder.
#include <cstdlib>
#include <string_view>

#include "model/checkpoint/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto map =
      expertflow::ParseCheckpointIndex({reinterpret_cast<const char*>(data), size}, "input");
  if (!map.ok()) return 0;
  for (const auto& [tensor, file] : *map) {
    if (file.empty() || file == ".." || file.find('/') != std::string::npos) std::abort();
  }
  return 0;
}

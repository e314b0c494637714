// Any bytes as a safetensors file: parsed or refused, and what is accepted lies inside the file.
#include <cstdlib>
#include <span>

#include "model/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto entries = expertflow::ParseSafetensors({data, size}, "input");
  if (!entries.ok()) return 0;
  for (const expertflow::SafetensorsEntry& entry : *entries) {
    if (entry.file_offset > size || entry.bytes > size - entry.file_offset) std::abort();
  }
  return 0;
}

// Any bytes as a GGUF file: parsed or refused, what is accepted lies inside the file, and its
// config and tokenizer are texts or refusals.
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <span>
#include <string>

#include "model/checkpoint/gguf_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto content = expertflow::ParseGguf({data, size}, "input");
  if (!content.ok()) return 0;
  for (const expertflow::SafetensorsEntry& entry : content->tensors) {
    if (entry.file_offset > size || entry.bytes > size - entry.file_offset) std::abort();
  }
  static const std::string path = "/dev/shm/fuzz-gguf-" + std::to_string(::getpid());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  const auto file = expertflow::GgufFile::Open(path);
  ::unlink(path.c_str());
  if (!file.ok()) std::abort();
  static_cast<void>(expertflow::GgufConfigJson(*file));
  static_cast<void>(expertflow::GgufTokenizerJson(*file));
  static_cast<void>(expertflow::GgufTokenizerConfigJson(*file));
  return 0;
}

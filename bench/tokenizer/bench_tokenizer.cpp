// Times one tokenizer.json: loading it, and encoding a text, in processor time of one thread.
// Prints a JSON object; against_tokenizers.py compares it with the `tokenizers` package.
//
// usage: bench_tokenizer TOKENIZER_JSON TEXT REPETITIONS
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "common/mapped_file.h"
#include "model/tokenizer/tokenizer.h"

namespace expertflow {
namespace {

int64_t ProcessorNs() {
  timespec now = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

template <typename Fn>
Result<int64_t> MedianNs(int repetitions, const Fn& fn) {
  std::vector<int64_t> times;
  for (int i = 0; i < repetitions; ++i) {
    const int64_t begin_ns = ProcessorNs();
    RETURN_IF_ERROR(fn());
    times.push_back(ProcessorNs() - begin_ns);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// The ids as a number that two programs can compare (FNV-1a over their four bytes).
uint64_t HashOf(const std::vector<int32_t>& ids) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const int32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ (static_cast<uint32_t>(id) >> shift & 255)) * 0x100000001b3;
    }
  }
  return hash;
}

Status Run(const std::string& file, const std::string& text_file, int repetitions) {
  ASSIGN_OR_RETURN(const std::string text, ReadFileToString(text_file, Tokenizer::kTextBytesMax));
  std::unique_ptr<Tokenizer> tokenizer;
  ASSIGN_OR_RETURN(const int64_t load_ns, MedianNs(repetitions, [&]() -> Status {
                     ASSIGN_OR_RETURN(tokenizer, Tokenizer::Load(file));
                     return OkStatus();
                   }));
  std::vector<int32_t> ids;
  ASSIGN_OR_RETURN(const int64_t encode_ns, MedianNs(repetitions, [&]() -> Status {
                     ASSIGN_OR_RETURN(ids, tokenizer->Encode(text));
                     return OkStatus();
                   }));
  fmt::print(R"({{"vocab":{},"bytes":{},"ids":{},"hash":"{:016x}","load_ns":{},"encode_ns":{}}})"
             "\n",
             tokenizer->vocab_size(), text.size(), ids.size(), HashOf(ids), load_ns, encode_ns);
  return OkStatus();
}

}  // namespace
}  // namespace expertflow

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: bench_tokenizer TOKENIZER_JSON TEXT REPETITIONS\n");
    return 2;
  }
  const expertflow::Status status =
      expertflow::Run(argv[1], argv[2], std::max(1, std::atoi(argv[3])));
  if (status.ok()) return 0;
  std::fprintf(stderr, "error: %s\n", status.message().c_str());
  return 1;
}

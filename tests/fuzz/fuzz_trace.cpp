// Any bytes as a routing trace. The hashes would keep the fuzzer from everything behind them, so
// each input is parsed twice: as it is, and with the hashes set right.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "common/trace/trace_codec.h"
#include "common/trace/trace_reader.h"

namespace {

using expertflow::trace_codec::BlockHeader;
using expertflow::trace_codec::FileHeader;

void Parse(std::span<const uint8_t> bytes) {
  const auto reader = expertflow::TraceReader::Parse(bytes, "input");
  if (!reader.ok()) return;
  uint64_t rows = 0;
  for (size_t block = 0; block < reader->row_blocks(); ++block) {
    const auto read = reader->ReadRows(block);
    rows += reader->rows_in(block);
    if (!read.ok()) continue;
    if (!CheckTraceRows(reader->shape(), reader->sequences().size(), *read).ok()) std::abort();
  }
  if (rows != reader->rows()) std::abort();
  for (size_t block = 0; block < reader->span_blocks(); ++block) {
    (void)reader->ReadSpans(block).ok();
  }
}

// Sets the hashes of the description and of each block that can be reached from the front.
void Repair(std::span<uint8_t> bytes) {
  FileHeader header;
  if (bytes.size() < sizeof(header)) return;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.meta_bytes > bytes.size() - sizeof(header)) return;
  header.magic = expertflow::kTraceMagic;
  header.version = 1 + header.version % expertflow::kTraceVersion;
  header.header_bytes = sizeof(header);
  header.meta_hash =
      expertflow::trace_codec::Hash(bytes.subspan(sizeof(header), header.meta_bytes));
  std::memcpy(bytes.data(), &header, sizeof(header));
  for (size_t at = sizeof(header) + header.meta_bytes; at < bytes.size();) {
    BlockHeader block;
    if (bytes.size() - at < sizeof(block)) return;
    std::memcpy(&block, bytes.data() + at, sizeof(block));
    if (block.stored_bytes > bytes.size() - at - sizeof(block)) return;
    block.hash = expertflow::trace_codec::BlockHash(
        block, bytes.subspan(at + sizeof(block), block.stored_bytes));
    std::memcpy(bytes.data() + at, &block, sizeof(block));
    at += sizeof(block) + block.stored_bytes;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint8_t> bytes(data, data + size);
  Parse(bytes);
  Repair(bytes);
  Parse(bytes);
  return 0;
}

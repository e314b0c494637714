// Routing that other programs recorded, as rows of our trace. Two forms:
// - NAME.json with NAME.ids.u8.xz and NAME.probs.f16.xz beside it: counts and sequences in the
//   JSON; chosen experts and their weights as packed arrays [tokens, layers, top_k];
// - NAME.jsonl: a line that describes the model, then a line for each token (docs/file-formats.md).
// Files are untrusted: sizes and values are checked, and errors name file and line.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "common/status.h"
#include "common/trace/trace_sink.h"

namespace expertflow {

bool IsImportable(const std::string& path);
// `expert_bytes`: what one expert takes, when the files do not say; 0: not known.
Status ImportTrace(const std::string& path, uint64_t expert_bytes, TraceSink* sink);

}  // namespace expertflow

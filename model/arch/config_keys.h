// Keys that any Hugging Face config.json may hold and that have no effect on inference.
#pragma once

#include "common/status.h"
#include "model/checkpoint/json_config.h"

namespace expertflow {

// Marks the inert keys as known; then every key that nobody read is refused by name.
Status RefuseUnknownKeys(const JsonConfig& config);

// Settings that change the weights or the arithmetic in ways that no architecture here knows yet:
// refused by name when they are set (compression_config, ...). Checks dtype / torch_dtype.
Status RefuseCommonUnsupported(const JsonConfig& config);

}  // namespace expertflow

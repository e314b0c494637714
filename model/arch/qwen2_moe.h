// Qwen2-MoE (Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B): grouped-query attention with q/k/v biases, softmax
// top-k routing, one shared expert behind a sigmoid gate.
#pragma once

#include <memory>

#include "common/status.h"
#include "model/arch/architecture.h"

namespace expertflow {

Result<std::unique_ptr<Architecture>> MakeQwen2Moe(const JsonConfig& config);

}  // namespace expertflow

// The families, one file each: its config, its tensors with their shapes, and how its layers are
// made of the blocks of decoder.h. docs/adding-a-model.md says how the next one is added.
#pragma once

#include <memory>

#include "common/status.h"
#include "model/arch/architecture.h"

namespace expertflow {

// Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B
Result<std::unique_ptr<Architecture>> MakeQwen2Moe(const JsonConfig& json);
// Qwen3-30B-A3B, Qwen3-235B-A22B
Result<std::unique_ptr<Architecture>> MakeQwen3Moe(const JsonConfig& json);
// Mixtral 8x7B, 8x22B
Result<std::unique_ptr<Architecture>> MakeMixtral(const JsonConfig& json);
// OLMoE-1B-7B
Result<std::unique_ptr<Architecture>> MakeOlmoe(const JsonConfig& json);

// GLM-4.5, GLM-4.5-Air
Result<std::unique_ptr<Architecture>> MakeGlm4Moe(const JsonConfig& json);
// gpt-oss-20b, gpt-oss-120b
Result<std::unique_ptr<Architecture>> MakeGptOss(const JsonConfig& json);
// Granite 3.0, 3.1 MoE (1b-a400m, 3b-a800m), PowerMoE
Result<std::unique_ptr<Architecture>> MakeGraniteMoe(const JsonConfig& json);
// DeepSeek-V2, V2-Lite
Result<std::unique_ptr<Architecture>> MakeDeepseekV2(const JsonConfig& json);
// DeepSeek-V3, R1, Moonlight
Result<std::unique_ptr<Architecture>> MakeDeepseekV3(const JsonConfig& json);

}  // namespace expertflow

// What a GGUF file says of its model, in the terms of a Hugging Face folder: the texts that it
// stands for, and where a tensor of such a checkpoint lies in it.
//
// Architectures: qwen2moe, qwen3moe, llama with experts (Mixtral), olmoe, deepseek2, gpt-oss. A key
// of the architecture that is not known is refused by name, as is a tokenizer that is not known.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/status.h"
#include "model/checkpoint/gguf.h"

namespace expertflow {

Result<std::string> GgufConfigJson(const GgufFile& file);
Result<std::string> GgufTokenizerJson(const GgufFile& file);
// The chat template and the tokens that it may name.
Result<std::string> GgufTokenizerConfigJson(const GgufFile& file);

// A tensor of the folder's form in the file.
struct GgufPlace {
  std::string tensor;    // "blk.3.ffn_gate_exps.weight"; empty: not known
  int64_t expert = -1;   // of the first dimension; -1: the whole tensor
  std::string single;    // of an older file that has an expert as a tensor of its own
  bool rotated = false;  // rows of queries or keys, which "llama" stores in another order
};
GgufPlace FindInGguf(std::string_view architecture, std::string_view name);

}  // namespace expertflow

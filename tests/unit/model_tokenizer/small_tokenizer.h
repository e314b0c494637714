// A tokenizer.json for tests that change one thing in it: all 256 bytes as ids 0 to 255 in byte
// order, " t" = 256, "he" = 257, " the" = 258, NFC, the GPT-2 pre-tokenizer, and <|end|> = 300.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "model/tokenizer/byte_alphabet.h"

namespace expertflow {

inline nlohmann::json SmallTokenizerJson() {
  nlohmann::json vocab;
  for (int byte = 0; byte < 256; ++byte) {
    vocab[std::string(ByteCharacter(static_cast<uint8_t>(byte)))] = byte;
  }
  vocab["Ġt"] = 256;
  vocab["he"] = 257;
  vocab["Ġthe"] = 258;
  return {
      {"added_tokens", {{{"id", 300}, {"content", "<|end|>"}, {"special", true}}}},
      {"normalizer", {{"type", "NFC"}}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"Ġ t", "h e", "Ġt he"}}}}};
}

}  // namespace expertflow

// The tokenizer of a model, for the coordinator and for the commands that check prompts before a
// job is started. Any thread.
#pragma once

#include <memory>
#include <string>

#include "common/status.h"
#include "model/tokenizer/tokenizer.h"

namespace expertflow {

// `file`, or, when it is empty, the model's own: tokenizer.json of a folder, or what a GGUF file
// says in its place. add_bos_token and add_eos_token of the model's tokenizer_config.json win over
// the post-processor of its tokenizer.json.
Result<std::unique_ptr<Tokenizer>> LoadModelTokenizer(const std::string& model,
                                                      const std::string& file);
// How messages name it.
std::string ModelTokenizerName(const std::string& model, const std::string& file);

}  // namespace expertflow

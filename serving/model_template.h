// The chat template of a model folder, and what it is rendered with beside the messages.
#pragma once

#include <memory>
#include <string>

#include "common/status.h"
#include "serving/chat_template/chat_template.h"

namespace expertflow {

struct ModelTemplate {
  std::shared_ptr<const ChatTemplate> chat;
  std::string variables_json = "{}";  // bos_token and the like
};

// `file`, or else the folder's chat_template.jinja, or else chat_template of its
// tokenizer_config.json (of several, the one named "default"), or that of a GGUF file. kNotFound
// when there is none.
Result<ModelTemplate> LoadModelTemplate(const std::string& folder, const std::string& file);

}  // namespace expertflow

// The texts of a model beside its weights: a folder's files, or what a GGUF file says in their
// place. Any thread.
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"
#include "model/checkpoint/json_config.h"

namespace expertflow {

// By its name: "*.gguf".
bool IsGguf(std::string_view path);

// `name` is config.json, tokenizer.json, tokenizer_config.json, generation_config.json. kNotFound
// when the model has no such text; more than `bytes_max` is an error.
Result<std::string> ReadModelText(const std::string& model, const std::string& name,
                                  size_t bytes_max);
// How errors name that text: "<folder>/<name>", or the GGUF file.
std::string ModelTextName(const std::string& model, const std::string& name);

Result<JsonConfig> LoadModelConfig(const std::string& model);

}  // namespace expertflow

#include "model/checkpoint/model_files.h"

#include <fmt/format.h>

#include "common/mapped_file.h"
#include "model/checkpoint/gguf_model.h"
#include "model/checkpoint/json_config.h"

namespace expertflow {
namespace {

constexpr const char* kConfig = "config.json";

}  // namespace

bool IsGguf(std::string_view path) {
  return path.ends_with(".gguf");
}

std::string ModelTextName(const std::string& model, const std::string& name) {
  return IsGguf(model) ? model : model + "/" + name;
}

Result<std::string> ReadModelText(const std::string& model, const std::string& name,
                                  size_t bytes_max) {
  if (!IsGguf(model)) return ReadFileToString(model + "/" + name, bytes_max);
  ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(model));
  if (name == kConfig) return GgufConfigJson(file);
  if (name == "tokenizer.json") return GgufTokenizerJson(file);
  if (name == "tokenizer_config.json") return GgufTokenizerConfigJson(file);
  return NotFound(fmt::format("{}: a GGUF file has no {}", model, name));
}

Result<JsonConfig> LoadModelConfig(const std::string& model) {
  ASSIGN_OR_RETURN(const std::string text, ReadModelText(model, kConfig, JsonConfig::kBytesMax));
  return JsonConfig::Parse(text, ModelTextName(model, kConfig));
}

}  // namespace expertflow

#include "coordinator/model_tokenizer.h"

#include "model/checkpoint/model_files.h"

namespace expertflow {
namespace {

constexpr const char* kFile = "tokenizer.json";

}  // namespace

std::string ModelTokenizerName(const std::string& model, const std::string& file) {
  return file.empty() ? ModelTextName(model, kFile) : file;
}

Result<std::unique_ptr<Tokenizer>> LoadModelTokenizer(const std::string& model,
                                                      const std::string& file) {
  const std::string name = ModelTokenizerName(model, file);
  if (!file.empty() || !IsGguf(model)) return Tokenizer::Load(name);
  ASSIGN_OR_RETURN(const std::string text, ReadModelText(model, kFile, SIZE_MAX));
  return Tokenizer::Parse(text, name);
}

}  // namespace expertflow

#include <iostream>
#include <memory>
#include <string>

#include "coordinator/model_tokenizer.h"
#include "launch/commands.h"
#include "model/tokenizer/tokenize_stream.h"
#include "model/tokenizer/tokenizer.h"

namespace expertflow {

int TokenizeCommand(const Options& options) {
  const std::string file = options.Text("tokenizer");
  const std::string model = options.Text("model");
  if (file.empty() && model.empty()) {
    return Fail(options, InvalidArgument("--tokenizer FILE or --model DIR is missing"));
  }
  const Result<std::unique_ptr<Tokenizer>> tokenizer = LoadModelTokenizer(model, file);
  if (!tokenizer.ok()) return Fail(options, tokenizer.status());
  std::ios::sync_with_stdio(false);
  const Status status = TokenizeStream(**tokenizer, std::cin, std::cout);
  std::cout.flush();
  if (!status.ok()) return Fail(options, status);
  return kExitOk;
}

}  // namespace expertflow

#include <iostream>
#include <memory>
#include <string>

#include "launch/commands.h"
#include "model/tokenizer/tokenize_stream.h"
#include "model/tokenizer/tokenizer.h"

namespace expertflow {

int TokenizeCommand(const Options& options) {
  std::string file = options.Text("tokenizer");
  if (file.empty() && !options.Text("model").empty()) {
    file = options.Text("model") + "/tokenizer.json";
  }
  if (file.empty()) {
    return Fail(options, InvalidArgument("--tokenizer FILE or --model DIR is missing"));
  }
  const Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(file);
  if (!tokenizer.ok()) return Fail(options, tokenizer.status());
  std::ios::sync_with_stdio(false);
  const Status status = TokenizeStream(**tokenizer, std::cin, std::cout);
  std::cout.flush();
  if (!status.ok()) return Fail(options, status);
  return kExitOk;
}

}  // namespace expertflow

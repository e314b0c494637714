// Prompts in, texts out: what `run` does with them whether it starts a job or uses a running one.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/status.h"
#include "launch/options.h"
#include "transport/messages.h"

namespace expertflow {

// From --prompt, --prompt-file or standard input; each has some text.
Result<std::vector<std::string>> GatherPrompts(const Options& options);

// One for each prompt, with the options of generation.
std::vector<SubmitRequest> MakeRequests(const Options& options,
                                        const std::vector<std::string>& prompts);

// Writes the texts to standard output in the order of the prompts: the first unfinished one as it
// comes, the others when it is their turn. REQUIRES: the prompts outlive it
class TextPrinter {
 public:
  explicit TextPrinter(const std::vector<std::string>& prompts)
      : prompts_(prompts), waiting_(prompts.size()), done_(prompts.size()) {}

  void OnText(size_t request, const std::string& text);
  void OnDone(size_t request);
  // After an early end: whatever there is.
  void Flush();

 private:
  void Print();
  void EndText();

  const std::vector<std::string>& prompts_;
  std::vector<std::string> waiting_;
  std::vector<bool> done_;
  size_t current_ = 0;
  bool header_printed_ = false;
};

}  // namespace expertflow

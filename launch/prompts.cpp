#include "launch/prompts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <utility>

#include "common/mapped_file.h"

namespace expertflow {
namespace {

constexpr size_t kPromptBytesMax = size_t{64} << 20;

std::string WithoutLastNewline(std::string text) {
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

std::string FirstLine(const std::string& text) {
  constexpr size_t kShown = 60;
  std::string line = text.substr(0, text.find('\n'));
  if (line.size() > kShown) {
    size_t end = kShown;
    while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xC0) == 0x80) --end;
    line = line.substr(0, end) + "...";
  }
  return line;
}

}  // namespace

Result<std::vector<std::string>> GatherPrompts(const Options& options) {
  std::vector<std::string> prompts = options.TextList("prompt");
  for (const std::string& file : options.TextList("prompt-file")) {
    ASSIGN_OR_RETURN(std::string text, ReadFileToString(file, kPromptBytesMax));
    prompts.push_back(WithoutLastNewline(std::move(text)));
  }
  if (prompts.empty()) {
    if (::isatty(STDIN_FILENO) != 0) {
      return InvalidArgument(
          "no prompt: give --prompt TEXT, --prompt-file FILE, or standard input");
    }
    std::string text{std::istreambuf_iterator<char>(std::cin), {}};
    prompts.push_back(WithoutLastNewline(std::move(text)));
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) {
      return InvalidArgument(fmt::format("prompt {}: expected some text, found none", i + 1));
    }
  }
  return prompts;
}

std::vector<SubmitRequest> MakeRequests(const Options& options,
                                        const std::vector<std::string>& prompts) {
  std::vector<SubmitRequest> requests;
  for (const std::string& prompt : prompts) {
    SubmitRequest request;
    request.text = prompt;
    request.max_new_tokens = static_cast<uint32_t>(options.Integer("max-tokens"));
    request.sampling = {
        .temperature = static_cast<float>(options.Number("temperature")),
        .top_p = static_cast<float>(options.Number("top-p")),
        .top_k = static_cast<int32_t>(options.Integer("top-k")),
        .seed = static_cast<uint64_t>(options.Integer("seed")),
        .min_p = static_cast<float>(options.Number("min-p")),
        .repetition_penalty = static_cast<float>(options.Number("repetition-penalty")),
        .frequency_penalty = static_cast<float>(options.Number("frequency-penalty")),
        .presence_penalty = static_cast<float>(options.Number("presence-penalty")),
        .logit_bias = {}};
    request.stop = options.TextList("stop");
    request.ignore_eos = options.Flag("ignore-eos");
    requests.push_back(std::move(request));
  }
  return requests;
}

void TextPrinter::OnText(size_t request, const std::string& text) {
  waiting_[request] += text;
  if (request == current_) Print();
}

void TextPrinter::OnDone(size_t request) {
  done_[request] = true;
  while (current_ < prompts_.size() && done_[current_]) {
    Print();
    EndText();
    ++current_;
    if (current_ < prompts_.size()) Print();
  }
}

void TextPrinter::Flush() {
  for (; current_ < prompts_.size(); ++current_) {
    if (waiting_[current_].empty() && !header_printed_) continue;
    Print();
    EndText();
  }
}

void TextPrinter::Print() {
  std::string& text = waiting_[current_];
  if (text.empty() && !done_[current_]) return;
  if (!header_printed_ && prompts_.size() > 1) {
    fmt::print("--- prompt {} of {}: {}\n", current_ + 1, prompts_.size(),
               FirstLine(prompts_[current_]));
  }
  header_printed_ = true;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  text.clear();
}

void TextPrinter::EndText() {
  fmt::print("\n");
  std::fflush(stdout);
  header_printed_ = false;
}

}  // namespace expertflow

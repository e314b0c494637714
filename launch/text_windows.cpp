#include "launch/text_windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "common/mapped_file.h"

namespace expertflow {
namespace {

constexpr int64_t kDefaultWindow = 1024;

}  // namespace

std::vector<TextWindow> MakeWindows(size_t tokens, size_t length, size_t step) {
  std::vector<TextWindow> windows;
  size_t scored = 0;
  for (size_t begin = 0; scored < tokens; begin += step) {
    const size_t end = std::min(begin + length, tokens);
    windows.push_back({begin, end, std::max(scored, begin + 1)});
    scored = end;
  }
  return windows;
}

Result<WindowedText> WindowText(const Options& options, const ModelSource& model,
                                uint64_t positions_max) {
  WindowedText windowed;
  const std::string path = options.Text("text");
  if (path.empty()) return InvalidArgument("--text FILE is missing");
  ASSIGN_OR_RETURN(const std::string text, ReadFileToString(path, Tokenizer::kTextBytesMax));
  ASSIGN_OR_RETURN(const auto tokenizer, LoadTokenizer(options, model));
  ASSIGN_OR_RETURN(windowed.tokens, tokenizer->EncodePrompt(text));
  if (windowed.tokens.size() < 2) {
    return InvalidArgument(
        fmt::format("{}: {} tokens; at least 2 are needed", path, windowed.tokens.size()));
  }
  const int32_t context = model.architecture->shape().context;
  const auto limit = static_cast<int64_t>(std::min(static_cast<uint64_t>(context), positions_max));
  const int64_t length =
      options.Integer("window") > 0 ? options.Integer("window") : std::min(limit, kDefaultWindow);
  if (length > limit) {
    return InvalidArgument(
        fmt::format("{}: {} tokens, but the model's context is {} and the KV cache holds {}",
                    options.Origin("window"), length, context, positions_max));
  }
  const int64_t step = options.Integer("window-step") > 0 ? options.Integer("window-step")
                                                          : std::max<int64_t>(1, length / 2);
  if (step > length) {
    return InvalidArgument(
        fmt::format("{}: {} is more than the window of {}: tokens between two "
                    "windows would not be scored",
                    options.Origin("window-step"), step, length));
  }
  windowed.length = static_cast<size_t>(length);
  windowed.step = static_cast<size_t>(step);
  windowed.windows = MakeWindows(windowed.tokens.size(), windowed.length, windowed.step);
  return windowed;
}

}  // namespace expertflow

// A text cut into windows that run as prompts of their own, to score its tokens by their
// probability after those before them: what perplexity and pack measure on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/status.h"
#include "launch/model_source.h"
#include "launch/options.h"

namespace expertflow {

// Tokens [begin, end) of the text run as one prompt; those from `scored` on count.
struct TextWindow {
  size_t begin = 0;
  size_t end = 0;
  size_t scored = 0;
};

struct WindowedText {
  std::vector<int32_t> tokens;
  size_t length = 0;  // of a window
  size_t step = 0;    // from one window's begin to the next
  std::vector<TextWindow> windows;
};

// Each token but the first is scored once, where the step is less than the length: with at least
// length - step tokens before it. With a step of a whole window, the first of each is not.
// REQUIRES: 1 <= step <= length
std::vector<TextWindow> MakeWindows(size_t tokens, size_t length, size_t step);

// Reads --text as a prompt of the model's tokenizer, and cuts it by --window and --window-step. A
// window has at most `positions_max` tokens, and no more than the model's context.
Result<WindowedText> WindowText(const Options& options, const ModelSource& model,
                                uint64_t positions_max);

}  // namespace expertflow

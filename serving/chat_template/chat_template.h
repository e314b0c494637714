// A model's own chat template: Jinja, as far as the templates of real models go, rendered as
// transformers renders it (white space, JSON, what is defined). What is not supported is an error
// that names it and its line; nothing a template or a message says can do anything but make text.
//
// The folder: template_lexer, template_syntax (text to tree), template_value and template_builtins
// (Python's values and functions), template_renderer (tree to text).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/status.h"

namespace expertflow {

// Immutable; any thread may render.
class ChatTemplate {
 public:
  static constexpr size_t kSourceBytesMax = size_t{1} << 20;

  // Errors: "<name>:<line>: <what>".
  static Result<ChatTemplate> Parse(std::string_view source, std::string name);
  ChatTemplate(ChatTemplate&& other) noexcept;
  ChatTemplate& operator=(ChatTemplate&& other) noexcept;
  ~ChatTemplate();

  // Whether its code has the name; a template that does not has no use for such a variable.
  bool Names(std::string_view name) const;

  // `variables_json`: an object with messages, add_generation_prompt, tools, ... in valid UTF-8,
  // not nested deeper than 200. `now_seconds` since 1970, for templates that tell the date. What
  // the template itself refuses (raise_exception) is kInvalidArgument with the template's own
  // words.
  Result<std::string> Render(std::string_view variables_json, int64_t now_seconds) const;

 private:
  struct Parts;
  explicit ChatTemplate(std::unique_ptr<const Parts> parts);
  std::unique_ptr<const Parts> parts_;
};

}  // namespace expertflow

// Runs a template's tree. Internal to ChatTemplate.
#pragma once

#include <cstdint>
#include <string>

#include "serving/chat_template/template_syntax.h"
#include "serving/chat_template/template_value.h"

namespace expertflow {

// `variables` win over the built-in functions. Throws TemplateError.
std::string RenderTemplate(const TemplateNodes& nodes, TemplateDict variables, int64_t now_seconds);

}  // namespace expertflow

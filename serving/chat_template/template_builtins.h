// Filters, tests, methods and functions of chat templates, each as Jinja or Python defines it.
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "serving/chat_template/template_value.h"

namespace expertflow {

// All throw TemplateError, for a name that nobody knows too.
TemplateValue ApplyFilter(std::string_view name, const TemplateValue& value,
                          const TemplateArguments& arguments);
bool ApplyTest(std::string_view name, const TemplateValue& value,
               const TemplateArguments& arguments);
TemplateValue CallMethod(const TemplateValue& value, std::string_view name,
                         const TemplateArguments& arguments);
TemplateValue ApplyBinary(std::string_view sign, const TemplateValue& left,
                          const TemplateValue& right);
TemplateValue IndexOf(const TemplateValue& value, const TemplateValue& index);
// None stands for a bound that is left out.
TemplateValue SliceOf(const TemplateValue& value, const TemplateValue& first,
                      const TemplateValue& last, const TemplateValue& step);
// The items that a loop goes over.
TemplateList ItemsOf(const TemplateValue& value);

// range, raise_exception, strftime_now, ...; "now" is `now_seconds` since 1970, in local time.
TemplateDict TemplateFunctions(int64_t now_seconds);

}  // namespace expertflow

// The description of the API that /openapi.json serves. A constant.
#pragma once

#include <string_view>

namespace expertflow {

std::string_view OpenApiJson();

}  // namespace expertflow

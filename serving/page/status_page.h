// The page at "/": index.html of this folder, which the build puts into the program.
#pragma once

#include <string_view>

namespace expertflow {

std::string_view StatusPageHtml();

}  // namespace expertflow

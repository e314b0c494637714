#include "launch/svg.h"

#include <fmt/format.h>

namespace expertflow {
std::string MarkupEscaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string SvgLabel(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"12\" "
      "font-family=\"sans-serif\">{}</text>\n",
      x, y, anchor, MarkupEscaped(text));
}

}  // namespace expertflow

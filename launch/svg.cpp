#include "launch/svg.h"

#include <fmt/format.h>

namespace expertflow {
namespace {

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string SvgLabel(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"12\" "
      "font-family=\"sans-serif\">{}</text>\n",
      x, y, anchor, Escaped(text));
}

}  // namespace expertflow

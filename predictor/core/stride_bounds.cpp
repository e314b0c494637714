#include "predictor/core/stride_bounds.h"

#include <charconv>

namespace expertflow {
namespace {

std::optional<int32_t> ParseLayers(std::string_view text) {
  int32_t layers = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, layers);
  if (error != std::errc() || stop != end || layers < 1 || layers > kStrideMost) {
    return std::nullopt;
  }
  return layers;
}

}  // namespace

std::optional<StrideBounds> ParseStride(std::string_view text) {
  if (text == "auto") return StrideBounds{};
  const size_t dash = text.find('-');
  const std::optional<int32_t> least = ParseLayers(text.substr(0, dash));
  const std::optional<int32_t> most =
      dash == std::string_view::npos ? least : ParseLayers(text.substr(dash + 1));
  if (!least || !most || *least > *most) return std::nullopt;
  return StrideBounds{*least, *most};
}

std::string FormatStride(const StrideBounds& bounds) {
  if (bounds == StrideBounds{}) return "auto";
  const std::string least = std::to_string(bounds.least);
  return bounds.fixed() ? least : least + "-" + std::to_string(bounds.most);
}

}  // namespace expertflow

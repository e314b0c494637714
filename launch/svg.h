// What the SVG pictures and pages of the tools share. Pure.
#pragma once

#include <string>
#include <string_view>

namespace expertflow {

inline constexpr const char* kSvgColours[] = {"#1f77b4", "#ff7f0e", "#2ca02c", "#d62728",
                                              "#9467bd", "#8c564b", "#e377c2", "#7f7f7f",
                                              "#bcbd22", "#17becf"};

// Around and between panels.
inline constexpr double kSvgLeft = 60;
inline constexpr double kSvgTop = 60;
inline constexpr double kSvgGap = 50;
inline constexpr double kSvgLegendWidth = 170;

// For the text of a picture or page.
std::string MarkupEscaped(std::string_view text);

// Text at (x, y); `anchor` is start, middle or end.
std::string SvgLabel(double x, double y, const char* anchor, const std::string& text);

}  // namespace expertflow

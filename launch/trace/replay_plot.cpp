#include "launch/trace/replay_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "launch/svg.h"

namespace expertflow {
namespace {

constexpr double kPanelWidth = 360;
constexpr double kPanelHeight = 300;
template <typename T>
std::vector<T> Distinct(std::span<const ReplayRow> rows, T ReplayRow::*member) {
  std::vector<T> values;
  for (const ReplayRow& row : rows) {
    if (std::find(values.begin(), values.end(), row.*member) == values.end()) {
      values.push_back(row.*member);
    }
  }
  return values;
}

}  // namespace

std::string ReplayPlotSvg(std::span<const ReplayRow> rows, const std::string& title) {
  const std::vector<int32_t> batches = Distinct(rows, &ReplayRow::batch);
  const std::vector<std::string> policies = Distinct(rows, &ReplayRow::policy);
  double most = 0.05;
  for (const ReplayRow& row : rows) most = std::max(most, row.residency);
  const double width =
      kSvgLeft + static_cast<double>(batches.size()) * (kPanelWidth + kSvgGap) + kSvgLegendWidth;
  const double height = std::max(kSvgTop + kPanelHeight + 50,
                                 kSvgTop + 20 * static_cast<double>(policies.size() + 1));
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      width, height);
  svg += SvgLabel(kSvgLeft, 24, "start", "Miss rate by residency: " + title);
  for (size_t panel = 0; panel < batches.size(); ++panel) {
    const double x0 = kSvgLeft + static_cast<double>(panel) * (kPanelWidth + kSvgGap);
    const auto x = [&](double residency) { return x0 + residency / most * kPanelWidth; };
    const auto y = [&](double rate) { return kSvgTop + (1 - rate) * kPanelHeight; };
    svg += SvgLabel(x0 + kPanelWidth / 2, kSvgTop - 10, "middle",
                    fmt::format("batch {}", batches[panel]));
    for (int tick = 0; tick <= 5; ++tick) {
      const double rate = tick / 5.0;
      svg += fmt::format(
          "<line x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>\n",
          x0, x0 + kPanelWidth, y(rate));
      svg += SvgLabel(x0 - 6, y(rate) + 4, "end", fmt::format("{:.1f}", rate));
      svg += SvgLabel(x(most * tick / 5), kSvgTop + kPanelHeight + 16, "middle",
                      fmt::format("{:.0f} %", 100 * most * tick / 5));
    }
    svg +=
        SvgLabel(x0 + kPanelWidth / 2, kSvgTop + kPanelHeight + 36, "middle", "resident experts");
    for (size_t p = 0; p < policies.size(); ++p) {
      std::vector<std::pair<double, double>> points;
      for (const ReplayRow& row : rows) {
        if (row.batch == batches[panel] && row.policy == policies[p]) {
          points.emplace_back(row.residency, row.miss_rate);
        }
      }
      std::sort(points.begin(), points.end());
      std::string line;
      const char* colour = kSvgColours[p % std::size(kSvgColours)];
      const char* dash = p >= std::size(kSvgColours) ? " stroke-dasharray=\"5,3\"" : "";
      for (const auto& [residency, rate] : points) {
        line += fmt::format("{:.1f},{:.1f} ", x(residency), y(rate));
        svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n",
                           x(residency), y(rate), colour);
      }
      svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\"{}/>\n", line, colour,
                         dash);
      if (panel + 1 < batches.size()) continue;
      const double legend_y = kSvgTop + 20 * static_cast<double>(p) + 10;
      svg += fmt::format(
          "<line x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"{3}\"{4}/>\n",
          x0 + kPanelWidth + 20, x0 + kPanelWidth + 45, legend_y, colour, dash);
      svg += SvgLabel(x0 + kPanelWidth + 50, legend_y + 4, "start", policies[p]);
    }
  }
  return svg + "</svg>\n";
}

}  // namespace expertflow

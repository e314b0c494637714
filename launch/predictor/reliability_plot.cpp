#include "launch/predictor/reliability_plot.h"

#include <fmt/format.h>

#include <iterator>

#include "launch/svg.h"

namespace expertflow {
namespace {

constexpr double kPanel = 320;
constexpr JudgedArm kArms[] = {JudgedArm::kPreGate, JudgedArm::kProbe, JudgedArm::kForest,
                               JudgedArm::kForestProbe};

std::string Grid(double x0) {
  std::string svg = fmt::format(
      "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#999\" "
      "stroke-dasharray=\"4,4\"/>\n",
      x0, x0 + kPanel, kSvgTop + kPanel, kSvgTop);
  for (int tick = 0; tick <= 5; ++tick) {
    const double share = tick / 5.0;
    const double y = kSvgTop + (1 - share) * kPanel;
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>\n", x0,
        x0 + kPanel, y);
    svg += SvgLabel(x0 - 6, y + 4, "end", fmt::format("{:.1f}", share));
    svg += SvgLabel(x0 + share * kPanel, kSvgTop + kPanel + 16, "middle",
                    fmt::format("{:.1f}", share));
  }
  return svg + SvgLabel(x0 + kPanel / 2, kSvgTop + kPanel + 36, "middle", "predicted probability");
}

}  // namespace

std::string ReliabilityPlotSvg(const HybridJudgement& judgement, const std::string& title) {
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kSvgLeft + kStateKinds * (kPanel + kSvgGap) + kSvgLegendWidth, kSvgTop + kPanel + 50);
  svg += SvgLabel(kSvgLeft, 24, "start", "Observed by predicted share of uses: " + title);
  constexpr const char* kKindNames[kStateKinds] = {"from what the router sees",
                                                   "from what leaves the experts"};
  for (size_t kind = 0; kind < kStateKinds; ++kind) {
    const double x0 = kSvgLeft + static_cast<double>(kind) * (kPanel + kSvgGap);
    svg += SvgLabel(x0 + kPanel / 2, kSvgTop - 10, "middle", kKindNames[kind]) + Grid(x0);
    for (size_t a = 0; a < std::size(kArms); ++a) {
      std::string line;
      for (const ReliabilityBin& bin : judgement.reliability[static_cast<size_t>(kArms[a])][kind]) {
        if (bin.predictions == 0) continue;
        const double x = x0 + bin.mean_probability() * kPanel;
        const double y = kSvgTop + (1 - bin.observed()) * kPanel;
        line += fmt::format("{:.1f},{:.1f} ", x, y);
        svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", x, y,
                           kSvgColours[a]);
      }
      svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\"/>\n", line,
                         kSvgColours[a]);
      if (kind + 1 < kStateKinds) continue;
      const double y = kSvgTop + 20 * static_cast<double>(a) + 10;
      svg += fmt::format(
          "<line x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"{3}\"/>\n",
          x0 + kPanel + 20, x0 + kPanel + 45, y, kSvgColours[a]);
      svg += SvgLabel(x0 + kPanel + 50, y + 4, "start", std::string(JudgedArmName(kArms[a])));
    }
  }
  return svg + "</svg>\n";
}

}  // namespace expertflow

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/units.h"
#include "launch/simulate/hardware_profiles.h"
#include "launch/simulate/simulation.h"
#include "launch/svg.h"
#include "sim/arms.h"

namespace expertflow {
namespace {

// What a report shows of an arm.
struct CellFigures {
  double tokens_per_second = 0;
  double wait_us = 0;          // of compute, per layer
  double miss_latency_us = 0;  // of an expert that was not there
  double stall_share = 0;
  double hit_share = 0;
  double late_share = 0;
  double bytes_per_token = 0;
  double wasted_share = 0;
  double stride = 0;       // mean over steps
  double saved_share = 0;  // of the reactive arm's stall
};

const DeviceSimResult* ReactiveOf(const Cell& cell) {
  for (const ArmResult& arm : cell.arms) {
    if (arm.arm == "reactive") return &arm.result;
  }
  return nullptr;
}

CellFigures CellFiguresOf(const Cell& cell, const DeviceSimResult& r) {
  CellFigures figures;
  figures.tokens_per_second = r.tokens_per_second();
  const auto events = static_cast<double>(r.events);
  const auto uses = static_cast<double>(r.hits + r.late_hits + r.misses);
  const auto bytes = static_cast<double>(r.bytes_demand + r.bytes_prefetch);
  figures.wait_us = Ratio(static_cast<double>(r.stall_ns) / 1e3, events);
  figures.miss_latency_us = Ratio(static_cast<double>(r.arrival_wait_ns) / 1e3,
                                  static_cast<double>(r.late_hits + r.misses));
  figures.stall_share = Ratio(static_cast<double>(r.stall_ns), static_cast<double>(r.total_ns));
  figures.hit_share = Ratio(static_cast<double>(r.hits), uses);
  figures.late_share = Ratio(static_cast<double>(r.late_hits), uses);
  figures.bytes_per_token = Ratio(bytes, static_cast<double>(r.tokens));
  figures.wasted_share = Ratio(static_cast<double>(r.bytes_wasted), bytes);
  for (size_t i = 0; i < r.strides.size(); ++i) {
    const size_t end = i + 1 < r.strides.size() ? r.strides[i + 1].step : r.steps;
    figures.stride += static_cast<double>(end - r.strides[i].step) * r.strides[i].stride;
  }
  figures.stride = Ratio(figures.stride, static_cast<double>(r.steps));
  if (const DeviceSimResult* reactive = ReactiveOf(cell); reactive != nullptr) {
    figures.saved_share =
        1 - Ratio(static_cast<double>(r.stall_ns), static_cast<double>(reactive->stall_ns));
  }
  return figures;
}

std::string Headline(const Cell& cell) {
  return fmt::format("{} on {} (simulated): {} of {} experts resident ({:.0f} %), {} each",
                     cell.model.name, cell.hardware.name, cell.room.slots,
                     cell.model.layers.size() * static_cast<size_t>(cell.model.experts),
                     100 * cell.room.resident, FormatBytes(cell.model.expert_bytes));
}

std::string FloorText(const Cell& cell) {
  const DeviceSimResult* any = cell.arms.empty() ? nullptr : &cell.arms.front().result;
  const double events = any == nullptr ? 1 : static_cast<double>(any->events);
  const double tokens = any == nullptr ? 1 : static_cast<double>(any->tokens);
  return fmt::format(
      "least possible: {} a token over a link of {}, which is {:.1f} us of waiting a layer{}",
      FormatBytes(static_cast<uint64_t>(static_cast<double>(cell.floor_bytes) / tokens)),
      FormatBytesPerSecond(static_cast<double>(cell.hardware.link_bytes_per_second)),
      static_cast<double>(cell.floor_stall_ns) / 1e3 / events,
      cell.floor_stall_ns == 0 ? ": all of it can be hidden" : "");
}

// Waiting a layer, a bar for each arm; the floor as a line.
std::string Bars(const Cell& cell) {
  constexpr double kWidth = 420;
  constexpr double kRow = 18;
  constexpr double kLabels = 180;
  double most = 1e-9;
  for (const ArmResult& arm : cell.arms) {
    most = std::max(most, CellFiguresOf(cell, arm.result).wait_us);
  }
  const double height = kRow * static_cast<double>(cell.arms.size()) + 4;
  std::string svg = fmt::format(
      "<svg width=\"{:.0f}\" height=\"{:.0f}\" role=\"img\" aria-label=\"waiting per layer\">\n",
      kLabels + kWidth + 90, height);
  double y = 2;
  for (const ArmResult& arm : cell.arms) {
    const double wait = CellFiguresOf(cell, arm.result).wait_us;
    svg += fmt::format(
        "<text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>"
        "<rect x=\"{:.0f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\"/>"
        "<text x=\"{:.1f}\" y=\"{:.1f}\">{:.1f} us</text>\n",
        kLabels - 6, y + 12, MarkupEscaped(arm.arm), kLabels, y + 2, kWidth * wait / most, kRow - 6,
        kLabels + kWidth * wait / most + 4, y + 12, wait);
    y += kRow;
  }
  if (!cell.arms.empty()) {
    const double floor = static_cast<double>(cell.floor_stall_ns) / 1e3 /
                         static_cast<double>(cell.arms.front().result.events);
    const double x = kLabels + kWidth * std::min(1.0, floor / most);
    svg +=
        fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"0\" y2=\"{1:.0f}\"/>\n", x, height);
  }
  return svg + "</svg>\n";
}

}  // namespace

std::string SimulationTable(const std::vector<Cell>& cells) {
  std::string text;
  for (const Cell& cell : cells) {
    text += fmt::format("\n{}\nhardware: {}\nrouting: {}\n{}\n", Headline(cell),
                        DescribeHardware(cell.hardware), cell.routing, FloorText(cell));
    text += fmt::format("  {:<23} {:>9} {:>9} {:>9} {:>7} {:>6} {:>6} {:>12} {:>7} {:>6} {:>8}\n",
                        "arm", "tokens/s", "wait/lay.", "miss lat.", "stall", "hit", "late",
                        "bytes/token", "wasted", "stride", "saved");
    for (const ArmResult& arm : cell.arms) {
      const CellFigures f = CellFiguresOf(cell, arm.result);
      text += fmt::format(
          "  {:<23} {:>9.2f} {:>6.1f} us {:>6.0f} us {:>5.1f} % {:>4.0f} % {:>4.0f} % {:>12} "
          "{:>5.0f} % {:>6.1f} {:>6.1f} %\n",
          arm.arm, f.tokens_per_second, f.wait_us, f.miss_latency_us, 100 * f.stall_share,
          100 * f.hit_share, 100 * f.late_share,
          FormatBytes(static_cast<uint64_t>(f.bytes_per_token)), 100 * f.wasted_share, f.stride,
          100 * f.saved_share);
    }
  }
  text += "\nsaved: of the waiting of reactive loading. Every figure here is simulated.\n";
  return text;
}

std::string SimulationJson(const std::vector<Cell>& cells) {
  nlohmann::json json = {{"format", "expertflow-simulate"},
                         {"version", 1},
                         {"simulated", true},
                         {"rows", nlohmann::json::array()}};
  for (const Cell& cell : cells) {
    for (const ArmResult& arm : cell.arms) {
      const DeviceSimResult& r = arm.result;
      const CellFigures f = CellFiguresOf(cell, r);
      json["rows"].push_back({{"model", cell.model.name},
                              {"hardware", cell.hardware.name},
                              {"profile", HardwareJson(cell.hardware)},
                              {"routing", cell.routing},
                              {"slots", cell.room.slots},
                              {"resident", cell.room.resident},
                              {"expert_bytes", cell.model.expert_bytes},
                              {"link_bytes_per_second", cell.hardware.link_bytes_per_second},
                              {"arm", arm.arm},
                              {"tokens", r.tokens},
                              {"events", r.events},
                              {"tokens_per_second", f.tokens_per_second},
                              {"total_ns", r.total_ns},
                              {"stall_ns", r.stall_ns},
                              {"floor_stall_ns", cell.floor_stall_ns},
                              {"wait_per_layer_us", f.wait_us},
                              {"miss_latency_us", f.miss_latency_us},
                              {"hits", r.hits},
                              {"late_hits", r.late_hits},
                              {"misses", r.misses},
                              {"bytes_demand", r.bytes_demand},
                              {"bytes_prefetch", r.bytes_prefetch},
                              {"bytes_wasted", r.bytes_wasted},
                              {"bytes_floor", cell.floor_bytes},
                              {"link_busy_ns", r.link_busy_ns},
                              {"mean_stride", f.stride},
                              {"stall_saved", f.saved_share},
                              {"digest", fmt::format("{:016x}", r.digest)}});
    }
  }
  return json.dump(2);
}

std::string SimulationHtml(const std::vector<Cell>& cells) {
  std::string html =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>ExpertFlow simulation</title>\n<style>\n"
      ":root { color-scheme: light dark; --bar: #4477aa; --line: #cc3311; }\n"
      "body { font: 15px/1.4 system-ui, sans-serif; margin: 1.5em auto; max-width: 70em; "
      "padding: 0 1em; }\n"
      "svg { max-width: 100%; } svg text { font-size: 12px; fill: currentColor; }\n"
      "svg rect { fill: var(--bar); } svg line { stroke: var(--line); stroke-width: 2; }\n"
      "table { border-collapse: collapse; display: block; overflow-x: auto; }\n"
      "td, th { padding: .15em .7em; text-align: right; border-bottom: 1px solid #8884; }\n"
      "td:first-child, th:first-child { text-align: left; }\n"
      "</style></head><body>\n<h1>Simulated decode</h1>\n"
      "<p>Nothing here was measured on the hardware that is named. Bars: time that compute waits "
      "for experts, per layer; the line is the least that any cache of this size could wait.</p>\n";
  for (const Cell& cell : cells) {
    html += fmt::format("<h2>{}</h2>\n<p>Routing: {}. {}. Hardware: {}.</p>\n{}",
                        MarkupEscaped(Headline(cell)), MarkupEscaped(cell.routing),
                        MarkupEscaped(FloorText(cell)),
                        MarkupEscaped(DescribeHardware(cell.hardware)), Bars(cell));
    html +=
        "<table><tr><th>arm</th><th>tokens/s</th><th>wait/layer, us</th><th>miss latency, "
        "us</th><th>stall, %</th><th>hit, %</th><th>MB/token</th><th>wasted, %</th>"
        "<th>stride</th><th>saved, %</th><th></th></tr>\n";
    for (const ArmResult& arm : cell.arms) {
      const CellFigures f = CellFiguresOf(cell, arm.result);
      html += fmt::format(
          "<tr><td>{}</td><td>{:.2f}</td><td>{:.1f}</td><td>{:.0f}</td><td>{:.1f}</td>"
          "<td>{:.1f}</td><td>{:.2f}</td><td>{:.1f}</td><td>{:.1f}</td><td>{:.1f}</td>"
          "<td style=\"text-align:left\">{}</td></tr>\n",
          MarkupEscaped(arm.arm), f.tokens_per_second, f.wait_us, f.miss_latency_us,
          100 * f.stall_share, 100 * f.hit_share, f.bytes_per_token / 1e6, 100 * f.wasted_share,
          f.stride, 100 * f.saved_share, MarkupEscaped(ArmMeaning(arm.arm)));
    }
    html += "</table>\n";
  }
  return html + "</body></html>\n";
}

}  // namespace expertflow

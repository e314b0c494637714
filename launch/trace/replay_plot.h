// The rows of a replay as an SVG picture: a panel for each batch size, miss rate over residency, a
// line for each policy. Pure.
#pragma once

#include <span>
#include <string>

#include "sim/replay.h"

namespace expertflow {

std::string ReplayPlotSvg(std::span<const ReplayRow> rows, const std::string& title);

}  // namespace expertflow

// How far predicted probabilities are to be trusted, as an SVG picture: a panel for each kind of
// state, observed over predicted share, a line for each arm; a perfect one lies on the diagonal.
// Pure.
#pragma once

#include <string>

#include "predictor/hybrid_eval.h"

namespace expertflow {

std::string ReliabilityPlotSvg(const HybridJudgement& judgement, const std::string& title);

}  // namespace expertflow

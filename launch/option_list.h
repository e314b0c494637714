// The parts of the list of options. Internal to option_list*.cpp.
#pragma once

#include <span>

#include "launch/option_table.h"

namespace expertflow {

constexpr uint32_t Bit(Command command) {
  return static_cast<uint32_t>(command);
}

// Of pack, synth and perplexity.
std::span<const OptionSpec> PackOptionList();
// Of trace, replay and train.
std::span<const OptionSpec> TraceOptionList();
// Of simulate.
std::span<const OptionSpec> SimulateOptionList();
// Of bench serve.
std::span<const OptionSpec> LoadOptionList();

}  // namespace expertflow

// What the options of pack make of a model: the types of its matrices, and the order of its
// experts.
#pragma once

#include <cstddef>
#include <optional>

#include "common/dtype.h"
#include "common/status.h"
#include "expert_store/store_layout.h"
#include "launch/options.h"
#include "model/arch/architecture.h"

namespace expertflow {

struct PackSettings {
  StoreSettings store;
  // --quant-popular: so many experts have the type, and take this share of the trace's uses.
  size_t popular_experts = 0;
  std::optional<DType> popular_type;
  double popular_uses = 0;

  // Something is not as it is in the checkpoint.
  bool quantises() const { return store.experts || !store.each_expert.empty(); }
};

// Errors name the option, or the trace that is of another model.
Result<PackSettings> PackSettingsFrom(const Options& options, const Architecture& architecture);

}  // namespace expertflow

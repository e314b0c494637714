// What the files of fitted tables have in common: they hold the identity of the model that they
// were fitted to, and are refused for any other.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "common/status.h"

namespace expertflow {

using LanguageModelIdentity = std::array<uint8_t, 16>;

// Whether what was fitted to model `fitted` with layers of `fitted_experts` may serve model
// `identity` with layers of `experts`. kInvalidArgument names the file and both models.
Status CheckFittedTo(const LanguageModelIdentity& fitted, std::span<const int32_t> fitted_experts,
                     const LanguageModelIdentity& identity, std::span<const int32_t> experts,
                     const std::string& name);

}  // namespace expertflow

#include "predictor/fitted_to.h"

#include <fmt/format.h>

#include <algorithm>

namespace expertflow {
namespace {

std::string Hexadecimal(const LanguageModelIdentity& bytes) {
  std::string text;
  for (const uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace

Status CheckFittedTo(const LanguageModelIdentity& fitted, std::span<const int32_t> fitted_experts,
                     const LanguageModelIdentity& identity, std::span<const int32_t> experts,
                     const std::string& name) {
  if (fitted == identity && std::ranges::equal(experts, fitted_experts)) return OkStatus();
  return InvalidArgument(fmt::format("{}: fitted to model {}, but this is {}; train one for it",
                                     name, Hexadecimal(fitted), Hexadecimal(identity)));
}

}  // namespace expertflow

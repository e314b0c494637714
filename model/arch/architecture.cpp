#include "model/arch/architecture.h"

#include <fmt/format.h>

#include "model/arch/qwen2_moe.h"

namespace expertflow {

Result<std::unique_ptr<Architecture>> MakeArchitecture(const JsonConfig& config) {
  ASSIGN_OR_RETURN(const auto names, config.StringList("architectures"));
  ASSIGN_OR_RETURN(const std::string type, config.StringOr("model_type", ""));
  const std::string name = names.empty() ? "" : names.front();
  if (name == "Qwen2MoeForCausalLM" || (name.empty() && type == "qwen2_moe")) {
    return MakeQwen2Moe(config);
  }
  return config.Error("architectures",
                      fmt::format("'{}' is not supported; supported is Qwen2MoeForCausalLM",
                                  name.empty() ? type : name));
}

}  // namespace expertflow

#include "model/arch/architecture.h"

#include <fmt/format.h>

#include <string_view>

#include "model/arch/families.h"

namespace expertflow {
namespace {

struct Family {
  std::string_view architecture;
  std::string_view model_type;
  Result<std::unique_ptr<Architecture>> (*make)(const JsonConfig& json);
};

constexpr Family kFamilies[] = {
    {"Qwen2MoeForCausalLM", "qwen2_moe", MakeQwen2Moe},
    {"Qwen3MoeForCausalLM", "qwen3_moe", MakeQwen3Moe},
    {"MixtralForCausalLM", "mixtral", MakeMixtral},
    {"OlmoeForCausalLM", "olmoe", MakeOlmoe},
    {"Glm4MoeForCausalLM", "glm4_moe", MakeGlm4Moe},
    {"GptOssForCausalLM", "gpt_oss", MakeGptOss},
    {"GraniteMoeForCausalLM", "granitemoe", MakeGraniteMoe},
    {"DeepseekV2ForCausalLM", "deepseek_v2", MakeDeepseekV2},
    {"DeepseekV3ForCausalLM", "deepseek_v3", MakeDeepseekV3},
};

}  // namespace

Result<std::unique_ptr<Architecture>> MakeArchitecture(const JsonConfig& config) {
  ASSIGN_OR_RETURN(const auto names, config.StringList("architectures"));
  ASSIGN_OR_RETURN(const std::string type, config.StringOr("model_type", ""));
  const std::string name = names.empty() ? "" : names.front();
  std::string known;
  for (const Family& family : kFamilies) {
    if (name == family.architecture || (name.empty() && type == family.model_type)) {
      return family.make(config);
    }
    known += known.empty() ? "" : ", ";
    known += family.architecture;
  }
  return config.Error("architectures", fmt::format("'{}' is not supported; supported are {}",
                                                   name.empty() ? type : name, known));
}

}  // namespace expertflow

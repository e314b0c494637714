// Any bytes as a config.json: every typed reader on keys that models use.
#include <cmath>
#include <cstdlib>

#include "model/checkpoint/json_config.h"

namespace {

void ReadAll(const expertflow::JsonConfig& config, int depth) {
  for (const char* key : {"hidden_size", "rms_norm_eps", "hidden_act", "mlp_only_layers",
                          "architectures", "use_sliding_window", "rope_scaling", "a"}) {
    const auto whole = config.Int(key, 1, 4096);
    if (whole.ok() && (*whole < 1 || *whole > 4096)) std::abort();
    const auto number = config.NumberOr(key, 0, 1e9, 1);
    if (number.ok() && !(*number >= 0 && *number <= 1e9)) std::abort();
    static_cast<void>(config.BoolOr(key, false).ok());
    static_cast<void>(config.StringOr(key, "").ok());
    static_cast<void>(config.IntList(key, 0, 100).ok());
    static_cast<void>(config.StringList(key).ok());
    const auto nested = config.Object(key);
    if (nested.ok() && depth > 0) ReadAll(*nested, depth - 1);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config =
      expertflow::JsonConfig::Parse({reinterpret_cast<const char*>(data), size}, "input");
  if (!config.ok()) return 0;
  static_cast<void>(config->UnreadKeys());
  ReadAll(*config, 3);
  static_cast<void>(config->UnreadKeys());
  return 0;
}

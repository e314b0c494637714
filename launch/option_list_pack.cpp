// The options of pack, synth and perplexity that no other command has.
#include "launch/option_list.h"

namespace expertflow {
namespace {

using Type = OptionType;

constexpr uint32_t kPack = Bit(Command::kPack);
constexpr uint32_t kSynth = Bit(Command::kSynth);
constexpr uint32_t kPerplexity = Bit(Command::kPerplexity);

constexpr OptionSpec kOptions[] = {
    {"checkpoint",
     Type::kText,
     kPack,
     "MODEL",
     "",
     "model folder with safetensors",
     {.positional = true, .required = true, .command_line_only = true}},
    {"config-json",
     Type::kText,
     kSynth,
     "CONFIG_JSON",
     "",
     "config.json that gives the shapes",
     {.positional = true, .required = true, .command_line_only = true}},
    {"output",
     Type::kText,
     kPack | kSynth,
     "DIR",
     "",
     "folder to write; created if need be",
     {.short_name = 'o', .required = true, .command_line_only = true}},
    {"quant",
     Type::kChoice,
     kPack,
     "keep|fp8|int8|int4|uint4|mxfp4",
     "keep",
     "what the experts' matrices become",
     {.command_line_only = true}},
    {"quant-scope",
     Type::kChoice,
     kPack,
     "experts|all",
     "experts",
     "all: the other matrices, too, but for routers and gates",
     {.command_line_only = true}},
    {"quant-popular",
     Type::kText,
     kPack,
     "PERCENT%:TYPE",
     "",
     "another type for the experts that --trace uses most (20%:int8)",
     {.command_line_only = true, .default_note = "all have one"}},
    {"trace",
     Type::kText,
     kPack,
     "FILE",
     "",
     "routing trace (.eft) of the model, for --quant-popular",
     {.command_line_only = true}},
    {"order",
     Type::kText,
     kPack,
     "FILE",
     "",
     "routing trace (.eft): a layer's experts that it uses together lie side by side",
     {.command_line_only = true, .default_note = "the model's order"}},
    {"force", Type::kFlag, kPack, "", "", "overwrite a store file", {.command_line_only = true}},
    {"layers",
     Type::kInteger,
     kSynth,
     "N",
     "0",
     "layers to write",
     {.min = 0, .max = 4096, .default_note = "0: as in the config"}},
    {"dtype", Type::kChoice, kSynth, "bf16|f16|f32", "bf16", "type of the weights", {}},
    {"text", Type::kText, kPerplexity, "FILE", "", "the text, UTF-8", {.command_line_only = true}},
    {"text",
     Type::kText,
     kPack,
     "FILE",
     "",
     "how well the model predicts this text (UTF-8), before and after",
     {.command_line_only = true, .default_note = "not measured"}},
    {"window",
     Type::kInteger,
     kPerplexity | kPack,
     "N",
     "0",
     "tokens that run together",
     {.min = 0,
      .default_note = "1024, or less where the context (perplexity: or the KV cache) is smaller"}},
    {"window-step",
     Type::kInteger,
     kPerplexity | kPack,
     "N",
     "0",
     "from one window's begin to the next",
     {.min = 0, .default_note = "half a window"}},
};

}  // namespace

std::span<const OptionSpec> PackOptionList() {
  return kOptions;
}

}  // namespace expertflow

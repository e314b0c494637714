#include "launch/option_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>
#include <vector>

#include "common/check.h"
#include "common/units.h"
#include "launch/option_values.h"

namespace expertflow {
namespace {

constexpr uint32_t Bit(Command command) {
  return static_cast<uint32_t>(command);
}
constexpr uint32_t kRun = Bit(Command::kRun);
constexpr uint32_t kCompare = Bit(Command::kCompare);
constexpr uint32_t kInspect = Bit(Command::kInspect);
constexpr uint32_t kPack = Bit(Command::kPack);
constexpr uint32_t kSynth = Bit(Command::kSynth);
constexpr uint32_t kTokenize = Bit(Command::kTokenize);
constexpr uint32_t kStatus = Bit(Command::kStatus);
constexpr uint32_t kClean = Bit(Command::kClean);
constexpr uint32_t kCoordinator = Bit(Command::kCoordinator);
constexpr uint32_t kStore = Bit(Command::kStore);
constexpr uint32_t kWorker = Bit(Command::kWorker);
constexpr uint32_t kTrace = Bit(Command::kTrace);
constexpr uint32_t kBench = Bit(Command::kBench);
constexpr uint32_t kReplay = Bit(Command::kReplay);
constexpr uint32_t kTrain = Bit(Command::kTrain);
constexpr uint32_t kServe = Bit(Command::kServe);

constexpr uint32_t kJobs = kRun | kCompare | kServe;  // commands that start a job of their own
constexpr uint32_t kRoles = kCoordinator | kStore | kWorker;
// The roles take each other's options, so that one list may be given to all, and so that the
// coordinator knows what a replacement is started with.
constexpr uint32_t kSetup = kJobs | kRoles;
constexpr uint32_t kTools = kJobs | kInspect | kPack | kSynth | kTokenize | kStatus | kClean |
                            kBench | kTrace | kReplay | kTrain;

constexpr CommandInfo kCommands[] = {
    {Command::kRun, "run", "generate text: starts a job on this host, and ends it",
     "Prompts come from --prompt, --prompt-file, or standard input. The text goes to standard\n"
     "output as it is generated; several prompts run at once and are printed in order.\n"
     "With --job or --job-dir they go to a job that runs already, such as one of launch/mpmd."},
    {Command::kServe, "serve", "an OpenAI-compatible HTTP server: starts a job on this host",
     "Ends on SIGTERM or SIGINT, when what runs is finished; at once on a second one.\n"
     "docs/serving.md says what clients may ask for."},
    {Command::kInspect, "inspect", "what is in a checkpoint or store file, and the memory plan",
     "Nothing is allocated. A folder with nothing but a config.json will do for the plan."},
    {Command::kPack, "pack", "write a checkpoint as a store file that later starts map at once",
     "The output folder is a model folder: give it to run --model."},
    {Command::kSynth, "synth", "write a random checkpoint with the shapes of a config.json",
     "For benchmarks: the weights mean nothing."},
    {Command::kCompare, "compare", "compare logits, routes and greedy tokens with a reference",
     "Runs the reference's prompts through a whole job. Exit code 0 within the tolerances."},
    {Command::kTokenize, "tokenize", "text to token ids and back, as JSON lines",
     "Reads {\"text\": ...} or {\"ids\": [...]} from standard input, writes the other."},
    {Command::kStatus, "status",
     "a running job: processes, caches, requested and effective options", ""},
    {Command::kTrace, "trace", "look at recorded traces, cut, merge, import and export them",
     "trace FILE...           timelines of run --trace: how often each kind of span occurs and "
     "how\n"
     "                        long it takes; with --perfetto, as events for a viewer\n"
     "trace inspect FILE...   what is in a routing trace (.eft)\n"
     "trace cut FILE          some sequences of it: --sequences, --output\n"
     "trace merge FILE...     several of one model as one: --output\n"
     "trace import FILE       a .json (packed) or .jsonl routing of another program: --output\n"
     "trace export FILE       as .csv or .jsonl: --output"},
    {Command::kTrain, "train",
     "fit the next-use forecaster of the expert cache to a recorded routing",
     "Takes seconds to minutes. replay --forecaster shows what it is worth."},
    {Command::kReplay, "replay", "replay a recorded routing against caches and policies",
     "All arms see the same events in one run, one (step, layer) at a time. Policies: static, "
     "lru,\n"
     "lru-layer, lfu, lfru, decayed-lfu-<half-life in tokens>, two-level, ours, ours-no-forecast,\n"
     "belady (the bound, with bypass). What each does is in docs/replay.md."},
    {Command::kBench, "bench", "measure this machine: a table, beside the machine's own limits",
     "NAME is one of\n"
     "  decode    batch 1 in place, against the read bandwidth of the same memory\n"
     "  prefill   a prompt of 512 tokens\n"
     "  copies    expert copies against memcpy, and over an emulated link\n"
     "  load      a checkpoint into the store against plain reads of its files\n"
     "  cache     share of resident experts x prefetch, over an emulated link\n"
     "  overhead  a decode step in a whole job against an engine alone\n"
     "  memory    what store and workers take, and whether it grows\n"
     "  start     from the start of run to its first text\n"
     "  idle      CPU time of a job that has nothing to do"},
    {Command::kClean, "clean", "remove what killed jobs left in /dev/shm and in job folders", ""},
    {Command::kCoordinator, "coordinator", "role: requests and decisions (one per job)",
     "Started by mpirun (see launch/mpmd), or alone with --join-listen."},
    {Command::kStore, "store", "role: the host's expert store (one per host)",
     "Started by mpirun (see launch/mpmd), or with --join."},
    {Command::kWorker, "worker", "role: one device and its expert cache",
     "Started by mpirun (see launch/mpmd), or with --join."},
};

using Type = OptionType;

constexpr OptionSpec kOptions[] = {
    // --- what to work on
    {"model",
     Type::kText,
     kSetup | kTokenize | kBench,
     "DIR",
     "",
     "model folder (Hugging Face layout, or made by pack)",
     {}},
    {"path",
     Type::kText,
     kInspect,
     "PATH",
     "",
     "model folder, config.json, or store file (.efstore)",
     {.positional = true, .required = true, .command_line_only = true}},
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
    {"benchmark",
     Type::kChoice,
     kBench,
     "decode|prefill|copies|load|cache|overhead|memory|start|idle",
     "",
     "what to measure",
     {.positional = true, .required = true, .command_line_only = true}},
    {"repetitions",
     Type::kInteger,
     kBench,
     "N",
     "0",
     "samples of each arm",
     {.min = 0, .max = 10000, .default_note = "0: as many as fit into a few minutes"}},
    {"work-folder",
     Type::kText,
     kBench,
     "DIR",
     "/tmp",
     "where temporary models are written (decode and prefill: 11 GB)",
     {}},
    {"timeline",
     Type::kTextList,
     kTrace,
     "FILE",
     "",
     "timelines of one run, a file for each worker; or an action and its files",
     {.positional = true, .required = true, .command_line_only = true}},
    {"perfetto",
     Type::kText,
     kTrace,
     "FILE",
     "",
     "write them as Chrome trace events, which ui.perfetto.dev opens",
     {.command_line_only = true}},
    {"output",
     Type::kText,
     kPack | kSynth,
     "DIR",
     "",
     "folder to write; created if need be",
     {.short_name = 'o', .required = true, .command_line_only = true}},
    {"output",
     Type::kText,
     kTrace,
     "FILE",
     "",
     "file to write (cut, merge, import, export)",
     {.short_name = 'o', .command_line_only = true}},
    {"trace-file",
     Type::kText,
     kReplay | kTrain,
     "TRACE",
     "",
     "routing trace: .eft, or what trace import takes",
     {.positional = true, .required = true, .command_line_only = true}},
    {"residency",
     Type::kText,
     kReplay,
     "SHARE,...",
     "15%,25%,40%",
     "experts that have a slot, as shares of all",
     {.command_line_only = true}},
    {"batch",
     Type::kText,
     kReplay,
     "N,...",
     "1,4,8",
     "sequences in lockstep",
     {.command_line_only = true}},
    {"policy",
     Type::kText,
     kReplay,
     "NAME,...",
     "static,lru,lru-layer,lfu,lfru,decayed-lfu-1,decayed-lfu-8,decayed-lfu-32,decayed-lfu-80,"
     "two-level,ours-no-forecast,ours,belady",
     "policies to replay",
     {.command_line_only = true, .default_note = "all, decayed-lfu at 1, 8, 32 and 80"}},
    {"sequences",
     Type::kText,
     kReplay | kTrace | kTrain,
     "RANGE,...",
     "",
     "which sequences to take: begin:end or begin:end:step, from 0",
     {.command_line_only = true, .default_note = "all"}},
    {"output",
     Type::kText,
     kTrain,
     "FILE",
     "",
     "forecaster to write (.efn)",
     {.short_name = 'o', .required = true, .command_line_only = true}},
    {"forecaster",
     Type::kText,
     kReplay,
     "FILE",
     "",
     "forecaster for the policy ours; train one with expertflow train",
     {.command_line_only = true, .default_note = "none: decayed frequency"}},
    {"training-sequences",
     Type::kText,
     kReplay,
     "RANGE,...",
     "",
     "sequences that static binding is chosen by",
     {.command_line_only = true, .default_note = "every second one"}},
    {"expert-bytes",
     Type::kBytes,
     kReplay | kTrace,
     "SIZE",
     "0",
     "what one expert takes",
     {.command_line_only = true, .default_note = "0: what the trace says"}},
    {"bootstrap",
     Type::kInteger,
     kReplay,
     "N",
     "1000",
     "rounds of resampling sequences for the interval; 0 is none",
     {.min = 0, .max = 1e6, .command_line_only = true}},
    {"plot",
     Type::kText,
     kReplay,
     "FILE",
     "",
     "draw the miss rates as SVG",
     {.command_line_only = true}},
    {"tokenizer",
     Type::kText,
     kJobs | kCoordinator | kTokenize | kSynth,
     "FILE",
     "",
     "tokenizer.json",
     {.default_note = "that of the model folder"}},

    // --- prompts
    {"prompt",
     Type::kTextList,
     kRun,
     "TEXT",
     "",
     "prompt; may be repeated",
     {.short_name = 'p', .command_line_only = true}},
    {"prompt-file",
     Type::kTextList,
     kRun,
     "FILE",
     "",
     "file whose content is a prompt, without its last newline; may be repeated",
     {.command_line_only = true}},
    {"max-tokens",
     Type::kInteger,
     kRun,
     "N",
     "128",
     "tokens to generate for each prompt",
     {.min = 1, .max = 1e6}},
    {"temperature",
     Type::kNumber,
     kRun,
     "NUMBER",
     "0",
     "sampling temperature; 0 is greedy",
     {.min = 0, .max = 100}},
    {"top-p",
     Type::kNumber,
     kRun,
     "NUMBER",
     "1",
     "sample from the likeliest tokens up to this sum",
     {.min = 0, .max = 1}},
    {"top-k",
     Type::kInteger,
     kRun,
     "N",
     "0",
     "sample from the N likeliest tokens; 0 is all",
     {.min = 0, .max = 1e6}},
    {"seed", Type::kInteger, kRun | kSynth, "N", "0", "seed of the random numbers", {.min = 0}},
    {"stop", Type::kTextList, kRun, "TEXT", "", "text that ends generation; may be repeated", {}},
    {"ignore-eos", Type::kFlag, kRun, "", "", "generate past the end-of-text token", {}},

    // --- the HTTP server
    {"listen",
     Type::kText,
     kServe,
     "HOST:PORT",
     "127.0.0.1:8000",
     "where clients connect; port 0 is a free one",
     {}},
    {"model-name",
     Type::kText,
     kServe,
     "NAME",
     "",
     "name of the model for clients",
     {.default_note = "the model folder's"}},
    {"chat-template",
     Type::kText,
     kServe,
     "FILE",
     "",
     "Jinja template that makes a prompt of a chat",
     {.default_note = "the model's own"}},
    {"api-keys",
     Type::kText,
     kServe,
     "FILE",
     "",
     "file with a key per line, one of which every client must have",
     {.default_note = "anybody may use the server"}},
    {"drain-timeout",
     Type::kDuration,
     kServe,
     "TIME",
     "30s",
     "what runs when the server is told to end may take this long",
     {}},
    {"request-timeout",
     Type::kDuration,
     kServe,
     "TIME",
     "30s",
     "a request must have arrived within this time, and a client must read its answer",
     {.min = 1e6}},
    {"request-size-max",
     Type::kBytes,
     kServe,
     "SIZE",
     "8MiB",
     "largest body of a request",
     {.min = 1024, .max = 1 << 30}},
    {"connections-max",
     Type::kInteger,
     kServe,
     "N",
     "4096",
     "clients at once; when more come, the one idle for longest goes",
     {.min = 1, .max = 100000}},

    // --- the job
    {"workers",
     Type::kInteger,
     kSetup | kInspect,
     "N",
     "1",
     "workers of the job",
     {.min = 1, .max = 256}},
    {"stores",
     Type::kInteger,
     kRoles,
     "N",
     "1",
     "stores (hosts) that join without mpirun",
     {.min = 1, .max = 1024, .default_note = "those of the mpirun job, else 1"}},
    {"no-restart",
     Type::kFlag,
     kSetup,
     "",
     "",
     "do not start a replacement for a store or worker that died",
     {}},
    {"load-threads",
     Type::kInteger,
     kSetup,
     "N",
     "0",
     "threads that load the checkpoint",
     {.min = 0, .max = 256, .default_note = "0: chosen"}},
    {"start-timeout",
     Type::kDuration,
     kSetup,
     "TIME",
     "600s",
     "until all workers are ready",
     {.min = 1e6}},
    {"heartbeat-interval",
     Type::kDuration,
     kSetup,
     "TIME",
     "1s",
     "how often stores and workers give a sign of life",
     {.min = 1e6}},
    {"heartbeat-timeout",
     Type::kDuration,
     kSetup,
     "TIME",
     "10s",
     "silence after which a process counts as dead",
     {.min = 1e6}},
    {"stall-timeout",
     Type::kDuration,
     kSetup,
     "TIME",
     "120s",
     "busy without progress, after which a worker counts as dead",
     {.min = 1e6}},
    {"queue-max",
     Type::kInteger,
     kSetup,
     "N",
     "1024",
     "requests that wait for a worker",
     {.min = 1, .max = 1e6}},
    {"net-devices",
     Type::kText,
     kSetup,
     "LIST",
     "",
     "network devices, as UCX_NET_DEVICES",
     {.default_note = "lo for a job on one host, else all"}},

    // --- the worker
    {"device", Type::kChoice, kSetup, "cpu", "cpu", "device of a worker", {}},
    {"kernels",
     Type::kChoice,
     kSetup | kBench,
     "auto|scalar|avx2|avx512|amx",
     "auto",
     "instruction set of the CPU device; auto: the fastest but amx, whose last bits differ",
     {}},
    {"threads",
     Type::kInteger,
     kSetup | kBench,
     "N",
     "0",
     "compute threads of a worker",
     {.min = 0, .max = 1024, .default_note = "0: its share of the host's cores"}},
    {"device-memory",
     Type::kChoice,
     kSetup | kInspect,
     "host|private",
     "",
     "compute in place from the store's memory, or from an arena of the worker's own",
     {.default_note = "private with --expert-memory or --link, else host"}},
    {"expert-memory",
     Type::kByteBudget,
     kSetup | kInspect,
     "SIZE|PERCENT",
     "",
     "expert cache of a worker, as bytes or as a share of all experts; 0 is none",
     {.default_note = "100% of a private arena"}},
    {"link",
     Type::kLink,
     kSetup,
     "RATE[,LATENCY]",
     "",
     "emulate the link that experts are copied over, such as 12GB/s,10us",
     {.default_note = "not emulated"}},
    {"prefetch", Type::kChoice, kSetup, "on|off", "on", "load predicted experts ahead", {}},
    {"streaming-buffers",
     Type::kInteger,
     kSetup | kInspect,
     "N",
     "2",
     "buffers for experts that bypass the cache",
     {.min = 1, .max = 64}},
    {"transfer-chunk",
     Type::kBytes,
     kSetup,
     "SIZE",
     "1MiB",
     "largest piece of a copy; a piece cannot be cancelled",
     {.min = 4096, .max = 1 << 30}},
    {"kv-memory",
     Type::kBytes,
     kSetup | kInspect,
     "SIZE",
     "0",
     "KV cache of a worker",
     {.default_note = "0: four sequences at full context, at most 256 MiB"}},
    {"sequences-max",
     Type::kInteger,
     kSetup | kInspect,
     "N",
     "16",
     "sequences that a worker runs at once",
     {.min = 1, .max = 4096}},
    {"prefill-tokens",
     Type::kInteger,
     kSetup | kInspect,
     "N",
     "512",
     "prompt tokens that a step takes in at most",
     {.min = 1, .max = 65536}},
    {"trace",
     Type::kText,
     kSetup,
     "FILE",
     "",
     "record a trace of each worker; its process id is put before the extension",
     {}},

    // --- roles
    {"job",
     Type::kText,
     kRoles | kStatus | kRun,
     "NAME",
     "",
     "name of the job: letters, digits, dot, dash, underscore",
     {.command_line_only = true, .default_note = "status: the newest one; run: a job of its own"}},
    {"job-dir",
     Type::kText,
     kRoles | kStatus | kRun,
     "DIR",
     "",
     "folder of the job's socket",
     {.command_line_only = true, .default_note = "/tmp/<job>"}},
    {"job-pid",
     Type::kInteger,
     kRoles,
     "PID",
     "0",
     "process whose life is the job's: the segment stays while it lives",
     {.min = 0,
      .max = 1 << 30,
      .command_line_only = true,
      .default_note = "0: the coordinator's or mpirun's"}},
    {"join",
     Type::kText,
     kStore | kWorker,
     "HOST:PORT",
     "",
     "join a running job; its secret is taken from EXPERTFLOW_JOIN_SECRET",
     {.command_line_only = true}},
    {"join-listen",
     Type::kText,
     kCoordinator | kRun,
     "HOST:PORT",
     "",
     "where others may join; secret as for --join",
     {.default_note = "loopback, a free port, a random secret"}},
    {"requested",
     Type::kText,
     kCoordinator,
     "FILE",
     "",
     "options as requested of the command that starts the job, for status",
     {.command_line_only = true}},

    // --- pack, synth
    {"force", Type::kFlag, kPack, "", "", "overwrite a store file", {.command_line_only = true}},
    {"layers",
     Type::kInteger,
     kSynth,
     "N",
     "0",
     "layers to write",
     {.min = 0, .max = 4096, .default_note = "0: as in the config"}},
    {"dtype", Type::kChoice, kSynth, "bf16|f16|f32", "bf16", "type of the weights", {}},

    // --- inspect
    {"device-budget",
     Type::kBytes,
     kInspect,
     "SIZE",
     "0",
     "device memory of a worker: as many experts as fit get a slot",
     {.default_note = "0: unlimited"}},
    {"verify",
     Type::kFlag,
     kInspect,
     "",
     "",
     "check the checksum of every block of a store file",
     {.command_line_only = true}},

    // --- compare
    {"reference",
     Type::kText,
     kCompare,
     "FILE",
     "",
     "reference.safetensors, its .json beside it",
     {.default_note = "that of the model folder"}},
    {"tolerance",
     Type::kNumber,
     kCompare,
     "NUMBER",
     "0.002",
     "largest absolute logit difference",
     {.min = 0}},
    {"route-mismatch-max",
     Type::kNumber,
     kCompare,
     "SHARE",
     "0",
     "share of router decisions that may differ",
     {.min = 0, .max = 1}},

    // --- output
    {"report", Type::kFlag, kRun, "", "", "print memory plan, speed and cache figures", {}},
    {"check-resident",
     Type::kFlag,
     kRun,
     "",
     "",
     "run the prompts again with all experts resident and compare the tokens",
     {}},
    {"metrics",
     Type::kFlag,
     kStatus,
     "",
     "",
     "Prometheus text instead",
     {.command_line_only = true}},
    {"dry-run",
     Type::kFlag,
     kClean,
     "",
     "",
     "list only, remove nothing",
     {.command_line_only = true}},
    {"json",
     Type::kText,
     kTools & ~kTokenize,
     "FILE",
     "",
     "write the figures as JSON (docs/json.md); - is standard output",
     {.command_line_only = true}},
    {"verbose",
     Type::kFlag,
     kJobs | kPack | kSynth,
     "",
     "",
     "progress as plain lines where standard error is no terminal",
     {.short_name = 'v'}},
    {"log-level",
     Type::kChoice,
     kTools,
     "debug|info|warning|error|off",
     "warning",
     "least severe lines to log",
     {}},
    {"role-log-level",
     Type::kChoice,
     kJobs,
     "debug|info|warning|error|off",
     "info",
     "the same for the processes of the job; their log is shown when the job fails",
     {}},
    {"log-level",
     Type::kChoice,
     kRoles,
     "debug|info|warning|error|off",
     "info",
     "least severe lines to log",
     {}},
    {"config",
     Type::kText,
     kTools | kRoles,
     "FILE",
     "",
     "TOML file with options of these names",
     {.command_line_only = true, .default_note = "EXPERTFLOW_CONFIG"}},
};

std::string DescribeRange(const OptionSpec& spec) {
  const double min = spec.traits.min;
  const double max = spec.traits.max;
  return std::isinf(max) ? fmt::format("of at least {}", min)
                         : fmt::format("from {} to {}", min, max);
}

bool InRange(const OptionSpec& spec, double value) {
  return value >= spec.traits.min && value <= spec.traits.max;
}

bool IsValid(const OptionSpec& spec, std::string_view text) {
  switch (spec.type) {
    case OptionType::kFlag: return ParseSwitch(text).has_value();
    case OptionType::kText: return !text.empty();
    case OptionType::kTextList: return true;
    case OptionType::kChoice: {
      const std::vector<std::string_view> words = ChoiceWords(spec.value_name);
      return std::find(words.begin(), words.end(), text) != words.end();
    }
    case OptionType::kInteger: {
      const std::optional<int64_t> value = ParseInteger(text);
      return value && InRange(spec, static_cast<double>(*value));
    }
    case OptionType::kNumber: {
      const std::optional<double> value = ParseNumber(text);
      return value && InRange(spec, *value);
    }
    case OptionType::kBytes: {
      const Result<uint64_t> value = ParseBytes(text);
      return value.ok() && InRange(spec, static_cast<double>(*value));
    }
    case OptionType::kByteBudget: return ParseByteBudget(text).ok();
    case OptionType::kDuration: {
      const Result<int64_t> value = ParseDurationNs(text);
      return value.ok() && InRange(spec, static_cast<double>(*value));
    }
    case OptionType::kLink: return ParseLink(text).ok();
  }
  return false;
}

}  // namespace

std::span<const CommandInfo> AllCommands() {
  return kCommands;
}

const CommandInfo& InfoOf(Command command) {
  const auto* found =
      std::find_if(std::begin(kCommands), std::end(kCommands),
                   [&](const CommandInfo& info) { return info.command == command; });
  CHECK(found != std::end(kCommands));
  return *found;
}

std::span<const OptionSpec> AllOptions() {
  return kOptions;
}

const OptionSpec* FindOption(Command command, std::string_view name) {
  for (const OptionSpec& spec : kOptions) {
    if (spec.name == name && spec.For(command)) return &spec;
  }
  return nullptr;
}

bool IsOptionName(std::string_view name) {
  return std::any_of(std::begin(kOptions), std::end(kOptions),
                     [&](const OptionSpec& spec) { return spec.name == name; });
}

std::string ExpectedValue(const OptionSpec& spec) {
  switch (spec.type) {
    case OptionType::kFlag: return "true or false";
    case OptionType::kText:
    case OptionType::kTextList: return "some text";
    case OptionType::kChoice: {
      const std::vector<std::string_view> words = ChoiceWords(spec.value_name);
      if (words.size() == 1) return std::string(words[0]);
      return fmt::format("one of {}", fmt::join(words, ", "));
    }
    case OptionType::kInteger: return "an integer " + DescribeRange(spec);
    case OptionType::kNumber: return "a number " + DescribeRange(spec);
    case OptionType::kBytes:
      if (spec.traits.min == 0) return "a size such as 64MiB";
      return fmt::format("a size of at least {} and at most {} bytes, such as 1MiB",
                         static_cast<uint64_t>(spec.traits.min),
                         static_cast<uint64_t>(spec.traits.max));
    case OptionType::kByteBudget: return "a size such as 64MiB, or a share such as 30%";
    case OptionType::kDuration:
      return fmt::format("a time of at least {} such as 10s",
                         FormatDurationNs(static_cast<int64_t>(spec.traits.min)));
    case OptionType::kLink: return "a rate, and a latency if wanted, such as 12GB/s,10us";
  }
  return "";
}

Status CheckOptionValue(const OptionSpec& spec, std::string_view text, std::string_view origin) {
  if (IsValid(spec, text)) return OkStatus();
  return InvalidArgument(
      fmt::format("{}: expected {}, found \"{}\"", origin, ExpectedValue(spec), text));
}

}  // namespace expertflow

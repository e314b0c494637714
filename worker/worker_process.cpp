#include "worker/worker_process.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "common/json_string.h"
#include "common/log.h"
#include "device/cpu/cpu_device.h"
#include "expert_store/store_view.h"
#include "model/arch/architecture.h"
#include "predictor/fitted_to.h"
#include "predictor/hybrid_file.h"
#include "predictor/learnt_messages.h"
#include "predictor/next_use_file.h"
#include "transport/board.h"
#include "transport/coordinator_link.h"
#include "transport/wire.h"
#include "worker/cached_executor.h"
#include "worker/engine_thread.h"
#include "worker/memory_plan.h"

namespace expertflow {
namespace {

Result<StoreDescriptor> DescriptorFrom(const StoreReady& ready) {
  StoreDescriptor descriptor;
  descriptor.kind =
      ready.kind == 0 ? StoreDescriptor::Kind::kSharedMemory : StoreDescriptor::Kind::kFile;
  descriptor.name = ready.name;
  descriptor.total_bytes = ready.total_bytes;
  ASSIGN_OR_RETURN(descriptor.fingerprint, Fingerprint::Parse(ready.fingerprint));
  return descriptor;
}

// Rows of token ids in one batch of what was learnt: some tenths of a millisecond to gather.
constexpr size_t kLearntBytesMost = size_t{256} << 10;

// Everything between one message and the next: owned by the transport's thread.
class WorkerProcess {
 public:
  WorkerProcess(const WorkerOptions& options, Transport& transport,
                const std::vector<Member>& members, CoordinatorLink link)
      : options_(options), transport_(transport), members_(members), link_(std::move(link)) {}

  ~WorkerProcess();

  Status Run();

 private:
  // Returns true when the process should end.
  Result<bool> Handle(const Message& message);
  Status Attach(const StoreReady& store);
  // The published ones if they fit the model and can be of use, else null.
  template <typename Model, typename Decode>
  Result<std::shared_ptr<const Model>> TakeTables(TablesKind kind, Decode decode,
                                                  const char* option);
  std::string InUse(TablesKind kind) const;  // JSON
  Status OpenDevice();
  MemoryPlanInput PlanInput() const;
  // What the bits of a sequence depend on: workers of a job must agree.
  std::string Arithmetic() const;
  std::string EffectiveConfig() const;
  // Beginnings of sequences are kept for others.
  bool KeepsPrefixes() const { return options_.prefix_cache && options_.record_file.empty(); }
  void Send(const Message& message);
  // Sends what the engine has produced; keeps what does not fit for later.
  void SendPending();
  void SendHeartbeat();
  void OpenBoard(const PublishBoard& place);
  // What the coordinator has published, if it is new.
  void ReadBoard();
  Status Adopt(PredictorVersion version);
  WorkerStats Stats() const;
  void Flush();

  const WorkerOptions& options_;
  Transport& transport_;
  const std::vector<Member>& members_;
  CoordinatorLink link_;

  std::unique_ptr<Device> device_;
  std::optional<StoreView> store_;
  std::unique_ptr<Architecture> architecture_;
  MemoryPlan plan_;
  std::unique_ptr<TimelineRecorder> timeline_;
  std::unique_ptr<TraceFileSink> record_file_;
  std::unique_ptr<RoutingRecorder> recorder_;
  std::unique_ptr<EngineThread> engine_;
  std::vector<Message> pending_;
  std::map<TablesKind, PublishTables> tables_;  // as published
  std::map<TablesKind, std::string> in_use_;    // names
  std::optional<BoardReader> board_;            // none: by messages
  std::atomic<uint64_t> stride_word_{0};        // as messages say
  bool board_is_out_of_reach_ = false;
  uint64_t beats_ = 0;
  uint64_t reported_steps_ = UINT64_MAX;  // when the use of experts was last sent
};

WorkerProcess::~WorkerProcess() {
  engine_.reset();
  if (record_file_ == nullptr || (recorder_ != nullptr && !recorder_->status().ok())) return;
  if (const Status closed = record_file_->Close(); !closed.ok()) LogError("{}", closed.message());
}

Status WorkerProcess::OpenDevice() {
  if (options_.device != "cpu") {
    return InvalidArgument(
        fmt::format("--device {}: not supported; this build knows cpu", options_.device));
  }
  int32_t workers = options_.workers_on_host;
  if (workers == 0) {
    workers = static_cast<int32_t>(
        std::count_if(members_.begin(), members_.end(), [](const Member& member) {
          return member.info.role == ProcessRole::kWorker && member.info.host == HostName();
        }));
  }
  CpuDeviceOptions cpu;
  workers = std::max(1, workers);
  cpu.threads = options_.threads > 0 ? options_.threads : std::max(1, CoreCount() / workers);
  cpu.kernels = options_.kernels;
  cpu.int8_activations = options_.int8_activations;
  cpu.link = options_.link;
  // The cores that no worker computes on serve their links, one each.
  cpu.link.copy_thread = workers * (cpu.threads + 1) <= CoreCount();
  ASSIGN_OR_RETURN(device_, CreateCpuDevice(cpu));
  return OkStatus();
}

MemoryPlanInput WorkerProcess::PlanInput() const {
  MemoryPlanInput input;
  input.store = StoreSizesOf(*store_);
  input.in_place = options_.device_memory_host;
  input.expert_memory = options_.expert_memory;
  input.streaming_buffers = options_.streaming_buffers;
  input.kv_memory_bytes = options_.kv_memory_bytes;
  input.kv_memory_most_bytes = options_.kv_memory_most_bytes;
  input.kv_dtype = options_.kv_dtype;
  input.sequences_max = options_.sequences_max;
  input.prefill_tokens_max = options_.prefill_tokens_max;
  input.lookahead_max = LookaheadMost(options_.prefetch, options_.stride);
  return input;
}

std::string WorkerProcess::Arithmetic() const {
  const std::string& sums = device_->properties().arithmetic;
  if (options_.kv_dtype == DType::kF32) return sums;
  return fmt::format("{}, KV cache {}", sums, DTypeName(options_.kv_dtype));
}

std::string WorkerProcess::EffectiveConfig() const {
  const DeviceProperties& device = device_->properties();
  return fmt::format(
      R"({{"device":"{}","kernels":"{}","arithmetic":"{}","threads":{},"device_memory":"{}","cache_ranking":"{}","prefetch":{},)"
      R"("stride":"{}","forecaster":{},"predictor":{},)"
      R"("expert_slots":{},"slots_by_size":[{}],"streaming_buffers":{},)"
      R"("link_bytes_per_second":{},"link_latency_ns":{},"link_emulated":{},"link_copy_thread":{},"sequences_max":{},)"
      R"("prefill_tokens_max":{},"prefix_cache":{},"batching":"{}","transfer_chunk_bytes":{},"kv_dtype":"{}"}})",
      device.name, device.kernels, Arithmetic(), device.threads,
      options_.device_memory_host ? "host" : "private",
      options_.cache_by_recency ? "recency" : "next-use",
      options_.prefetch && !options_.device_memory_host, FormatStride(options_.stride),
      InUse(TablesKind::kForecaster), InUse(TablesKind::kPredictor), plan_.expert_slots,
      fmt::join(SlotsOf(plan_.slot_classes), ","), plan_.streaming_buffers,
      device.link.bytes_per_second, device.link.latency_ns, device.link.emulated,
      device.link.copy_thread, options_.sequences_max, options_.prefill_tokens_max, KeepsPrefixes(),
      options_.static_batches ? "static" : "continuous", options_.transfer_chunk_bytes,
      DTypeName(options_.kv_dtype));
}

// File is NextUseFile or HybridFile.
template <typename Model, typename Decode>
Result<std::shared_ptr<const Model>> WorkerProcess::TakeTables(TablesKind kind, Decode decode,
                                                               const char* option) {
  std::shared_ptr<const Model> model;
  const auto found = tables_.find(kind);
  if (found == tables_.end() || options_.device_memory_host) return model;
  const PublishTables tables = std::move(found->second);
  tables_.erase(found);
  auto file = decode(tables.bytes, tables.name);
  Status fits = file.status();
  if (fits.ok()) {
    std::array<uint8_t, 16> identity;
    static_assert(sizeof(Fingerprint) == sizeof(identity));
    std::memcpy(identity.data(), &store_->fingerprint(), sizeof(identity));
    const ModelShape& shape = architecture_->shape();
    const std::vector<int32_t> experts(shape.moe_layers.size(), shape.experts);
    fits = CheckFittedTo(file->identity, file->model.experts, identity, experts, tables.name);
  }
  if (fits.ok()) {
    in_use_[kind] = tables.name;
    model = std::make_shared<Model>(std::move(file->model));
  } else if (tables.required) {
    return fits;
  } else {
    LogWarning("{}; going on without it (--{} off says so for good)", fits.message(), option);
  }
  return model;
}

std::string WorkerProcess::InUse(TablesKind kind) const {
  const auto found = in_use_.find(kind);
  return JsonQuoted(found == in_use_.end() ? "none" : found->second);
}

Status WorkerProcess::Attach(const StoreReady& ready) {
  ASSIGN_OR_RETURN(const StoreDescriptor descriptor, DescriptorFrom(ready));
  if (store_) {
    // A restarted store: the mapping that this worker holds is the same memory.
    if (store_->fingerprint() == descriptor.fingerprint) return OkStatus();
    return FailedPrecondition(
        fmt::format("store {} holds another model than the one in use", ready.name));
  }
  ASSIGN_OR_RETURN(store_, StoreView::Attach(descriptor));
  ASSIGN_OR_RETURN(const JsonConfig config,
                   JsonConfig::Parse(store_->config_json(), "config.json of " + ready.name));
  ASSIGN_OR_RETURN(architecture_, MakeArchitecture(config));
  RETURN_IF_ERROR(store_->Matches(architecture_->weights()));
  RETURN_IF_ERROR(OpenDevice());
  const bool records = !options_.record_file.empty();
  if (records || !options_.trace_file.empty()) {
    ASSIGN_OR_RETURN(timeline_, TimelineRecorder::Create(options_.trace_file, records));
  }
  ASSIGN_OR_RETURN(plan_, MakeMemoryPlan(*architecture_, PlanInput()));
  EngineOptions engine_options;
  engine_options.plan = plan_;
  engine_options.sequences_max = options_.sequences_max;
  engine_options.prefill_tokens_max = options_.prefill_tokens_max;
  engine_options.prefix_cache = KeepsPrefixes();
  engine_options.static_batches = options_.static_batches;
  engine_options.group_by_experts = options_.group_by_experts;
  if (options_.cache_by_recency) engine_options.cache_ranking = CacheRanking::kRecency;
  engine_options.prefetch = options_.prefetch;
  engine_options.dynamic_stride = !options_.stride.fixed();
  engine_options.stride_min = options_.stride.least;
  if (options_.shares_stride && !board_is_out_of_reach_) {
    engine_options.published_stride = board_ ? &board_->word() : &stride_word_;
  }
  ASSIGN_OR_RETURN(engine_options.forecaster,
                   TakeTables<NextUseModel>(TablesKind::kForecaster, DecodeNextUse, "forecaster"));
  ASSIGN_OR_RETURN(engine_options.predictor,
                   TakeTables<HybridModel>(TablesKind::kPredictor, DecodeHybrid, "predictor"));
  engine_options.predictor_learns = options_.learns;
  engine_options.policy_time_most = options_.policy_time_most;
  engine_options.transfer_chunk_bytes = options_.transfer_chunk_bytes;
  ASSIGN_OR_RETURN(auto engine, Engine::Create(engine_options, *device_, *architecture_, *store_,
                                               timeline_.get()));
  if (records) {
    record_file_ = std::make_unique<TraceFileSink>(options_.record_file);
    const TraceShape shape =
        RecordedShape(*store_, architecture_->shape(), options_.record_features, EffectiveConfig());
    ASSIGN_OR_RETURN(recorder_, RoutingRecorder::Create(shape, *record_file_));
    engine->RecordTo(recorder_.get());
  }
  engine_ = std::make_unique<EngineThread>(
      std::move(engine), [this] { transport_.Wake(); }, options_.outgoing_bytes_max);

  WorkerReady worker;
  worker.device = device_->properties().name;
  worker.kernels = device_->properties().kernels;
  worker.arithmetic = Arithmetic();
  worker.threads = static_cast<uint32_t>(device_->properties().threads);
  worker.expert_slots = static_cast<uint32_t>(plan_.expert_slots);
  worker.in_place = plan_.in_place;
  worker.kv_tokens = plan_.kv_tokens();
  worker.prefix_cache = KeepsPrefixes();
  worker.effective_config = EffectiveConfig();
  worker.memory_plan = MemoryPlanJson(plan_);
  Send(worker);
  return OkStatus();
}

Result<bool> WorkerProcess::Handle(const Message& message) {
  if (const auto* attach = std::get_if<AttachStore>(&message)) {
    RETURN_IF_ERROR(Attach(attach->store));
  } else if (const auto* tables = std::get_if<PublishTables>(&message)) {
    tables_[tables->kind] = *tables;
  } else if (const auto* place = std::get_if<PublishBoard>(&message)) {
    OpenBoard(*place);
  } else if (std::holds_alternative<Shutdown>(message)) {
    return true;
  } else if (engine_ == nullptr) {
    return FailedPrecondition(
        fmt::format("{} came before a store was attached", MessageName(message)));
  } else if (const auto* start = std::get_if<StartSequence>(&message)) {
    engine_->Start(*start);
  } else if (const auto* tokens = std::get_if<TokenBytes>(&message)) {
    engine_->SetTokens(*tokens);
  } else if (const auto* cancel = std::get_if<CancelSequence>(&message)) {
    engine_->Cancel(cancel->sequence);
  } else if (const auto* version = std::get_if<PredictorVersion>(&message)) {
    RETURN_IF_ERROR(Adopt(*version));
  } else if (const auto* stride = std::get_if<StridePublished>(&message)) {
    stride_word_.store(stride->word, std::memory_order_relaxed);
  } else {
    return InvalidArgument(
        fmt::format("a worker does not expect {} from the coordinator", MessageName(message)));
  }
  return false;
}

void WorkerProcess::Send(const Message& message) {
  pending_.push_back(message);
  SendPending();
}

// Whoever hears that a request has ended may ask for the statistics at once: they go first.
bool EndsARequest(const Message& message) {
  const auto* report = std::get_if<StepReport>(&message);
  return report != nullptr &&
         std::any_of(report->tokens.begin(), report->tokens.end(),
                     [](const TokenEvent& event) { return event.finish != FinishReason::kNone; });
}

void WorkerProcess::SendPending() {
  // More is taken from the engine only when all before it is gone, so that its bound holds here.
  for (int pass = 0; pass < 2; ++pass) {
    if (engine_ != nullptr && pending_.empty()) {
      engine_->TakeMessages(&pending_);
      if (std::any_of(pending_.begin(), pending_.end(), EndsARequest)) {
        pending_.insert(pending_.begin(), Stats());
      }
    }
    size_t sent = 0;
    while (sent < pending_.size()) {
      if (!link_.Send(pending_[sent]).ok()) break;  // queue full: later
      ++sent;
    }
    pending_.erase(pending_.begin(), pending_.begin() + static_cast<int64_t>(sent));
  }
}

void WorkerProcess::SendHeartbeat() {
  Heartbeat heartbeat;
  heartbeat.progress = engine_ == nullptr ? ++beats_ : engine_->steps();
  heartbeat.busy = engine_ != nullptr && engine_->busy();
  Send(heartbeat);
  if (engine_ == nullptr) return;
  Send(Stats());
  const uint64_t steps = engine_->steps();
  if (std::exchange(reported_steps_, steps) != steps) Send(engine_->experts());
  // What is left when the batch before comes back is for the next time, steps or not.
  if (options_.learns && options_.shares_learning) engine_->AskForLearnt(kLearntBytesMost);
  ReadBoard();
}

void WorkerProcess::OpenBoard(const PublishBoard& place) {
  if (engine_ != nullptr) return;  // which reads from the present one
  auto board = BoardReader::Open({place.pid, place.descriptor, place.id});
  board_is_out_of_reach_ = !board.ok();
  if (board.ok()) {
    board_ = std::move(board).value();
  } else {
    LogWarning("{}; going on without what other workers learn and measure",
               board.status().message());
  }
}

void WorkerProcess::ReadBoard() {
  if (!board_ || engine_ == nullptr) return;
  const auto bytes = board_->Read();
  if (!bytes) return;
  auto message = DecodeMessage(*bytes);
  const Status status =
      !message.ok() ? message.status()
      : std::holds_alternative<PredictorVersion>(*message)
          ? Adopt(std::get<PredictorVersion>(std::move(*message)))
          : InvalidArgument(fmt::format("a message {} on it", MessageName(*message)));
  if (!status.ok()) LogWarning("the coordinator's board: {}", status.message());
}

Status WorkerProcess::Adopt(PredictorVersion published) {
  uint64_t included = 0;
  for (const IncludedBatch& batch : published.included) {
    if (batch.process == options_.self.value) included = batch.number;
  }
  ASSIGN_OR_RETURN(LearntVersion version, LearntVersionFrom(std::move(published)));
  engine_->AdoptLearnt(std::make_shared<const LearntVersion>(std::move(version)), included);
  return OkStatus();
}

WorkerStats WorkerProcess::Stats() const {
  WorkerStats stats = engine_->stats();
  if (const auto resident = ProportionalSetSizeBytes(); resident.ok()) {
    stats.resident_bytes = *resident;
  }
  return stats;
}

void WorkerProcess::Flush() {
  SendPending();
  link_.Flush();
}

Status WorkerProcess::Run() {
  int64_t next_beat_ns = NowNs();
  std::vector<Message> messages;
  for (;;) {
    if (NowNs() >= next_beat_ns) {
      SendHeartbeat();
      next_beat_ns = NowNs() + options_.heartbeat_ns;
    }
    // A full queue empties without an event for us, so look again soon.
    const int64_t wait_ns = pending_.empty() ? next_beat_ns : NowNs() + 1'000'000;
    const Status received = link_.Receive(Deadline::AtNs(wait_ns), &messages);
    SendPending();
    if (received.code() == StatusCode::kCancelled) Flush();
    RETURN_IF_ERROR(received);
    for (const Message& message : messages) {
      const auto end = Handle(message);
      if (!end.ok()) {
        Send(FatalError{static_cast<uint8_t>(end.status().code()), end.status().message()});
        Flush();
        return end.status();
      }
      if (*end) {
        if (engine_ != nullptr) SendHeartbeat();  // the last word on the statistics
        Flush();
        return OkStatus();
      }
    }
  }
}

}  // namespace

Status RunWorker(const WorkerOptions& options, Transport& transport,
                 const std::vector<Member>& members, SignalWatcher& signals) {
  ASSIGN_OR_RETURN(CoordinatorLink link, CoordinatorLink::Connect(transport, signals, members,
                                                                  options.heartbeat_timeout_ns));
  WorkerProcess process(options, transport, members, std::move(link));
  return process.Run();
}

}  // namespace expertflow

#include "launch/worker_setup.h"

#include "launch/model_source.h"

namespace expertflow {

Result<WorkerOptions> WorkerOptionsFrom(const Options& options) {
  WorkerOptions worker;
  ASSIGN_OR_RETURN(worker.device_memory_host, ComputesInPlace(options));
  worker.device = options.Text("device");
  worker.kernels = options.Text("kernels");
  worker.int8_activations = options.Text("activations") == "int8";
  worker.threads = static_cast<int32_t>(options.Integer("threads"));
  if (options.Given("expert-memory")) worker.expert_memory = options.Budget("expert-memory");
  worker.streaming_buffers = static_cast<int32_t>(options.Integer("streaming-buffers"));
  if (options.Given("link")) {
    const LinkSetting link = options.Link("link");
    worker.link = {
        .bytes_per_second = link.bytes_per_second, .latency_ns = link.latency_ns, .emulated = true};
  }
  worker.cache_by_recency = options.Text("cache-ranking") == "recency";
  worker.prefetch = options.Switch("prefetch");
  worker.learns = options.Text("learning") != "off";
  worker.shares_learning = options.Text("learning") == "job";
  worker.shares_stride = options.Text("stride-control") == "job";
  ASSIGN_OR_RETURN(worker.stride, StrideOf(options));
  worker.policy_time_most = options.Number("policy-time") / 100;
  worker.kv_memory_bytes = options.Bytes("kv-memory");
  worker.kv_memory_most_bytes = options.Bytes("kv-memory-most");
  worker.kv_dtype = KvTypeOf(options);
  worker.sequences_max = static_cast<int32_t>(options.Integer("sequences-max"));
  worker.prefill_tokens_max = static_cast<int32_t>(options.Integer("prefill-tokens"));
  worker.prefix_cache = options.Switch("prefix-cache");
  worker.group_by_experts = options.Switch("group-by-experts");
  worker.static_batches = options.Text("batching") == "static";
  worker.transfer_chunk_bytes = options.Bytes("transfer-chunk");
  worker.heartbeat_ns = options.DurationNs("heartbeat-interval");
  worker.heartbeat_timeout_ns = options.DurationNs("heartbeat-timeout");
  worker.trace_file = options.Text("trace");
  worker.record_file = options.Text("record");
  worker.record_features = options.Flag("record-features");
  if (worker.record_features && worker.record_file.empty()) {
    return InvalidArgument("--record-features: says what --record FILE writes; give that as well");
  }
  return worker;
}

}  // namespace expertflow

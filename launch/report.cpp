#include "launch/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/units.h"

namespace expertflow {
namespace {

double Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

uint64_t Unsigned(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<uint64_t>() : 0;
}

bool Boolean(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

std::string TextOf(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

void AddStats(const nlohmann::json& stats, JobFigures* figures) {
  const std::pair<const char*, uint64_t*> sums[] = {
      {"hits", &figures->hits},
      {"late_hits", &figures->late_hits},
      {"misses", &figures->misses},
      {"bypasses", &figures->bypasses},
      {"bytes_demand", &figures->bytes_demand},
      {"bytes_prefetch", &figures->bytes_prefetch},
      {"bytes_wasted", &figures->bytes_wasted},
      {"prefill_tokens", &figures->prefill_tokens},
      {"decode_tokens", &figures->decode_tokens},
      {"reused_tokens", &figures->reused_tokens},
      {"preemptions", &figures->preemptions},
      {"steps", &figures->steps},
      {"step_ns", &figures->step_ns},
      {"stall_ns", &figures->stall_ns},
      {"link_busy_ns", &figures->link_busy_ns},
      {"prefetch_predictions", &figures->prefetch_predictions},
      {"prefetch_correct", &figures->prefetch_correct},
  };
  for (const auto& [key, sum] : sums) *sum += Unsigned(stats, key);
  figures->link_bytes_per_second =
      std::max(figures->link_bytes_per_second, Unsigned(stats, "link_bytes_per_second"));
  figures->link_emulated = figures->link_emulated || Boolean(stats, "link_emulated");
}

std::string DescribeTimes(const char* name, std::vector<int64_t> times_ns) {
  if (times_ns.empty()) return fmt::format("{} -", name);
  std::sort(times_ns.begin(), times_ns.end());
  if (times_ns.size() == 1) return fmt::format("{} {}", name, FormatDurationNs(times_ns[0]));
  return fmt::format("{} {} median, {} worst", name,
                     FormatDurationNs(times_ns[times_ns.size() / 2]),
                     FormatDurationNs(times_ns.back()));
}

std::string DescribeCache(const JobFigures& figures) {
  const uint64_t uses = figures.hits + figures.late_hits + figures.misses;
  if (figures.in_place) {
    return fmt::format("  experts          computed in place from the store ({} uses)\n", uses);
  }
  std::string text = fmt::format(
      "  experts          {} uses: hit {:.1f} %, late hit {:.1f} %, miss {:.1f} % ({} bypassed the "
      "cache)\n",
      uses, Share(figures.hits, uses), Share(figures.late_hits, uses), Share(figures.misses, uses),
      figures.bypasses);
  text += fmt::format("  moved            {} demanded, {} prefetched, of which {} wasted\n",
                      FormatBytes(figures.bytes_demand), FormatBytes(figures.bytes_prefetch),
                      FormatBytes(figures.bytes_wasted));
  // Without a link to emulate, the limit is the machine's memory.
  const std::string capacity =
      figures.link_bytes_per_second == 0
          ? std::string("not limited (memory)")
          : fmt::format("{}{} a worker",
                        FormatBytesPerSecond(static_cast<double>(figures.link_bytes_per_second)),
                        figures.link_emulated ? " (emulated)" : "");
  const uint64_t moved = figures.bytes_demand + figures.bytes_prefetch;
  text += fmt::format("  link             {}; busy {:.1f} % of the step time", capacity,
                      Share(figures.link_busy_ns, figures.step_ns));
  if (figures.link_busy_ns != 0) {
    const double rate =
        static_cast<double>(moved) * 1e9 / static_cast<double>(figures.link_busy_ns);
    text += fmt::format(", {} while busy", FormatBytesPerSecond(rate));
  }
  text += '\n';
  if (figures.prefetch_predictions != 0) {
    text += fmt::format("  prefetch         {:.1f} % of {} predicted experts were routed to\n",
                        Share(figures.prefetch_correct, figures.prefetch_predictions),
                        figures.prefetch_predictions);
  }
  return text;
}

// "36.9 kB", or "20.7 kB to 36.9 kB".
std::string BlockSizes(const BlockCounts& blocks) {
  if (blocks.empty()) return FormatBytes(0);
  const std::string largest = FormatBytes(blocks.rbegin()->first);
  if (blocks.size() == 1) return largest;
  return fmt::format("{} to {}", FormatBytes(blocks.begin()->first), largest);
}

// "40 slots of 36.9 kB, 120 of 20.5 kB"
std::string Slots(const MemoryPlan& plan) {
  std::string text;
  for (const SlotClass& c : plan.slot_classes) {
    text += fmt::format("{}{}{} of {}", text.empty() ? "" : ", ", c.slots,
                        text.empty() ? " slots" : "", FormatBytes(c.slot_bytes));
  }
  return text.empty() ? "0 slots" : text;
}

}  // namespace

std::string DescribeModel(const ModelSource& model) {
  const ModelShape& shape = model.architecture->shape();
  return fmt::format(
      "  model            {}, {} layers, {} with {} experts, top {}; {} ({} dense, {} experts of "
      "{} in {})\n",
      shape.architecture, shape.layers, shape.moe_layers.size(), shape.experts, shape.top_k,
      FormatBytes(model.store_bytes), FormatBytes(model.sizes.dense_bytes),
      model.sizes.expert_count(), BlockSizes(model.sizes.expert_blocks),
      DTypeNames(model.expert_dtypes));
}

std::string DescribePlan(const MemoryPlan& plan, int64_t workers) {
  std::string text =
      fmt::format("  memory           {} shared store", FormatBytes(plan.store_bytes));
  text += fmt::format("; each of {} worker{} takes {}:\n", workers, workers == 1 ? "" : "s",
                      FormatBytes(plan.total_bytes()));
  if (plan.in_place) {
    text += "    experts        in place, from the shared store\n";
  } else {
    text += fmt::format(
        "    experts        {}: {}, {:.1f} % of {} experts\n", FormatBytes(plan.expert_bytes),
        Slots(plan),
        Share(static_cast<uint64_t>(plan.expert_slots), static_cast<uint64_t>(plan.experts_total)),
        plan.experts_total);
    text += fmt::format("    dense          {}; streaming {} ({} buffers)\n",
                        FormatBytes(plan.dense_bytes), FormatBytes(plan.streaming_bytes),
                        plan.streaming_buffers);
  }
  const int64_t kv_tokens = plan.kv_blocks * kKvBlockTokens;
  text += fmt::format("    KV cache       {} for {} tokens in {}; workspace {}\n",
                      FormatBytes(plan.kv_bytes), kv_tokens, DTypeName(plan.kv_dtype),
                      FormatBytes(plan.workspace_bytes));
  if (plan.exchanges_most > 0) {
    text += fmt::format("                   up to {} tokens in memory of {} slots\n",
                        plan.kv_tokens(), plan.exchanges_most * plan.exchange.slots);
  }
  return text;
}

JobFigures FiguresOf(const std::string& status_json) {
  JobFigures figures;
  const nlohmann::json status = nlohmann::json::parse(status_json, nullptr, false);
  if (!status.is_object()) return figures;
  const auto workers = status.find("workers");
  if (workers == status.end() || !workers->is_array()) return figures;
  for (const nlohmann::json& worker : *workers) {
    if (!worker.is_object()) continue;
    if (figures.workers++ == 0) {
      figures.device = TextOf(worker, "device");
      figures.kernels = TextOf(worker, "kernels");
      figures.threads = static_cast<int64_t>(Unsigned(worker, "threads"));
      figures.in_place = Boolean(worker, "in_place");
    }
    if (const auto stats = worker.find("stats"); stats != worker.end() && stats->is_object()) {
      AddStats(*stats, &figures);
    }
  }
  figures.restarts = static_cast<int64_t>(Unsigned(status, "restarts"));
  return figures;
}

std::string DescribeRun(const Generation& generation, const JobFigures& figures, int64_t start_ns) {
  std::string text = fmt::format("  workers          {} x {} ({}), {} thread{} each\n",
                                 figures.workers, figures.device, figures.kernels, figures.threads,
                                 figures.threads == 1 ? "" : "s");
  std::vector<int64_t> ttft;
  std::vector<int64_t> tpot;
  uint32_t requeues = 0;
  for (const RequestOutcome& request : generation.requests) {
    requeues += request.done.requeues;
    if (request.done.generated_tokens > 0) ttft.push_back(request.done.ttft_ns);
    if (request.done.generated_tokens > 1) tpot.push_back(request.TpotNs());
  }
  text +=
      fmt::format("  tokens           {} prompt{}: {} tokens in, {} out in {}: {:.1f} tokens/s\n",
                  generation.requests.size(), generation.requests.size() == 1 ? "" : "s",
                  generation.prompt_tokens(), generation.generated_tokens(),
                  FormatDurationNs(generation.wall_ns), generation.tokens_per_second());
  text += fmt::format("  latency          {}; {}; job up in {}\n", DescribeTimes("TTFT", ttft),
                      DescribeTimes("TPOT", tpot), FormatDurationNs(start_ns));
  text += DescribeCache(figures);
  if (!figures.in_place) {
    text += fmt::format("  exposed stall    {}, {:.1f} % of the step time\n",
                        FormatDurationNs(static_cast<int64_t>(figures.stall_ns)),
                        Share(figures.stall_ns, figures.step_ns));
  }
  if (figures.reused_tokens + figures.preemptions > 0) {
    text += fmt::format("  KV cache         {} tokens reused, {} preemptions\n",
                        figures.reused_tokens, figures.preemptions);
  }
  if (requeues + figures.restarts > 0) {
    text += fmt::format("  faults           {} process(es) replaced, {} request(s) moved\n",
                        figures.restarts, requeues);
  }
  return text;
}

}  // namespace expertflow

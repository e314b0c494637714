#include "sim/roofline.h"

#include <algorithm>

namespace expertflow {
namespace {

// Gate, up and activation in one kernel, down, and the weighted sum.
constexpr int32_t kExpertKernels = 3;
constexpr int32_t kStepEndKernels = 3;  // norm, head, sampling

Status OutOfRange(const HardwareProfile& hardware, const char* what) {
  return InvalidArgument("hardware " + hardware.name + ": " + what + " is missing or out of range");
}

}  // namespace

Status CheckHardware(const HardwareProfile& hardware) {
  if (!(hardware.flops >= 1e9 && hardware.flops < 1e18)) return OutOfRange(hardware, "flops");
  if (!(hardware.memory_bytes_per_second >= 1e8 && hardware.memory_bytes_per_second < 1e15)) {
    return OutOfRange(hardware, "memory_bandwidth");
  }
  if (hardware.launch_ns < 0 || hardware.launch_ns > 1'000'000) {
    return OutOfRange(hardware, "launch");
  }
  if (hardware.memory_bytes < 1u << 20) return OutOfRange(hardware, "memory");
  if (hardware.link_bytes_per_second < 1'000'000) return OutOfRange(hardware, "link");
  if (hardware.link_latency_ns < 0 || hardware.link_latency_ns > 1'000'000'000) {
    return OutOfRange(hardware, "link_latency");
  }
  return OkStatus();
}

int64_t Roofline::TimeNs(double bytes, double flops, int32_t kernels) const {
  const double seconds =
      std::max(bytes / hardware_.memory_bytes_per_second, flops / hardware_.flops);
  return static_cast<int64_t>(seconds * 1e9) + kernels * hardware_.launch_ns;
}

int64_t Roofline::BeforeExpertsNs(int32_t layer, int32_t rows, int64_t context) const {
  const SimLayer& l = model_.layers[static_cast<size_t>(layer)];
  const double kv = static_cast<double>(l.kv_bytes_per_token) * static_cast<double>(context);
  return TimeNs(static_cast<double>(l.bytes) + kv, l.flops_per_row * rows, l.kernels);
}

int64_t Roofline::ExpertsNs(int32_t /*layer*/, int32_t experts, int32_t rows) const {
  return TimeNs(static_cast<double>(model_.expert_bytes) * experts,
                model_.expert_flops_per_row * rows, kExpertKernels);
}

int64_t Roofline::StepEndNs(int32_t rows) const {
  return TimeNs(static_cast<double>(model_.head_bytes), model_.head_flops_per_row * rows,
                kStepEndKernels);
}

}  // namespace expertflow

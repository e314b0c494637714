#include "model/arch/workspace.h"

#include <utility>

#include "common/check.h"

namespace expertflow {
namespace {

constexpr uint64_t kAlignment = 256;

}  // namespace

void Workspace::Add(std::string name, int64_t elements) {
  CHECK(memory_ == nullptr && elements >= 0);
  buffers_.push_back({std::move(name), bytes_});
  const uint64_t size = static_cast<uint64_t>(elements) * sizeof(float);
  bytes_ += (size + kAlignment - 1) / kAlignment * kAlignment;
}

Status Workspace::Allocate(Device& device) {
  auto memory = device.Allocate(bytes_);
  if (!memory.ok()) return memory.status().WithContext("workspace of the forward pass");
  memory_ = std::move(memory).value();
  return OkStatus();
}

void* Workspace::Find(std::string_view name) const {
  CHECK(memory_ != nullptr);
  for (const Buffer& buffer : buffers_) {
    if (buffer.name == name) return memory_->data() + buffer.offset;
  }
  CHECK(!"workspace buffer was not planned");
  return nullptr;
}

}  // namespace expertflow

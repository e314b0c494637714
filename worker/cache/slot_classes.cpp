#include "worker/cache/slot_classes.h"

#include <algorithm>

#include "common/check.h"

namespace expertflow {
namespace {

// Of slots that the smaller class's experts would take, were it joined to the larger one before it.
uint64_t WasteOfJoining(const SlotClass& larger, const SlotClass& smaller) {
  return (larger.slot_bytes - smaller.slot_bytes) * static_cast<uint64_t>(smaller.experts);
}

}  // namespace

std::vector<SlotClass> SlotClassesOf(const std::map<uint64_t, int64_t>& blocks) {
  std::vector<SlotClass> classes;
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    const auto& [bytes, experts] = *block;
    const uint64_t slot_bytes = (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
    if (!classes.empty() &&
        classes.back().slot_bytes - slot_bytes <= classes.back().slot_bytes / 16) {
      classes.back().experts += experts;
    } else {
      classes.push_back({slot_bytes, experts, 0});
    }
  }
  if (classes.empty()) classes.emplace_back();
  while (classes.size() > kSlotClassesMax) {
    size_t joined = 1;
    for (size_t c = 2; c < classes.size(); ++c) {
      if (WasteOfJoining(classes[c - 1], classes[c]) <
          WasteOfJoining(classes[joined - 1], classes[joined])) {
        joined = c;
      }
    }
    classes[joined - 1].experts += classes[joined].experts;
    classes.erase(classes.begin() + static_cast<ptrdiff_t>(joined));
  }
  return classes;
}

size_t SlotClassOf(std::span<const SlotClass> classes, uint64_t block_bytes) {
  CHECK(!classes.empty() && block_bytes <= classes.front().slot_bytes);
  size_t c = classes.size() - 1;
  while (classes[c].slot_bytes < block_bytes) --c;
  return c;
}

std::vector<uint8_t> SlotClassesOfEach(std::span<const SlotClass> classes,
                                       std::span<const uint64_t> block_bytes) {
  std::vector<uint8_t> each;
  each.reserve(block_bytes.size());
  for (const uint64_t bytes : block_bytes) {
    each.push_back(static_cast<uint8_t>(SlotClassOf(classes, bytes)));
  }
  return each;
}

std::map<uint64_t, int64_t> CountBlocks(std::span<const uint64_t> block_bytes) {
  std::map<uint64_t, int64_t> blocks;
  for (const uint64_t bytes : block_bytes) ++blocks[bytes];
  return blocks;
}

uint64_t OneSlotOfEach(std::span<const SlotClass> classes) {
  uint64_t bytes = 0;
  for (const SlotClass& c : classes) bytes += c.slot_bytes;
  return bytes;
}

void DivideAmongClasses(uint64_t bytes, std::span<SlotClass> classes) {
  CHECK(bytes >= OneSlotOfEach(classes));
  uint64_t left = bytes - OneSlotOfEach(classes);
  for (SlotClass& c : classes) c.slots = 1;
  const auto may_grow = [&](const SlotClass& c) {
    return c.slots < c.experts && c.slot_bytes <= left;
  };
  while (true) {
    SlotClass* next = nullptr;
    for (SlotClass& c : classes) {
      if (!may_grow(c)) continue;
      // The one with the lower share after it has grown.
      if (next == nullptr || (c.slots + 1) * next->experts < (next->slots + 1) * c.experts) {
        next = &c;
      }
    }
    if (next == nullptr) return;
    ++next->slots;
    left -= next->slot_bytes;
  }
}

}  // namespace expertflow

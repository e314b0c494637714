// The sizes of expert slots. A store of mixed precisions has blocks of several sizes; each distinct
// size is a class with slots of its own, and an expert takes a slot of its class and no other. So
// no slot wastes more than a class's own spread, and nothing has ever to be moved to close a gap,
// which slots of any size in one heap would need (defragmentation while copies are under way).
// Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace expertflow {

inline constexpr uint64_t kSlotAlignment = 4096;
inline constexpr size_t kSlotClassesMax = 4;

struct SlotClass {
  uint64_t slot_bytes = 0;  // the class's largest block, in whole pages
  int64_t experts = 0;      // whose blocks go into these slots
  int64_t slots = 0;
};

// Without slots so far, the largest first. Sizes within a sixteenth of the larger one are one
// class, and the closest ones beyond four. Without experts there is one class of nothing.
// `blocks`: how many experts have a block of so many bytes
std::vector<SlotClass> SlotClassesOf(const std::map<uint64_t, int64_t>& blocks);

// The class of a block: the one with the smallest slots that hold it.
// REQUIRES: block_bytes is at most the first class's slot_bytes
size_t SlotClassOf(std::span<const SlotClass> classes, uint64_t block_bytes);

// The same for each block of a list, and how many blocks there are of each size.
std::vector<uint8_t> SlotClassesOfEach(std::span<const SlotClass> classes,
                                       std::span<const uint64_t> block_bytes);
std::map<uint64_t, int64_t> CountBlocks(std::span<const uint64_t> block_bytes);

// The least memory with a slot of each class.
uint64_t OneSlotOfEach(std::span<const SlotClass> classes);

// Sets the slots to what `bytes` hold, so that all classes have about the same share of their
// experts resident, each at least one. What is left then is less than any slot that is missing.
// REQUIRES: bytes >= OneSlotOfEach(classes)
void DivideAmongClasses(uint64_t bytes, std::span<SlotClass> classes);

}  // namespace expertflow

#include "sim/eviction_heap.h"

#include "common/check.h"

namespace expertflow {

bool EvictionHeap::Before(int32_t a, int32_t b) const {
  const Key& x = key_[Index(a)];
  const Key& y = key_[Index(b)];
  if (x.first != y.first) return x.first < y.first;
  if (x.second != y.second) return x.second < y.second;
  return a < b;
}

void EvictionHeap::Place(size_t at, int32_t expert) {
  heap_[at] = expert;
  position_[Index(expert)] = static_cast<int32_t>(at);
}

void EvictionHeap::Up(size_t at, int32_t expert) {
  while (at > 0) {
    const size_t parent = (at - 1) / 2;
    if (!Before(expert, heap_[parent])) break;
    Place(at, heap_[parent]);
    at = parent;
  }
  Place(at, expert);
}

void EvictionHeap::Down(size_t at, int32_t expert) {
  while (true) {
    size_t child = 2 * at + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && Before(heap_[child + 1], heap_[child])) ++child;
    if (!Before(heap_[child], expert)) break;
    Place(at, heap_[child]);
    at = child;
  }
  Place(at, expert);
}

void EvictionHeap::Push(int32_t expert, Key key) {
  CHECK(!Contains(expert));
  key_[Index(expert)] = key;
  heap_.push_back(expert);
  Up(heap_.size() - 1, expert);
}

void EvictionHeap::Remove(int32_t expert) {
  CHECK(Contains(expert));
  const auto at = static_cast<size_t>(position_[Index(expert)]);
  position_[Index(expert)] = -1;
  const int32_t last = heap_.back();
  heap_.pop_back();
  if (last == expert) return;
  if (at > 0 && Before(last, heap_[(at - 1) / 2])) {
    Up(at, last);
  } else {
    Down(at, last);
  }
}

void EvictionHeap::Scale(double factor) {
  for (Key& key : key_) key.first *= factor;
}

bool EvictionHeap::IsConsistent() const {
  for (size_t i = 0; i < heap_.size(); ++i) {
    if (position_[Index(heap_[i])] != static_cast<int32_t>(i)) return false;
    if (i > 0 && Before(heap_[i], heap_[(i - 1) / 2])) return false;
  }
  return true;
}

}  // namespace expertflow

// A heap of resident experts, the next victim on top: lowest first key, then lowest second key,
// then lowest number. Positions are indexed, so that any member can be moved or taken out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace expertflow {

class EvictionHeap {
 public:
  struct Key {
    double first = 0;
    uint64_t second = 0;
    friend bool operator==(const Key&, const Key&) = default;
  };

  explicit EvictionHeap(size_t experts) : position_(experts, -1), key_(experts) {}

  bool empty() const { return heap_.empty(); }
  size_t size() const { return heap_.size(); }
  bool Contains(int32_t expert) const { return position_[Index(expert)] >= 0; }
  // REQUIRES: !empty()
  int32_t Top() const { return heap_[0]; }
  const Key& KeyOf(int32_t expert) const { return key_[Index(expert)]; }
  // REQUIRES: not in the heap
  void Push(int32_t expert, Key key);
  // REQUIRES: in the heap
  void Remove(int32_t expert);
  // Multiplies all first keys, in the heap or not.
  void Scale(double factor);
  bool IsConsistent() const;

 private:
  static size_t Index(int32_t expert) { return static_cast<size_t>(expert); }
  bool Before(int32_t a, int32_t b) const;
  void Place(size_t at, int32_t expert);
  void Up(size_t at, int32_t expert);
  void Down(size_t at, int32_t expert);

  std::vector<int32_t> heap_;
  std::vector<int32_t> position_;
  std::vector<Key> key_;
};

}  // namespace expertflow

#include "sim/memory_layouts.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/check.h"
#include "worker/cache/slot_classes.h"

namespace expertflow {
namespace {

// What a layout keeps: which experts are here, oldest use first, and what of it is in use now.
class ResidentExperts {
 public:
  explicit ResidentExperts(const LayoutWorkload& workload)
      : bytes_(workload.expert_bytes), at_(bytes_.size()), here_(bytes_.size()) {}
  virtual ~ResidentExperts() = default;

  // The sequence takes room for `tokens`, of `most` that it may come to. False: there is none now.
  virtual bool Admit(int32_t sequence, int64_t tokens, int64_t most) = 0;
  virtual bool Grow(int32_t sequence, int64_t tokens) = 0;
  virtual void End(int32_t sequence) = 0;
  // What has no room goes through without staying.
  virtual void Load(size_t expert) = 0;

  bool Has(size_t expert) const { return here_[expert]; }
  void Use(size_t expert) { by_use_.splice(by_use_.end(), by_use_, at_[expert]); }
  // Until the next call none of these leaves. Ascending.
  void Pin(std::vector<size_t> experts) { pinned_ = std::move(experts); }
  uint64_t bytes() const { return resident_bytes_; }
  size_t count() const { return by_use_.size(); }

 protected:
  const std::vector<size_t>& pinned() const { return pinned_; }
  uint64_t BytesOf(size_t expert) const { return bytes_[expert]; }
  void Enter(size_t expert) {
    CHECK(!here_[expert]);
    here_[expert] = true;
    at_[expert] = by_use_.insert(by_use_.end(), expert);
    resident_bytes_ += bytes_[expert];
  }
  void Leave(size_t expert) {
    CHECK(here_[expert]);
    here_[expert] = false;
    by_use_.erase(at_[expert]);
    resident_bytes_ -= bytes_[expert];
  }
  // The one that was used longest ago of those that `may` accepts; -1: none.
  template <typename May>
  int64_t Oldest(May may) const {
    for (const size_t expert : by_use_) {
      if (std::binary_search(pinned_.begin(), pinned_.end(), expert)) continue;
      if (may(expert)) return static_cast<int64_t>(expert);
    }
    return -1;
  }

 private:
  const std::vector<uint64_t>& bytes_;
  std::list<size_t> by_use_;
  std::vector<std::list<size_t>::iterator> at_;
  std::vector<bool> here_;
  std::vector<size_t> pinned_;
  uint64_t resident_bytes_ = 0;
};

// Experts that a layer may need at once stay possible whatever sequences take.
uint64_t ExpertBytesLeast(const LayoutWorkload& w) {
  return static_cast<uint64_t>(w.trace->top_k) *
         *std::max_element(w.expert_bytes.begin(), w.expert_bytes.end());
}

class Contiguous final : public ResidentExperts {
 public:
  explicit Contiguous(const LayoutWorkload& w)
      : ResidentExperts(w),
        token_bytes_(w.kv_token_bytes),
        memory_(w.memory_bytes),
        least_(ExpertBytesLeast(w)),
        place_(w.expert_bytes.size()) {
    free_.emplace(0, memory_);
  }

  bool Admit(int32_t sequence, int64_t, int64_t most) override {
    const uint64_t bytes = static_cast<uint64_t>(most) * token_bytes_;
    uint64_t end = memory_;
    for (auto kv = kv_.rbegin(); kv != kv_.rend() && end - (kv->first + kv->second.bytes) < bytes;
         ++kv) {
      end = kv->first;
    }
    if (end < least_ + bytes) return false;
    const uint64_t begin = end - bytes;
    std::vector<size_t> in_the_way;
    for (const auto& [at, expert] : experts_) {
      if (at < end && at + BytesOf(expert) > begin) in_the_way.push_back(expert);
    }
    for (const size_t expert : in_the_way) Drop(expert);
    Take(begin, bytes);
    kv_.emplace(begin, Sequence{bytes, sequence});
    return true;
  }
  bool Grow(int32_t, int64_t) override { return true; }  // it has all it may need
  void End(int32_t sequence) override {
    const auto kv = std::find_if(
        kv_.begin(), kv_.end(), [&](const auto& each) { return each.second.sequence == sequence; });
    CHECK(kv != kv_.end());
    Give(kv->first, kv->second.bytes);
    kv_.erase(kv);
  }
  void Load(size_t expert) override {
    const uint64_t bytes = BytesOf(expert);
    while (true) {
      const auto gap = std::find_if(free_.begin(), free_.end(),
                                    [&](const auto& each) { return each.second >= bytes; });
      if (gap != free_.end()) {
        place_[expert] = gap->first;
        Take(gap->first, bytes);
        experts_.emplace(place_[expert], expert);
        Enter(expert);
        return;
      }
      const int64_t oldest = Oldest([](size_t) { return true; });
      if (oldest < 0) return;
      Drop(static_cast<size_t>(oldest));
    }
  }

 private:
  struct Sequence {
    uint64_t bytes = 0;
    int32_t sequence = 0;
  };

  void Drop(size_t expert) {
    Leave(expert);
    experts_.erase(place_[expert]);
    Give(place_[expert], BytesOf(expert));
  }
  void Take(uint64_t begin, uint64_t bytes) {
    auto gap = std::prev(free_.upper_bound(begin));
    const uint64_t gap_begin = gap->first;
    const uint64_t gap_end = gap_begin + gap->second;
    CHECK(gap_begin <= begin && begin + bytes <= gap_end);
    free_.erase(gap);
    if (gap_begin < begin) free_.emplace(gap_begin, begin - gap_begin);
    if (begin + bytes < gap_end) free_.emplace(begin + bytes, gap_end - begin - bytes);
  }
  void Give(uint64_t begin, uint64_t bytes) {
    auto after = free_.lower_bound(begin);
    if (after != free_.end() && after->first == begin + bytes) {
      bytes += after->second;
      after = free_.erase(after);
    }
    if (after != free_.begin() && std::prev(after)->first + std::prev(after)->second == begin) {
      std::prev(after)->second += bytes;
    } else {
      free_.emplace(begin, bytes);
    }
  }

  const uint64_t token_bytes_;
  const uint64_t memory_;
  const uint64_t least_;
  std::map<uint64_t, uint64_t> free_;   // begin to bytes; apart from each other
  std::map<uint64_t, size_t> experts_;  // by begin
  std::vector<uint64_t> place_;         // of an expert that is here
  std::map<uint64_t, Sequence> kv_;     // by begin
};

// A class for each size, the largest first, of exactly that size: bytes add up here without pages.
std::vector<SlotClass> ExactClasses(const LayoutWorkload& w) {
  const std::map<uint64_t, int64_t> blocks = CountBlocks(w.expert_bytes);
  std::vector<SlotClass> classes;
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    classes.push_back({.slot_bytes = block->first, .experts = block->second});
  }
  return classes;
}

class Blocks final : public ResidentExperts {
 public:
  Blocks(const LayoutWorkload& w, bool sized)
      : ResidentExperts(w),
        block_tokens_(w.kv_block_tokens),
        block_bytes_(static_cast<uint64_t>(w.kv_block_tokens) * w.kv_token_bytes),
        memory_(w.memory_bytes),
        slots_least_(static_cast<size_t>(w.trace->top_k)) {
    std::vector<SlotClass> sizes = ExactClasses(w);
    if (sized) {
      DivideAmongClasses(memory_, sizes);
    } else {
      sizes.resize(1);
    }
    for (const SlotClass& size : sizes) classes_.push_back({size.slot_bytes, {}});
    // As many of the border's as are left at any time.
    for (size_t c = 0; c + 1 < sizes.size(); ++c) {
      const size_t slots = std::min(std::max(static_cast<size_t>(sizes[c].slots), slots_least_),
                                    static_cast<size_t>(sizes[c].experts));
      classes_[c].slots.assign(slots, -1);
      before_border_ += sizes[c].slot_bytes * slots;
    }
    for (size_t expert = 0; expert < w.expert_bytes.size(); ++expert) {
      class_of_.push_back(ClassOf(w.expert_bytes[expert]));
    }
    slot_of_.resize(w.expert_bytes.size());
    MoveBorder(0);
  }

  bool Admit(int32_t sequence, int64_t tokens, int64_t) override { return Grow(sequence, tokens); }
  bool Grow(int32_t sequence, int64_t tokens) override {
    const int64_t wanted = (tokens + block_tokens_ - 1) / block_tokens_;
    int64_t& blocks = blocks_of_[sequence];
    if (wanted > blocks && !MoveBorder(blocks_ + wanted - blocks)) return false;
    blocks = std::max(blocks, wanted);
    return true;
  }
  void End(int32_t sequence) override {
    const auto blocks = blocks_of_.find(sequence);
    MoveBorder(blocks_ - blocks->second);
    blocks_of_.erase(blocks);
  }
  void Load(size_t expert) override {
    SizeClass& size = classes_[class_of_[expert]];
    auto slot = std::find(size.slots.begin(), size.slots.end(), -1);
    if (slot == size.slots.end()) {
      const int64_t oldest =
          Oldest([&](size_t each) { return class_of_[each] == class_of_[expert]; });
      if (oldest < 0) return;
      slot = size.slots.begin() + static_cast<ptrdiff_t>(slot_of_[static_cast<size_t>(oldest)]);
      Leave(static_cast<size_t>(oldest));
    }
    *slot = static_cast<int64_t>(expert);
    slot_of_[expert] = static_cast<size_t>(slot - size.slots.begin());
    Enter(expert);
  }

 private:
  struct SizeClass {
    uint64_t slot_bytes = 0;
    std::vector<int64_t> slots;  // expert in it; -1: none
  };

  size_t ClassOf(uint64_t bytes) const {
    const auto fits = std::find_if(classes_.begin(), classes_.end(), [&](const SizeClass& each) {
      return classes_.size() == 1 || each.slot_bytes == bytes;
    });
    return static_cast<size_t>(fits - classes_.begin());
  }
  // Between (step, layer)s: what is pinned then is nothing that is still needed.
  bool MoveBorder(int64_t blocks) {
    SizeClass& last = classes_.back();
    const uint64_t taken = before_border_ + static_cast<uint64_t>(blocks) * block_bytes_;
    const uint64_t slots = taken > memory_ ? 0 : (memory_ - taken) / last.slot_bytes;
    if (slots < slots_least_ && blocks > blocks_) return false;
    for (; last.slots.size() > slots; last.slots.pop_back()) {
      if (last.slots.back() >= 0) Leave(static_cast<size_t>(last.slots.back()));
    }
    last.slots.resize(slots, -1);
    blocks_ = blocks;
    return true;
  }

  const int64_t block_tokens_;
  const uint64_t block_bytes_;
  const uint64_t memory_;
  const size_t slots_least_;
  uint64_t before_border_ = 0;      // slots that do not move
  std::vector<SizeClass> classes_;  // the last one lies at the border
  std::vector<size_t> class_of_;    // by expert
  std::vector<size_t> slot_of_;     // of an expert that is here
  int64_t blocks_ = 0;
  std::map<int32_t, int64_t> blocks_of_;  // by sequence
};

class Study {
 public:
  Study(const LayoutWorkload& workload, ResidentExperts* memory)
      : w_(workload), memory_(memory), base_{0} {
    for (const int32_t count : w_.trace->experts) {
      base_.push_back(base_.back() + static_cast<size_t>(count));
    }
  }

  Result<LayoutResult> Run() {
    int64_t step = 0;
    size_t next = 0;
    while (next < w_.requests.size() || !waiting_.empty() || !running_.empty()) {
      if (running_.empty() && waiting_.empty()) step = std::max(step, w_.requests[next].step);
      for (; next < w_.requests.size() && w_.requests[next].step <= step; ++next) {
        waiting_.push_back(
            {.request = static_cast<int32_t>(next), .tokens = w_.requests[next].prompt_tokens});
      }
      RETURN_IF_ERROR(Admit());
      RETURN_IF_ERROR(Grow());
      UseExperts();
      Count();
      Advance();
      ++step;
    }
    const auto steps = static_cast<double>(result_.steps);
    result_.unused /= steps;
    result_.experts /= steps;
    result_.running /= steps;
    return result_;
  }

 private:
  struct Sequence {
    int32_t request = 0;
    int64_t tokens = 0;  // that have or get keys and values
    size_t row = 0;      // of its routing
  };

  const LayoutRequest& RequestOf(const Sequence& sequence) const {
    return w_.requests[static_cast<size_t>(sequence.request)];
  }
  Status TooLarge(const Sequence& sequence) const {
    return InvalidArgument("request " + std::to_string(sequence.request) + " of " +
                           std::to_string(RequestOf(sequence).prompt_tokens) + " + " +
                           std::to_string(RequestOf(sequence).new_tokens) +
                           " tokens does not fit the memory beside a layer's experts");
  }

  Status Admit() {
    while (!waiting_.empty() && running_.size() < static_cast<size_t>(w_.sequences_max)) {
      const Sequence& first = waiting_.front();
      const LayoutRequest& request = RequestOf(first);
      if (!memory_->Admit(first.request, first.tokens,
                          int64_t{request.prompt_tokens} + request.new_tokens)) {
        if (running_.empty()) return TooLarge(first);
        break;
      }
      running_.push_back(first);
      waiting_.pop_front();
    }
    result_.steps_waited += static_cast<int64_t>(waiting_.size());
    return OkStatus();
  }
  // A token more for each; where there is no room, the youngest gives its own back.
  Status Grow() {
    for (size_t i = 0; i < running_.size();) {
      if (memory_->Grow(running_[i].request, running_[i].tokens + 1)) {
        ++i;
        continue;
      }
      if (running_.size() == 1) return TooLarge(running_[0]);
      memory_->End(running_.back().request);
      waiting_.push_front(running_.back());
      running_.pop_back();
      ++result_.preemptions;
    }
    return OkStatus();
  }
  void UseExperts() {
    const RoutingTrace& trace = *w_.trace;
    for (int32_t layer = 0; layer < trace.layers(); ++layer) {
      std::vector<size_t> demand;
      for (const Sequence& sequence : running_) {
        const RoutedSequence& routed =
            trace.sequences[static_cast<size_t>(sequence.request) % trace.sequences.size()];
        for (const uint16_t chosen :
             trace.ChosenAt(routed.first + sequence.row % routed.rows, layer)) {
          demand.push_back(base_[static_cast<size_t>(layer)] + chosen);
        }
      }
      std::sort(demand.begin(), demand.end());
      demand.erase(std::unique(demand.begin(), demand.end()), demand.end());
      memory_->Pin(demand);
      for (const size_t expert : demand) {
        ++result_.uses;
        if (memory_->Has(expert)) {
          memory_->Use(expert);
          continue;
        }
        ++result_.misses;
        result_.bytes_loaded += w_.expert_bytes[expert];
        memory_->Load(expert);
      }
    }
    memory_->Pin({});
  }
  void Count() {
    int64_t tokens = 0;
    for (const Sequence& sequence : running_) tokens += sequence.tokens + 1;
    const uint64_t held = memory_->bytes() + static_cast<uint64_t>(tokens) * w_.kv_token_bytes;
    CHECK(held <= w_.memory_bytes);
    ++result_.steps;
    result_.unused += 1 - static_cast<double>(held) / static_cast<double>(w_.memory_bytes);
    result_.experts += static_cast<double>(memory_->count());
    result_.running += static_cast<double>(running_.size());
  }
  void Advance() {
    for (Sequence& sequence : running_) {
      ++sequence.tokens;
      ++sequence.row;
    }
    const auto done = [&](const Sequence& sequence) {
      const LayoutRequest& request = RequestOf(sequence);
      return sequence.tokens >= int64_t{request.prompt_tokens} + request.new_tokens;
    };
    for (const Sequence& sequence : running_) {
      if (done(sequence)) memory_->End(sequence.request);
    }
    running_.erase(std::remove_if(running_.begin(), running_.end(), done), running_.end());
  }

  const LayoutWorkload& w_;
  ResidentExperts* memory_;
  std::vector<size_t> base_;  // first expert of a layer
  std::deque<Sequence> waiting_;
  std::vector<Sequence> running_;  // in the order of admission
  LayoutResult result_;
};

}  // namespace

std::string_view MemoryLayoutName(MemoryLayout layout) {
  switch (layout) {
    case MemoryLayout::kContiguous: return "contiguous";
    case MemoryLayout::kBlocks: return "blocks";
    case MemoryLayout::kSizedBlocks: return "blocks, slots of several sizes";
  }
  return "";
}

Result<LayoutResult> SimulateLayout(const LayoutWorkload& workload, MemoryLayout layout) {
  if (workload.memory_bytes < ExpertBytesLeast(workload)) {
    return InvalidArgument("the memory of " + std::to_string(workload.memory_bytes) +
                           " bytes does not hold the experts of one token's layer");
  }
  if (layout == MemoryLayout::kSizedBlocks &&
      workload.memory_bytes < OneSlotOfEach(ExactClasses(workload))) {
    return InvalidArgument("the memory of " + std::to_string(workload.memory_bytes) +
                           " bytes does not hold a slot of each size of experts");
  }
  std::unique_ptr<ResidentExperts> memory;
  if (layout == MemoryLayout::kContiguous) {
    memory = std::make_unique<Contiguous>(workload);
  } else {
    memory = std::make_unique<Blocks>(workload, layout == MemoryLayout::kSizedBlocks);
  }
  return Study(workload, memory.get()).Run();
}

}  // namespace expertflow

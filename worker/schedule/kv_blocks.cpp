#include "worker/schedule/kv_blocks.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace expertflow {

KvBlocks::KvBlocks(int64_t count, bool reuse) : reuse_(reuse) {
  Grow(count);
}

void KvBlocks::Grow(int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    empty_.insert(empty_.end(), static_cast<int32_t>(blocks_.size()));
    blocks_.emplace_back().node = tree_.end();
  }
}

bool KvBlocks::Shrink(int64_t count) {
  CHECK(count >= 0 && count <= total());
  const auto first = static_cast<size_t>(total() - count);
  for (size_t block = first; block < blocks_.size(); ++block) {
    if (blocks_[block].holders > 0) return false;
  }
  for (size_t block = first; block < blocks_.size(); ++block) {
    if (blocks_[block].node != tree_.end()) Forget(static_cast<int32_t>(block));
  }
  empty_.erase(empty_.lower_bound(static_cast<int32_t>(first)), empty_.end());
  blocks_.resize(first);
  return true;
}

void KvBlocks::Forget(int32_t block) {
  std::vector<int32_t> forgotten = {block};
  for (size_t i = 0; i < forgotten.size(); ++i) {
    auto after = tree_.lower_bound(KeyOf(forgotten[i], {}));
    for (; after != tree_.end() && after->first.parent == forgotten[i]; ++after) {
      forgotten.push_back(after->second);
    }
  }
  for (const int32_t number : forgotten) {
    Block& known = blocks_[static_cast<size_t>(number)];
    CHECK(known.holders == 0);
    unheld_.erase(known.given_up);
    tree_.erase(known.node);
    known.node = tree_.end();
    empty_.insert(number);
  }
}

KvBlocks::Key KvBlocks::KeyOf(int32_t parent, std::span<const int32_t> tokens) {
  Key key;
  key.parent = parent;
  key.tokens.fill(-1);
  const size_t count = std::min<size_t>(tokens.size(), kKvBlockTokens);
  std::copy_n(tokens.begin(), count, key.tokens.begin());
  return key;
}

KvBlocks::Key KvBlocks::NextKey(const KvTable& table, std::span<const int32_t> tokens) const {
  const auto known = static_cast<size_t>(table.known);
  return KeyOf(known == 0 ? -1 : table.blocks[known - 1], tokens.subspan(known * kKvBlockTokens));
}

int32_t KvBlocks::Take() {
  int32_t block = -1;
  if (!empty_.empty()) {
    block = *empty_.begin();
    empty_.erase(empty_.begin());
  } else if (!unheld_.empty()) {
    // Blocks after it were given up before it was, so none of them is left.
    block = unheld_.begin()->second;
    unheld_.erase(unheld_.begin());
    Block& taken = blocks_[static_cast<size_t>(block)];
    tree_.erase(taken.node);
    taken.node = tree_.end();
  } else {
    return -1;
  }
  blocks_[static_cast<size_t>(block)].holders = 1;
  return block;
}

void KvBlocks::Hold(int32_t block) {
  Block& held = blocks_[static_cast<size_t>(block)];
  if (held.holders++ == 0) unheld_.erase(held.given_up);
}

void KvBlocks::Drop(int32_t block) {
  Block& dropped = blocks_[static_cast<size_t>(block)];
  CHECK(dropped.holders > 0);
  if (--dropped.holders > 0) return;
  if (dropped.node == tree_.end()) {
    empty_.insert(block);
  } else {
    dropped.given_up = ++clock_;
    unheld_.emplace(dropped.given_up, block);
  }
}

void KvBlocks::Append(KvTable* table, int32_t block) {
  const auto at = static_cast<size_t>(table->known++);
  if (at < table->blocks.size()) {
    Drop(std::exchange(table->blocks[at], block));
  } else {
    table->blocks.push_back(block);
  }
}

KvBlocks::Reused KvBlocks::Reuse(KvTable* table, std::span<const int32_t> tokens, int64_t limit) {
  Reused reused;
  limit = std::min(limit, static_cast<int64_t>(tokens.size()));
  while (int64_t{table->known + 1} * kKvBlockTokens <= limit) {
    const auto found = tree_.find(NextKey(*table, tokens));
    if (found == tree_.end()) break;
    Hold(found->second);
    Append(table, found->second);
  }
  reused.tokens = int64_t{table->known} * kKvBlockTokens;
  ReuseBeginning(table, tokens, limit, &reused);
  return reused;
}

void KvBlocks::ReuseBeginning(KvTable* table, std::span<const int32_t> tokens, int64_t limit,
                              Reused* reused) {
  if (limit <= reused->tokens) return;
  const auto [block, alike] = MostAlike(NextKey(*table, tokens));
  const auto copied = static_cast<int32_t>(std::min<int64_t>(alike, limit - reused->tokens));
  if (copied == 0) return;
  Hold(block);  // so that it is not the one whose place is taken
  const bool has_room = Reserve(table, int64_t{table->known} + 1);
  Drop(block);
  if (!has_room) return;
  reused->tokens += copied;
  reused->copied = copied;
  reused->copy_from = block;
  reused->copy_to = table->blocks[static_cast<size_t>(table->known)];
}

std::pair<int32_t, int32_t> KvBlocks::MostAlike(const Key& key) const {
  std::pair<int32_t, int32_t> best = {-1, 0};
  const auto consider = [&](const Tree::value_type& node) {
    if (node.first.parent != key.parent) return;
    int32_t alike = 0;
    while (alike < kKvBlockTokens && key.tokens[static_cast<size_t>(alike)] >= 0 &&
           node.first.tokens[static_cast<size_t>(alike)] ==
               key.tokens[static_cast<size_t>(alike)]) {
      ++alike;
    }
    if (alike > best.second) best = {node.second, alike};
  };
  // In the order of their tokens the one that agrees for longest is a neighbour.
  const auto after = tree_.lower_bound(key);
  if (after != tree_.end()) consider(*after);
  if (after != tree_.begin()) consider(*std::prev(after));
  return best;
}

int64_t KvBlocks::CountHeld(std::span<const int32_t> tokens, int64_t limit) const {
  int64_t count = 0;
  limit = std::min(limit, static_cast<int64_t>(tokens.size()));
  int32_t parent = -1;
  while ((count + 1) * kKvBlockTokens <= limit) {
    const auto found =
        tree_.find(KeyOf(parent, tokens.subspan(static_cast<size_t>(count) * kKvBlockTokens)));
    if (found == tree_.end()) break;
    if (blocks_[static_cast<size_t>(found->second)].holders == 0) break;
    parent = found->second;
    ++count;
  }
  return count;
}

bool KvBlocks::Reserve(KvTable* table, int64_t count) {
  const int64_t missing = count - static_cast<int64_t>(table->blocks.size());
  if (missing > available()) return false;
  for (int64_t i = 0; i < missing; ++i) table->blocks.push_back(Take());
  return true;
}

void KvBlocks::Computed(KvTable* table, std::span<const int32_t> tokens, int64_t computed) {
  if (!reuse_) return;
  while (int64_t{table->known + 1} * kKvBlockTokens <= computed) {
    const int32_t block = table->blocks[static_cast<size_t>(table->known)];
    const auto [node, is_new] = tree_.try_emplace(NextKey(*table, tokens), block);
    if (is_new) {
      blocks_[static_cast<size_t>(block)].node = node;
      ++table->known;
    } else {
      Hold(node->second);
      Append(table, node->second);
    }
  }
}

void KvBlocks::Release(KvTable* table) {
  for (auto block = table->blocks.rbegin(); block != table->blocks.rend(); ++block) Drop(*block);
  *table = {};
}

Status KvBlocks::CheckInvariants(std::span<const KvTable* const> tables) const {
  std::vector<int32_t> holders(blocks_.size());
  for (const KvTable* table : tables) {
    if (table->known > static_cast<int32_t>(table->blocks.size())) {
      return Internal("a table knows more blocks than it has");
    }
    for (const int32_t block : table->blocks) ++holders[static_cast<size_t>(block)];
  }
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    if (block.holders != holders[i]) return Internal("a block's holders are counted wrong");
    const bool known = block.node != tree_.end();
    const auto number = static_cast<int32_t>(i);
    if (known && block.node->second != number) return Internal("the tree has another block");
    const bool unheld = block.holders == 0 && known;
    const auto kept = unheld_.find(block.given_up);
    if (unheld && (kept == unheld_.end() || kept->second != number)) {
      return Internal("a block that was given up is not found");
    }
    if (empty_.contains(number) != (block.holders == 0 && !known)) {
      return Internal("a block is empty, or is not, and the list says otherwise");
    }
  }
  for (const auto& [key, number] : tree_) {
    if (key.parent < 0) continue;
    const Block& parent = blocks_[static_cast<size_t>(key.parent)];
    if (parent.node == tree_.end()) return Internal("a known block comes after one that is not");
    if (blocks_[static_cast<size_t>(number)].holders > parent.holders) {
      return Internal("a block has more holders than the one before it");
    }
  }
  return OkStatus();
}

}  // namespace expertflow

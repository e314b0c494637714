#include "model/grammar/token_masks.h"

#include <algorithm>
#include <utility>

namespace expertflow {

Result<std::shared_ptr<const TokenOrder>> TokenOrder::Create(std::string bytes,
                                                             std::span<const uint32_t> sizes) {
  auto order = std::make_shared<TokenOrder>();
  uint64_t end = 0;
  order->begins_.reserve(sizes.size() + 1);
  for (const uint32_t size : sizes) {
    order->begins_.push_back(static_cast<uint32_t>(end));
    end += size;
    if (end > bytes.size()) return InvalidArgument("tokens have more bytes than were given");
  }
  if (end != bytes.size()) return InvalidArgument("tokens have fewer bytes than were given");
  order->begins_.push_back(static_cast<uint32_t>(end));
  order->bytes_ = std::move(bytes);
  for (size_t id = 0; id < sizes.size(); ++id) {
    if (sizes[id] == 0) continue;
    order->tokens_.push_back({static_cast<int32_t>(id), order->begins_[id], sizes[id], 0});
  }
  std::sort(order->tokens_.begin(), order->tokens_.end(), [&](const Token& a, const Token& b) {
    return std::pair(order->BytesOf(a), a.id) < std::pair(order->BytesOf(b), b.id);
  });
  for (size_t i = 1; i < order->tokens_.size(); ++i) {
    const std::string_view before = order->BytesOf(order->tokens_[i - 1]);
    const std::string_view bytes_of = order->BytesOf(order->tokens_[i]);
    const auto differs =
        std::mismatch(before.begin(), before.end(), bytes_of.begin(), bytes_of.end());
    order->tokens_[i].shared = static_cast<uint32_t>(differs.first - before.begin());
  }
  return std::shared_ptr<const TokenOrder>(std::move(order));
}

std::string_view TokenOrder::BytesOf(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= vocab()) return {};
  const auto index = static_cast<size_t>(id);
  return std::string_view(bytes_).substr(begins_[index], begins_[index + 1] - begins_[index]);
}

TokenMasks::StateId TokenMasks::Advance(StateId state, int32_t token) {
  const std::string_view bytes = tokens_->BytesOf(token);
  if (bytes.empty()) return GrammarAutomaton::kDead;
  for (const char c : bytes) {
    state = automaton_.Advance(state, static_cast<uint8_t>(c));
    if (state == GrammarAutomaton::kDead) break;
  }
  return state;
}

std::span<const uint64_t> TokenMasks::Allowed(StateId state) {
  if (const auto known = masks_.find(state); known != masks_.end()) return known->second;
  if (masks_.size() >= kMasksMax) masks_.clear();
  std::vector<uint64_t>& mask = masks_[state];
  mask.assign((tokens_->vocab() + 63) / 64, 0);
  // path[n]: the state after n bytes of the token, as far as that is allowed.
  std::vector<StateId> path = {state};
  for (const TokenOrder::Token& token : tokens_->tokens()) {
    if (token.shared >= path.size()) continue;  // it begins like the last one that was refused
    path.resize(token.shared + 1);
    const std::string_view bytes = tokens_->BytesOf(token);
    while (path.size() <= bytes.size()) {
      const auto byte = static_cast<uint8_t>(bytes[path.size() - 1]);
      const StateId next = automaton_.Advance(path.back(), byte);
      if (next == GrammarAutomaton::kDead) break;
      path.push_back(next);
    }
    if (path.size() > bytes.size()) {
      mask[static_cast<size_t>(token.id) / 64] |= uint64_t{1} << (token.id % 64);
    }
  }
  return mask;
}

}  // namespace expertflow

#include "model/grammar/grammar.h"

namespace expertflow {

ByteSet BytesOf(std::string_view bytes) {
  ByteSet set;
  for (const char c : bytes) set.set(static_cast<unsigned char>(c));
  return set;
}

ByteSet ByteRange(unsigned first, unsigned last) {
  ByteSet set;
  for (unsigned byte = first; byte <= last; ++byte) set.set(byte);
  return set;
}

Grammar::NodeId Grammar::Add(const Node& node) {
  if (nodes_.size() >= kNodesMax) {
    full_ = true;
    return 0;
  }
  nodes_.push_back(node);
  return static_cast<NodeId>(nodes_.size() - 1);
}

Grammar::NodeId Grammar::Byte(const ByteSet& set, NodeId next) {
  const auto [found, is_new] = set_ids_.emplace(set, static_cast<int32_t>(sets_.size()));
  if (is_new) sets_.push_back(set);
  return Add({Kind::kByte, found->second, next, kNone});
}

Grammar::NodeId Grammar::Text(std::string_view text, NodeId next) {
  for (size_t i = text.size(); i-- > 0;) next = Byte(BytesOf(text.substr(i, 1)), next);
  return next;
}

Grammar::NodeId Grammar::Either(NodeId a, NodeId b) {
  return Add({Kind::kEither, kNone, a, b});
}

Grammar::NodeId Grammar::Call(NodeId rule, NodeId next) {
  return Add({Kind::kCall, kNone, next, rule});
}

Grammar::NodeId Grammar::Return() {
  return Add({Kind::kReturn, kNone, kNone, kNone});
}

Grammar::NodeId Grammar::Placeholder() {
  return Add({Kind::kEither, kNone, kNone, kNone});
}

void Grammar::SetEither(NodeId placeholder, NodeId a, NodeId b) {
  nodes_[static_cast<size_t>(placeholder)].next = a;
  nodes_[static_cast<size_t>(placeholder)].other = b;
}

Status Grammar::CheckRecursion() const {
  // A depth-first search over the steps that consume nothing; a node that is met again on the way
  // down closes an endless loop.
  enum : uint8_t { kNew, kOpen, kDone };
  std::vector<uint8_t> seen(nodes_.size(), kNew);
  std::vector<std::pair<NodeId, int>> path;
  for (size_t start = 0; start < nodes_.size(); ++start) {
    if (seen[start] != kNew) continue;
    path.emplace_back(static_cast<NodeId>(start), 0);
    seen[start] = kOpen;
    while (!path.empty()) {
      auto& [id, step] = path.back();
      const Node& at = node(id);
      NodeId next = kNone;
      if (at.kind == Kind::kEither && step < 2) next = step == 0 ? at.next : at.other;
      if (at.kind == Kind::kCall && step == 0) next = at.other;
      if (++step > 2 || next == kNone) {
        seen[static_cast<size_t>(id)] = kDone;
        path.pop_back();
        continue;
      }
      if (seen[static_cast<size_t>(next)] == kOpen) {
        return InvalidArgument("a reference leads to itself without anything in between");
      }
      if (seen[static_cast<size_t>(next)] == kNew) {
        seen[static_cast<size_t>(next)] = kOpen;
        path.emplace_back(next, 0);
      }
    }
  }
  return OkStatus();
}

}  // namespace expertflow

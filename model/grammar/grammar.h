// What a constrained text may be: a set of texts given by alternatives of (prefix, JSON schema,
// suffix), as a network over bytes. Immutable after parsing; any thread.
//
// The folder: grammar (the network), json_grammar (JSON values), schema_grammar (JSON schemas),
// grammar_automaton (which byte may come next), token_masks (which token may come next).
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/status.h"

namespace expertflow {

using ByteSet = std::bitset<256>;

// A recursive transition network. A rule is called and returned from; nothing in it is empty, so
// that each call consumes a byte and left recursion is the only endless loop; Check() finds that.
class Grammar {
 public:
  using NodeId = int32_t;
  static constexpr NodeId kNone = -1;
  static constexpr size_t kNodesMax = 200'000;

  enum class Kind : uint8_t {
    kByte,    // one byte of `set`, then `next`
    kEither,  // `next` or `other`
    kCall,    // the rule that begins at `other`, then `next`
    kReturn,  // the end of a rule
  };
  struct Node {
    Kind kind = Kind::kReturn;
    int32_t set = kNone;  // in sets()
    NodeId next = kNone;
    NodeId other = kNone;
  };

  const Node& node(NodeId id) const { return nodes_[static_cast<size_t>(id)]; }
  const ByteSet& set(int32_t id) const { return sets_[static_cast<size_t>(id)]; }
  NodeId root() const { return root_; }
  size_t nodes() const { return nodes_.size(); }

  // Building goes from a text's end to its beginning: each takes what follows and returns where it
  // begins. A network beyond kNodesMax is cut off; full() tells.
  NodeId Byte(const ByteSet& set, NodeId next);
  NodeId Text(std::string_view text, NodeId next);
  NodeId Either(NodeId a, NodeId b);
  NodeId Call(NodeId rule, NodeId next);
  NodeId Return();
  // A node that SetEither() completes: for loops and for rules that call themselves.
  NodeId Placeholder();
  void SetEither(NodeId placeholder, NodeId a, NodeId b);
  void SetRoot(NodeId root) { root_ = root; }
  bool full() const { return full_; }

  // kInvalidArgument when a rule can call itself before it has consumed a byte.
  Status CheckRecursion() const;

 private:
  NodeId Add(const Node& node);

  std::vector<Node> nodes_;
  std::vector<ByteSet> sets_;
  std::unordered_map<ByteSet, int32_t> set_ids_;
  NodeId root_ = kNone;
  bool full_ = false;
};

ByteSet BytesOf(std::string_view bytes);
ByteSet ByteRange(unsigned first, unsigned last);

}  // namespace expertflow

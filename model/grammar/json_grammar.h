// The texts of JSON values as rules of a grammar. Space between the parts of a value is nothing,
// one space, or a line break and up to 20 spaces; numbers have up to 16 digits before and after the
// point and two in the exponent. Strings are well-formed UTF-8.
#pragma once

#include <cstdint>
#include <optional>

#include "model/grammar/grammar.h"

namespace expertflow {

class JsonGrammar {
 public:
  using NodeId = Grammar::NodeId;

  // REQUIRES: `grammar` outlives it
  explicit JsonGrammar(Grammar* grammar);

  // Each is what begins there and then goes on with `next`.
  NodeId Space(NodeId next) { return grammar_.Either(next, grammar_.Call(space_, next)); }
  // `max` none: any length from `min` on, in characters.
  NodeId String(uint32_t min, std::optional<uint32_t> max, NodeId next);
  NodeId Integer(NodeId next) { return grammar_.Call(integer_, next); }
  NodeId Number(NodeId next) { return grammar_.Call(number_, next); }
  NodeId Value(NodeId next) { return grammar_.Call(value_, next); }
  NodeId Object(NodeId next) { return grammar_.Call(object_, next); }
  NodeId Array(NodeId next) { return grammar_.Call(array_, next); }
  // An object with any names and with values that begin at rule `value`.
  NodeId Map(NodeId value_rule, NodeId next);
  // `first` onwards, each item a rule; between `min` and `max` items.
  NodeId List(NodeId item_rule, uint32_t min, std::optional<uint32_t> max, NodeId next);

 private:
  NodeId Digits(int max, NodeId next);
  NodeId Character();
  NodeId IntegerPart(NodeId next);

  Grammar& grammar_;
  NodeId space_;
  NodeId character_;
  NodeId integer_;
  NodeId number_;
  NodeId value_;
  NodeId object_;
  NodeId array_;
};

}  // namespace expertflow

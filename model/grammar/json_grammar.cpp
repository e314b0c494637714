#include "model/grammar/json_grammar.h"

namespace expertflow {
namespace {

constexpr int kIndentMax = 20;
constexpr int kDigitsMax = 16;
constexpr int kExponentDigitsMax = 2;

ByteSet Digit() {
  return ByteRange('0', '9');
}

ByteSet HexDigit() {
  return Digit() | ByteRange('a', 'f') | ByteRange('A', 'F');
}

}  // namespace

JsonGrammar::JsonGrammar(Grammar* grammar) : grammar_(*grammar) {
  NodeId indent = grammar_.Return();
  for (int i = 0; i < kIndentMax; ++i) {
    indent = grammar_.Either(grammar_.Return(), grammar_.Text(" ", indent));
  }
  space_ = grammar_.Either(grammar_.Text(" ", grammar_.Return()), grammar_.Text("\n", indent));
  character_ = Character();
  integer_ = IntegerPart(grammar_.Return());

  NodeId exponent = Digits(kExponentDigitsMax, grammar_.Return());
  exponent = grammar_.Either(exponent, grammar_.Byte(BytesOf("+-"), exponent));
  exponent = grammar_.Either(grammar_.Return(), grammar_.Byte(BytesOf("eE"), exponent));
  const NodeId fraction = grammar_.Text(".", Digits(kDigitsMax, exponent));
  number_ = IntegerPart(grammar_.Either(exponent, fraction));

  value_ = grammar_.Placeholder();
  object_ = Map(value_, grammar_.Return());
  array_ = List(value_, 0, std::nullopt, grammar_.Return());
  NodeId rest = grammar_.Either(object_, array_);
  rest = grammar_.Either(rest, grammar_.Call(number_, grammar_.Return()));
  for (const char* word : {"true", "false", "null"}) {
    rest = grammar_.Either(rest, grammar_.Text(word, grammar_.Return()));
  }
  grammar_.SetEither(value_, rest, String(0, std::nullopt, grammar_.Return()));
}

JsonGrammar::NodeId JsonGrammar::Digits(int max, NodeId next) {
  NodeId at = grammar_.Byte(Digit(), next);
  for (int i = 1; i < max; ++i) at = grammar_.Byte(Digit(), grammar_.Either(next, at));
  return at;
}

JsonGrammar::NodeId JsonGrammar::IntegerPart(NodeId next) {
  NodeId more = next;
  for (int i = 1; i < kDigitsMax; ++i) {
    more = grammar_.Either(next, grammar_.Byte(Digit(), more));
  }
  const NodeId digits =
      grammar_.Either(grammar_.Text("0", next), grammar_.Byte(ByteRange('1', '9'), more));
  return grammar_.Either(digits, grammar_.Text("-", digits));
}

// Unicode 15, table 3-7: well-formed UTF-8. Escapes of half a surrogate pair are no characters.
JsonGrammar::NodeId JsonGrammar::Character() {
  const NodeId end = grammar_.Return();
  const auto tail = [this](NodeId next) { return grammar_.Byte(ByteRange(0x80, 0xBF), next); };
  const NodeId one = tail(end);
  const NodeId two = tail(one);
  const NodeId three = tail(two);
  NodeId any = grammar_.Byte(ByteRange(0x20, 0x7F) & ~BytesOf("\"\\"), end);
  const auto add = [&](const ByteSet& first, NodeId next) {
    any = grammar_.Either(any, grammar_.Byte(first, next));
  };
  add(ByteRange(0xC2, 0xDF), one);
  add(ByteRange(0xE0, 0xE0), grammar_.Byte(ByteRange(0xA0, 0xBF), one));
  add(ByteRange(0xE1, 0xEC) | ByteRange(0xEE, 0xEF), two);
  add(ByteRange(0xED, 0xED), grammar_.Byte(ByteRange(0x80, 0x9F), one));
  add(ByteRange(0xF0, 0xF0), grammar_.Byte(ByteRange(0x90, 0xBF), two));
  add(ByteRange(0xF1, 0xF3), three);
  add(ByteRange(0xF4, 0xF4), grammar_.Byte(ByteRange(0x80, 0x8F), two));

  const NodeId hex = grammar_.Byte(HexDigit(), grammar_.Byte(HexDigit(), end));
  const NodeId unicode =
      grammar_.Either(grammar_.Byte(HexDigit() & ~BytesOf("dD"), grammar_.Byte(HexDigit(), hex)),
                      grammar_.Byte(BytesOf("dD"), grammar_.Byte(ByteRange('0', '7'), hex)));
  const NodeId escape =
      grammar_.Either(grammar_.Byte(BytesOf("\"\\/bfnrt"), end), grammar_.Text("u", unicode));
  return grammar_.Either(any, grammar_.Text("\\", escape));
}

JsonGrammar::NodeId JsonGrammar::String(uint32_t min, std::optional<uint32_t> max, NodeId next) {
  const NodeId close = grammar_.Text("\"", next);
  NodeId at = close;
  if (max) {
    for (uint32_t i = min; i < *max; ++i) {
      at = grammar_.Either(close, grammar_.Call(character_, at));
    }
  } else {
    at = grammar_.Placeholder();
    grammar_.SetEither(at, close, grammar_.Call(character_, at));
  }
  for (uint32_t i = 0; i < min; ++i) at = grammar_.Call(character_, at);
  return grammar_.Text("\"", at);
}

JsonGrammar::NodeId JsonGrammar::Map(NodeId value_rule, NodeId next) {
  const NodeId close = Space(grammar_.Text("}", next));
  const NodeId more = grammar_.Placeholder();
  const NodeId member =
      String(0, std::nullopt, grammar_.Text(":", Space(grammar_.Call(value_rule, more))));
  grammar_.SetEither(more, close, grammar_.Text(",", Space(member)));
  return grammar_.Text("{", grammar_.Either(close, Space(member)));
}

JsonGrammar::NodeId JsonGrammar::List(NodeId item_rule, uint32_t min, std::optional<uint32_t> max,
                                      NodeId next) {
  const NodeId close = Space(grammar_.Text("]", next));
  if (max == 0U) return grammar_.Text("[", close);
  // After some item: `more` when further ones are allowed or needed.
  NodeId after = close;
  if (max) {
    for (uint32_t i = std::max<uint32_t>(min, 1); i < *max; ++i) {
      after = grammar_.Either(close, grammar_.Text(",", Space(grammar_.Call(item_rule, after))));
    }
  } else {
    after = grammar_.Placeholder();
    grammar_.SetEither(after, close, grammar_.Text(",", Space(grammar_.Call(item_rule, after))));
  }
  for (uint32_t i = 1; i < min; ++i) {
    after = grammar_.Text(",", Space(grammar_.Call(item_rule, after)));
  }
  const NodeId first = Space(grammar_.Call(item_rule, after));
  return grammar_.Text("[", min == 0 ? grammar_.Either(close, first) : first);
}

}  // namespace expertflow

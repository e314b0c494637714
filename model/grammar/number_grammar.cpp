#include "model/grammar/number_grammar.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <string>
#include <tuple>

namespace expertflow {
namespace {

using NodeId = Grammar::NodeId;

constexpr size_t kFractionDigitsMax = 16;
constexpr double kMost = 999'999'999'999'999.0;

// A bound of the magnitude: its digits before and after the point.
struct Bound {
  std::string whole;     // without zeros at its beginning, but at least one digit
  std::string fraction;  // without zeros at its end
  bool exclusive = false;

  char FractionDigit(size_t place) const { return place < fraction.size() ? fraction[place] : '0'; }
};

Bound BoundOf(double magnitude, bool exclusive) {
  // The shortest digits that mean this number.
  std::array<char, 400> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), magnitude,
                                 std::chars_format::fixed);
  const std::string text(buffer.data(), end.ptr);
  const size_t point = text.find('.');
  if (point == std::string::npos) return {text, "", exclusive};
  return {text.substr(0, point), text.substr(point + 1), exclusive};
}

// Magnitudes from `low` to `high`. While all digits so far are those of a bound, the next one is
// bounded, too ("tight").
class Magnitudes {
 public:
  Magnitudes(const Bound& low, const Bound& high, bool integer, Grammar* grammar, NodeId next)
      : low_(low), high_(high), integer_(integer), grammar_(*grammar), next_(next) {}

  // kNone when there is none.
  NodeId All() {
    NodeId any = Grammar::kNone;
    for (digits_ = low_.whole.size(); digits_ <= high_.whole.size(); ++digits_) {
      whole_.clear();
      const bool tight_low = digits_ == low_.whole.size();
      const bool tight_high = digits_ == high_.whole.size();
      any = Or(any, Whole(0, tight_low, tight_high));
    }
    return any;
  }

 private:
  using Place = std::tuple<size_t, bool, bool>;

  NodeId Or(NodeId a, NodeId b) {
    if (a == Grammar::kNone) return b;
    return b == Grammar::kNone ? a : grammar_.Either(a, b);
  }

  // A digit from `first` to `last`, then what `rest` says of it.
  template <typename Rest>
  NodeId Digit(char first, char last, bool tight_low, bool tight_high, const Rest& rest) {
    NodeId any = Grammar::kNone;
    const auto add = [&](char from, char to, bool low, bool high) {
      const NodeId after = rest(low, high);
      if (after == Grammar::kNone) return;
      const auto set = ByteRange(static_cast<unsigned char>(from), static_cast<unsigned char>(to));
      any = Or(any, grammar_.Byte(set, after));
    };
    if (tight_low && tight_high && first == last) {
      add(first, last, true, true);
      return any;
    }
    if (tight_low && first <= last) {
      add(first, first, true, false);
      ++first;
    }
    if (tight_high && first <= last) {
      add(last, last, false, true);
      --last;
    }
    if (first <= last) add(first, last, false, false);
    return any;
  }

  NodeId Whole(size_t place, bool tight_low, bool tight_high) {
    if (place == digits_) return Fraction(0, tight_low, tight_high);
    const Place key{place, tight_low, tight_high};
    if (const auto known = whole_.find(key); known != whole_.end()) return known->second;
    const char lowest = place == 0 && digits_ > 1 ? '1' : '0';
    const char first = tight_low ? low_.whole[place] : lowest;
    const char last = tight_high ? high_.whole[place] : '9';
    return whole_[key] = Digit(first, last, tight_low, tight_high,
                               [&](bool low, bool high) { return Whole(place + 1, low, high); });
  }

  // `place` digits stand behind the point.
  NodeId Fraction(size_t place, bool tight_low, bool tight_high) {
    const Place key{place, tight_low, tight_high};
    if (const auto known = fraction_.find(key); known != fraction_.end()) return known->second;
    NodeId any = MayEnd(place, tight_low, tight_high) ? next_ : Grammar::kNone;
    if (!integer_ && place < kFractionDigitsMax) {
      const char first = tight_low ? low_.FractionDigit(place) : '0';
      const char last = tight_high ? high_.FractionDigit(place) : '9';
      NodeId more = Digit(first, last, tight_low, tight_high,
                          [&](bool low, bool high) { return Fraction(place + 1, low, high); });
      if (place == 0 && more != Grammar::kNone) more = grammar_.Text(".", more);
      any = Or(any, more);
    }
    return fraction_[key] = any;
  }

  bool MayEnd(size_t place, bool tight_low, bool tight_high) const {
    if (tight_low && (low_.fraction.size() > place || low_.exclusive)) return false;
    return !(tight_high && high_.fraction.size() <= place && high_.exclusive);
  }

  const Bound& low_;
  const Bound& high_;
  const bool integer_;
  Grammar& grammar_;
  const NodeId next_;
  size_t digits_ = 0;  // before the point
  std::map<Place, NodeId> whole_;
  std::map<Place, NodeId> fraction_;
};

}  // namespace

Result<Grammar::NodeId> NumberWithin(const NumberBounds& bounds, Grammar* grammar,
                                     Grammar::NodeId next) {
  const double min = std::max(bounds.min.value_or(-kMost), -kMost);
  const double max = std::min(bounds.max.value_or(kMost), kMost);
  const bool min_exclusive = bounds.min_exclusive && bounds.min == min;
  const bool max_exclusive = bounds.max_exclusive && bounds.max == max;
  NodeId any = Grammar::kNone;
  if (max >= 0) {
    const Bound low = BoundOf(std::max(min, 0.0), min_exclusive && min >= 0);
    const Bound high = BoundOf(max, max_exclusive);
    if (min <= max) any = Magnitudes(low, high, bounds.integer, grammar, next).All();
  }
  if (min < 0) {
    // Of negative ones the magnitudes go the other way; there is no -0.
    const bool to_zero = max >= 0;
    const Bound low = BoundOf(to_zero ? 0 : -max, to_zero || max_exclusive);
    const Bound high = BoundOf(-min, min_exclusive);
    const NodeId negative =
        min <= max ? Magnitudes(low, high, bounds.integer, grammar, next).All() : Grammar::kNone;
    if (negative != Grammar::kNone) {
      const NodeId with_sign = grammar->Text("-", negative);
      any = any == Grammar::kNone ? with_sign : grammar->Either(any, with_sign);
    }
  }
  if (any == Grammar::kNone) return InvalidArgument("no number is within the bounds");
  return any;
}

}  // namespace expertflow

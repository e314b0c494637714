#include "model/checkpoint/json_stream.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

namespace expertflow {
namespace {

// Turns the parser's events into JsonHandler calls.
class Adapter : public nlohmann::json_sax<nlohmann::json> {
 public:
  Adapter(size_t max_depth, JsonHandler* handler) : max_depth_(max_depth), handler_(handler) {}

  Status TakeStatus() { return std::move(status_); }

  bool null() override { return Scalar(nullptr); }
  bool boolean(bool value) override { return Scalar(value); }
  bool number_integer(int64_t value) override { return Scalar(value); }
  bool number_unsigned(uint64_t value) override {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Scalar(static_cast<double>(value));
    }
    return Scalar(static_cast<int64_t>(value));
  }
  bool number_float(double value, const std::string&) override { return Scalar(value); }
  bool string(std::string& value) override { return Scalar(std::string_view(value)); }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool start_object(size_t) override { return Enter() && Continue(handler_->BeginObject()); }
  bool key(std::string& key) override { return Continue(handler_->Key(key)); }
  bool end_object() override {
    --depth_;
    return Continue(handler_->EndObject());
  }
  bool start_array(size_t) override { return Enter() && Continue(handler_->BeginArray()); }
  bool end_array() override {
    --depth_;
    return Continue(handler_->EndArray());
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    return Continue(InvalidArgument(fmt::format("not valid JSON at byte {}", position)));
  }

 private:
  bool Continue(Status status) {
    if (status.ok()) return true;
    status_ = std::move(status);
    return false;
  }
  bool Scalar(const JsonScalar& value) { return Continue(handler_->Scalar(value)); }
  bool Enter() {
    if (++depth_ <= max_depth_) return true;
    return Continue(
        InvalidArgument(fmt::format("JSON is nested deeper than the limit of {}", max_depth_)));
  }

  size_t max_depth_;
  JsonHandler* handler_;
  size_t depth_ = 0;
  Status status_;
};

}  // namespace

std::string DescribeJson(const JsonScalar& value) {
  return std::visit(
      [](const auto& held) -> std::string {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::nullptr_t>) {
          return "null";
        } else if constexpr (std::is_same_v<Held, std::string_view>) {
          constexpr size_t kShown = 40;
          return held.size() <= kShown ? fmt::format("\"{}\"", held)
                                       : fmt::format("\"{}...\"", held.substr(0, kShown));
        } else {
          return fmt::format("{}", held);
        }
      },
      value);
}

Status ParseJson(std::string_view text, size_t max_depth, JsonHandler& handler) {
  Adapter adapter(max_depth, &handler);
  if (nlohmann::json::sax_parse(text.begin(), text.end(), &adapter)) return OkStatus();
  Status status = adapter.TakeStatus();
  if (status.ok()) return InvalidArgument("not valid JSON");
  return status;
}

}  // namespace expertflow

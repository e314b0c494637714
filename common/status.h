// Status and Result<T>: how every operating error travels (ARCHITECTURE 7).
//
// An operating error is anything that a request, checkpoint, peer, file or machine can cause. Its
// message names the thing (file, tensor, option, peer, bytes) and says what to do about it. A
// programmer error is a CHECK (check.h). Exceptions do not cross a module.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace expertflow {

enum class StatusCode {
  kOk = 0,
  kInvalidArgument,     // bad input: checkpoint, config, option, request, message
  kNotFound,            // a named thing does not exist
  kResourceExhausted,   // memory, /dev/shm, disk, slots, queue full
  kUnavailable,         // a peer is gone or not there yet; retrying may help
  kDeadlineExceeded,    // a wait reached its deadline
  kFailedPrecondition,  // the system is not in the state that the call needs
  kCancelled,           // the caller asked to stop
  kInternal,            // the operating system or a library failed in a way we do not expect
};

// "invalid argument", "not found", ...
std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same error with `context + ": "` before its message; ok stays ok.
  Status WithContext(std::string_view context) const;
  // "invalid argument: <message>", or "ok".
  std::string ToString() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() {
  return Status();
}
Status InvalidArgument(std::string message);
Status NotFound(std::string message);
Status ResourceExhausted(std::string message);
Status Unavailable(std::string message);
Status DeadlineExceeded(std::string message);
Status FailedPrecondition(std::string message);
Status Cancelled(std::string message);
Status Internal(std::string message);
// `what` with the text of `error` (an errno value); ENOSPC and ENOMEM become kResourceExhausted,
// ENOENT becomes kNotFound, all others kInternal.
Status FromErrno(int error, std::string_view what);

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: REQUIRES !status.ok()

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  // REQUIRES: ok()
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace expertflow

#define EXPERTFLOW_CONCAT_INNER(a, b) a##b
#define EXPERTFLOW_CONCAT(a, b) EXPERTFLOW_CONCAT_INNER(a, b)

// Returns the error of a Status expression from the enclosing function.
#define RETURN_IF_ERROR(expr)                                \
  do {                                                       \
    ::expertflow::Status status_macro_value = (expr);        \
    if (!status_macro_value.ok()) return status_macro_value; \
  } while (0)

// ASSIGN_OR_RETURN(auto x, MakeX()): x gets the value, or the error is returned.
#define ASSIGN_OR_RETURN(lhs, expr) \
  ASSIGN_OR_RETURN_IMPL(EXPERTFLOW_CONCAT(result_macro_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                          \
  if (!result.ok()) return result.status();      \
  lhs = std::move(result).value()

// A notice board for the processes of a host: one writes, any number read without asking. It holds
// one message, always the latest, and one number that may change at any moment by itself.
//
// Memory without a name: readers reach it through the writer's descriptor, and the kernel frees it
// with the last process that has it, however they end. Two halves take turns, each with version and
// checksum; a reader that meets a half which is being written comes back later. Readers cannot
// write, and nobody can change the size.
//
// Each object belongs to one thread; word() may be read by any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/status.h"
#include "common/unique_fd.h"

namespace expertflow {

// How a process finds the board of another one.
struct BoardPlace {
  int64_t pid = 0;
  int32_t descriptor = -1;
  uint64_t id = 0;  // that the board begins with: tells a reused pid or descriptor apart
};

struct BoardLayout;

class BoardWriter {
 public:
  // Pages are taken as messages fill them. REQUIRES: message_bytes_max > 0
  static Result<BoardWriter> Create(size_t message_bytes_max);

  BoardWriter(BoardWriter&& other) noexcept;
  BoardWriter& operator=(BoardWriter&& other) noexcept;
  ~BoardWriter();

  BoardPlace place() const;
  // Takes the place of the message before. kResourceExhausted when it is too long.
  Status Write(std::span<const uint8_t> message);
  void SetWord(uint64_t word);

 private:
  struct State;
  explicit BoardWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

class BoardReader {
 public:
  // kUnavailable when there is no such board any more, or it cannot be reached from here.
  static Result<BoardReader> Open(const BoardPlace& place);

  BoardReader(BoardReader&& other) noexcept;
  BoardReader& operator=(BoardReader&& other) noexcept;
  ~BoardReader();

  // The latest message, if it is another one than the last that was returned; nothing, too, while
  // it is being written.
  std::optional<std::vector<uint8_t>> Read();
  // As the writer set it; 0 at first. Lives as long as the reader.
  const std::atomic<uint64_t>& word() const;

 private:
  struct State;
  explicit BoardReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace expertflow

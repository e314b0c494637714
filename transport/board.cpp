#include "transport/board.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "common/check.h"
#include "common/digest.h"

namespace expertflow {

// At the beginning of the memory; the halves follow, each on pages of its own.
struct BoardLayout {
  struct Half {
    std::atomic<uint64_t> version;  // 0: it is being written, or never was
    std::atomic<uint64_t> bytes;
    std::atomic<uint64_t> checksum;
  };
  uint64_t magic;
  uint64_t id;
  uint64_t half_bytes;  // room for a message
  std::atomic<uint64_t> word;
  std::atomic<uint64_t> version;  // of the latest message; 0: none
  std::array<Half, 2> half;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

namespace {

constexpr uint64_t kMagic = 0x31445242574645;  // "EFWBRD1"
constexpr size_t kPageBytes = 4096;
static_assert(sizeof(BoardLayout) <= kPageBytes);

size_t RoundToPages(size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

uint64_t ChecksumOf(std::span<const uint8_t> bytes) {
  Digest digest;
  digest.Fold(bytes.size());
  size_t at = 0;
  for (; at + sizeof(uint64_t) <= bytes.size(); at += sizeof(uint64_t)) {
    uint64_t value = 0;
    std::memcpy(&value, bytes.data() + at, sizeof(value));
    digest.Fold(value);
  }
  for (; at < bytes.size(); ++at) digest.Fold(bytes[at]);
  return digest.value();
}

// To and from the board word by word, and each of them atomically: a reader may meet the writer.
void CopyToBoard(std::span<const uint8_t> message, uint64_t* board) {
  for (size_t at = 0; at < message.size(); at += sizeof(uint64_t), ++board) {
    uint64_t word = 0;
    std::memcpy(&word, message.data() + at, std::min(sizeof(word), message.size() - at));
    std::atomic_ref(*board).store(word, std::memory_order_relaxed);
  }
}
void CopyFromBoard(uint64_t* board, std::span<uint8_t> message) {
  for (size_t at = 0; at < message.size(); at += sizeof(uint64_t), ++board) {
    const uint64_t word = std::atomic_ref(*board).load(std::memory_order_relaxed);
    std::memcpy(message.data() + at, &word, std::min(sizeof(word), message.size() - at));
  }
}

Status Failed(const char* what) {
  return Unavailable(fmt::format("board: cannot {}: {}", what, std::strerror(errno)));
}

// The memory as this process has it.
class Mapping {
 public:
  Mapping(void* data, size_t bytes) : data_(data), bytes_(bytes) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { ::munmap(data_, bytes_); }

  BoardLayout& layout() const { return *static_cast<BoardLayout*>(data_); }
  uint64_t* Half(uint64_t version, size_t half_bytes) const {
    std::byte* half = static_cast<std::byte*>(data_) + kPageBytes + version % 2 * half_bytes;
    return reinterpret_cast<uint64_t*>(half);
  }

 private:
  void* data_;
  size_t bytes_;
};

}  // namespace

struct BoardWriter::State {
  State(UniqueFd fd, void* data, size_t bytes) : descriptor(std::move(fd)), mapping(data, bytes) {}
  UniqueFd descriptor;
  Mapping mapping;
};

BoardWriter::BoardWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
BoardWriter::BoardWriter(BoardWriter&& other) noexcept = default;
BoardWriter& BoardWriter::operator=(BoardWriter&& other) noexcept = default;
BoardWriter::~BoardWriter() = default;

Result<BoardWriter> BoardWriter::Create(size_t message_bytes_max) {
  CHECK(message_bytes_max > 0);
  const size_t half_bytes = RoundToPages(message_bytes_max);
  const size_t bytes = kPageBytes + 2 * half_bytes;
  UniqueFd descriptor(::memfd_create("expertflow-board", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (descriptor.get() < 0) return Failed("make memory");
  if (::ftruncate(descriptor.get(), static_cast<off_t>(bytes)) != 0) return Failed("size memory");
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.get(), 0);
  if (data == MAP_FAILED) return Failed("map memory");
  auto state = std::make_unique<State>(std::move(descriptor), data, bytes);
  // A reader may rely on the size; that only we write is a courtesy, which older kernels do not
  // know.
  if (::fcntl(state->descriptor.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return Failed("seal memory");
  }
  ::fcntl(state->descriptor.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
  BoardLayout& layout = state->mapping.layout();
  std::random_device random;
  layout.id = (uint64_t{random()} << 32 | random()) | 1;
  layout.half_bytes = half_bytes;
  layout.magic = kMagic;
  return BoardWriter(std::move(state));
}

BoardPlace BoardWriter::place() const {
  return {::getpid(), state_->descriptor.get(), state_->mapping.layout().id};
}

Status BoardWriter::Write(std::span<const uint8_t> message) {
  BoardLayout& layout = state_->mapping.layout();
  if (message.size() > layout.half_bytes) {
    return ResourceExhausted(fmt::format("board: a message of {} bytes, there is room for {}",
                                         message.size(), layout.half_bytes));
  }
  const uint64_t version = layout.version.load(std::memory_order_relaxed) + 1;
  BoardLayout::Half& half = layout.half[version % 2];
  half.version.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  CopyToBoard(message, state_->mapping.Half(version, layout.half_bytes));
  half.bytes.store(message.size(), std::memory_order_relaxed);
  half.checksum.store(ChecksumOf(message), std::memory_order_relaxed);
  half.version.store(version, std::memory_order_release);
  layout.version.store(version, std::memory_order_release);
  return OkStatus();
}

void BoardWriter::SetWord(uint64_t word) {
  state_->mapping.layout().word.store(word, std::memory_order_relaxed);
}

struct BoardReader::State {
  State(void* data, size_t bytes, size_t half) : mapping(data, bytes), half_bytes(half) {}
  Mapping mapping;
  const size_t half_bytes;  // as checked
  uint64_t seen = 0;
};

BoardReader::BoardReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
BoardReader::BoardReader(BoardReader&& other) noexcept = default;
BoardReader& BoardReader::operator=(BoardReader&& other) noexcept = default;
BoardReader::~BoardReader() = default;

Result<BoardReader> BoardReader::Open(const BoardPlace& place) {
  const std::string path = fmt::format("/proc/{}/fd/{}", place.pid, place.descriptor);
  const UniqueFd descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (descriptor.get() < 0) return Failed(fmt::format("open {}", path).c_str());
  struct stat info = {};
  if (::fstat(descriptor.get(), &info) != 0) return Failed("look at it");
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  const auto bytes = static_cast<size_t>(std::max<off_t>(info.st_size, 0));
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || bytes < kPageBytes) {
    return Unavailable(fmt::format("board: {} is not one", path));
  }
  void* data = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor.get(), 0);
  if (data == MAP_FAILED) return Failed("map it");
  auto state = std::make_unique<State>(data, bytes, (bytes - kPageBytes) / 2);
  const BoardLayout& layout = state->mapping.layout();
  if (layout.magic != kMagic || layout.id != place.id || layout.half_bytes != state->half_bytes) {
    return Unavailable(fmt::format("board: {} is another one", path));
  }
  return BoardReader(std::move(state));
}

std::optional<std::vector<uint8_t>> BoardReader::Read() {
  const BoardLayout& layout = state_->mapping.layout();
  const uint64_t version = layout.version.load(std::memory_order_acquire);
  if (version == state_->seen) return std::nullopt;
  const BoardLayout::Half& half = layout.half[version % 2];
  if (half.version.load(std::memory_order_acquire) != version) return std::nullopt;
  const size_t bytes = half.bytes.load(std::memory_order_relaxed);
  if (bytes > state_->half_bytes) return std::nullopt;
  std::vector<uint8_t> message(bytes);
  CopyFromBoard(state_->mapping.Half(version, state_->half_bytes), message);
  const uint64_t checksum = half.checksum.load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (half.version.load(std::memory_order_relaxed) != version) return std::nullopt;
  if (ChecksumOf(message) != checksum) return std::nullopt;
  state_->seen = version;
  return message;
}

const std::atomic<uint64_t>& BoardReader::word() const {
  return state_->mapping.layout().word;
}

}  // namespace expertflow

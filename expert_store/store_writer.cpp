#include "expert_store/store_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/process.h"
#include "common/units.h"
#include "expert_store/pack_file.h"
#include "expert_store/quantise.h"

namespace expertflow {
namespace {

// Stays in a core's second-level cache between reading, hashing and writing.
constexpr uint64_t kChunkBytes = uint64_t{512} << 10;
// Quantised together where a matrix can be read by rows.
constexpr uint64_t kQuantisedElements = uint64_t{1} << 20;

Status WriteAt(int fd, const std::string& name, uint64_t offset, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FromErrno(errno, "cannot write " + name);
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return OkStatus();
}

// A thread's own descriptors, so that the kernel's read-ahead sees one sequential reader each.
class Reader final : public TensorReader {
 public:
  Status Read(const TensorInfo& tensor, uint64_t from, std::span<uint8_t> into) override {
    UniqueFd& fd = files_[tensor.file];
    if (!fd.valid()) {
      fd.Reset(::open(tensor.file->path().c_str(), O_RDONLY | O_CLOEXEC));
      if (!fd.valid()) return FromErrno(errno, "cannot open " + tensor.file->path());
      ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
    }
    uint64_t offset = tensor.file_offset + from;
    while (!into.empty()) {
      const ssize_t n = ::pread(fd.get(), into.data(), into.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return FromErrno(errno, fmt::format("cannot read tensor {}", tensor.Where()));
      if (n == 0) {
        return InvalidArgument(
            fmt::format("tensor {}: the file became shorter while it was read", tensor.Where()));
      }
      into = into.subspan(static_cast<size_t>(n));
      offset += static_cast<uint64_t>(n);
    }
    return OkStatus();
  }

 private:
  std::unordered_map<const MappedFile*, UniqueFd> files_;
};

class Hasher {
 public:
  Hasher() : state_(XXH3_createState(), XXH3_freeState) {}
  void Reset() { XXH3_64bits_reset(state_.get()); }
  void Update(const void* data, size_t bytes) { XXH3_64bits_update(state_.get(), data, bytes); }
  uint64_t Digest() const { return XXH3_64bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

// Copies all units. Threads take them in order; the first error stops all.
class Filler {
 public:
  // `pack`, if not null, knows units that are there already and lists those that come.
  Filler(const StoreLayout& layout, const StoreFillOptions& options, int fd,
         const std::string& name, PackFile* pack)
      : layout_(layout), options_(options), fd_(fd), name_(name), pack_(pack) {
    for (const StoreUnit& unit : layout.units()) total_bytes_ += unit.bytes;
    checksums_.resize(layout.units().size());
  }

  Status Run() {
    int threads = options_.threads;
    if (threads <= 0) threads = std::clamp(2 * CoreCount(), 4, 16);
    running_ = std::clamp(threads, 1, static_cast<int>(std::max<size_t>(checksums_.size(), 1)));
    std::vector<std::thread> pool;
    for (int i = running_; i > 0; --i) pool.emplace_back([this] { Work(); });
    {
      std::unique_lock lock(mutex_);
      while (!done_.wait_for(lock, std::chrono::milliseconds(100), [&] { return running_ == 0; })) {
        lock.unlock();
        if (options_.progress) options_.progress(done_bytes_.load(), total_bytes_);
        if (options_.cancelled != nullptr && options_.cancelled->load()) {
          Fail(Cancelled("loading the expert store was cancelled"));
        }
        lock.lock();
      }
    }
    for (std::thread& thread : pool) thread.join();
    return status_;
  }

  void ReportEnd() const {
    if (options_.progress) options_.progress(total_bytes_, total_bytes_);
  }
  // Of layout.units(), in their order.
  const std::vector<uint64_t>& checksums() const { return checksums_; }

 private:
  void Fail(Status status) {
    stop_ = true;
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
  }

  void Work() {
    Reader reader;
    Hasher hasher;
    std::vector<uint8_t> buffer(kChunkBytes);
    while (!stop_) {
      const size_t i = next_unit_.fetch_add(1);
      if (i >= layout_.units().size()) break;
      const StoreUnit& unit = layout_.units()[i];
      if (IsThere(i, unit, &hasher, buffer)) {
        checksums_[i] = *pack_->Listed(i);
        done_bytes_ += unit.bytes;
        continue;
      }
      hasher.Reset();
      Status status = CopyUnit(unit, &reader, &hasher, buffer);
      checksums_[i] = hasher.Digest();
      if (status.ok() && pack_ != nullptr && !stop_) status = pack_->List(i, checksums_[i]);
      if (!status.ok()) {
        Fail(status);
        break;
      }
    }
    const std::lock_guard lock(mutex_);
    if (--running_ == 0) done_.notify_all();
  }

  // Listed by an earlier process, and its bytes are those that were listed.
  bool IsThere(size_t index, const StoreUnit& unit, Hasher* hasher, std::span<uint8_t> buffer) {
    if (pack_ == nullptr || !pack_->Listed(index)) return false;
    hasher->Reset();
    for (uint64_t at = 0; at < unit.bytes;) {
      const uint64_t chunk = std::min<uint64_t>(buffer.size(), unit.bytes - at);
      const ssize_t n = ::pread(fd_, buffer.data(), chunk, static_cast<off_t>(unit.offset + at));
      if (n <= 0) return false;
      hasher->Update(buffer.data(), static_cast<size_t>(n));
      at += static_cast<uint64_t>(n);
    }
    return hasher->Digest() == *pack_->Listed(index);
  }

  Status CopyUnit(const StoreUnit& unit, Reader* reader, Hasher* hasher,
                  std::span<uint8_t> buffer) {
    static constexpr uint8_t kZeros[kTensorAlignment] = {};
    uint64_t end = 0;
    for (const StorePiece& piece : unit.pieces) {
      hasher->Update(kZeros, piece.offset - end);
      end = piece.offset + piece.bytes;
      if (IsQuantised(piece.dtype)) {
        RETURN_IF_ERROR(CopyQuantised(unit, piece, reader, hasher));
        continue;
      }
      if (piece.source->decoder) {
        RETURN_IF_ERROR(CopyDecoded(unit.offset, piece, reader, hasher));
        continue;
      }
      std::vector<uint8_t> gathered;
      if (!piece.contiguous()) RETURN_IF_ERROR(Gather(piece, reader, &gathered));
      const uint64_t begin = piece.first * DTypeBytes(piece.source->dtype);
      for (uint64_t from = 0; from < piece.bytes && !stop_;) {
        const uint64_t chunk = std::min(kChunkBytes, piece.bytes - from);
        auto memory = buffer.first(chunk);
        if (gathered.empty()) {
          RETURN_IF_ERROR(reader->Read(*piece.source->info, begin + from, memory));
        } else {
          memory = std::span(gathered).subspan(from, chunk);
        }
        hasher->Update(memory.data(), memory.size());
        RETURN_IF_ERROR(WriteAt(fd_, name_, unit.offset + piece.offset + from, memory));
        from += chunk;
        done_bytes_ += chunk;
      }
    }
    return OkStatus();
  }

  // Some rows at a time, where they can be read so.
  Status CopyDecoded(uint64_t unit_offset, const StorePiece& piece, Reader* reader,
                     Hasher* hasher) {
    const TensorDecoder& decoder = *piece.source->decoder;
    const uint64_t row_bytes = piece.cols * DTypeBytes(piece.source->dtype);
    const uint64_t rows_max =
        decoder.reads_all() ? piece.rows : std::max<uint64_t>(1, kChunkBytes / row_bytes);
    std::vector<float> values;
    std::vector<uint8_t> bytes;
    for (uint64_t row = 0; row < piece.rows && !stop_;) {
      const uint64_t rows = std::min(rows_max, piece.rows - row);
      const uint64_t step = piece.row_stride / piece.cols;
      values.resize(rows * piece.cols);
      bytes.resize(rows * row_bytes);
      RETURN_IF_ERROR(decoder.Decode(
          *reader, {.first = piece.first / piece.cols + row * step, .step = step, .count = rows},
          values));
      const Status encoded = EncodeValues(values, piece.source->dtype, bytes);
      if (!encoded.ok()) {
        return encoded.WithContext(fmt::format("tensor {}", piece.source->info->Where()));
      }
      hasher->Update(bytes.data(), bytes.size());
      RETURN_IF_ERROR(WriteAt(fd_, name_, unit_offset + piece.offset + row * row_bytes, bytes));
      row += rows;
      done_bytes_ += bytes.size();
    }
    return OkStatus();
  }

  // Some rows at a time, where they can be read so. The scales come after all codes.
  Status CopyQuantised(const StoreUnit& unit, const StorePiece& piece, Reader* reader,
                       Hasher* hasher) {
    const TensorDecoder* decoder = piece.source->decoder.get();
    const bool by_rows = decoder != nullptr ? !decoder->reads_all() : piece.contiguous();
    const uint64_t rows_max =
        by_rows ? std::max<uint64_t>(1, kQuantisedElements / piece.cols) : piece.rows;
    const auto parts = MatrixParts(piece.dtype, piece.rows * piece.cols);
    std::vector<uint8_t> bytes, after_codes[2];
    QuantisationError error;
    bool quantised = false;
    uint64_t written = 0;
    const auto put = [&](std::span<const uint8_t> content) -> Status {
      hasher->Update(content.data(), content.size());
      RETURN_IF_ERROR(WriteAt(fd_, name_, unit.offset + piece.offset + written, content));
      written += content.size();
      done_bytes_ += content.size();
      return OkStatus();
    };
    for (uint64_t row = 0; row < piece.rows && !stop_; row += rows_max) {
      StorePiece rows = piece;
      rows.first += row * piece.row_stride;
      rows.rows = std::min(rows_max, piece.rows - row);
      const uint64_t elements = rows.rows * rows.cols;
      bytes.resize(MatrixBytes(piece.dtype, elements));
      RETURN_IF_ERROR(MakeRows(rows, reader, bytes, &error, &quantised));
      const auto made = MatrixParts(piece.dtype, elements);
      RETURN_IF_ERROR(put(std::span(bytes).first(made[0].bytes)));
      for (size_t i = 0; i < 2; ++i) {
        const auto part = std::span(bytes).subspan(made[i + 1].offset, made[i + 1].bytes);
        after_codes[i].insert(after_codes[i].end(), part.begin(), part.end());
      }
    }
    if (stop_) return OkStatus();
    const std::vector<uint8_t> padding(parts[1].offset - parts[0].bytes);
    RETURN_IF_ERROR(put(padding));
    for (const std::vector<uint8_t>& part : after_codes) RETURN_IF_ERROR(put(part));
    if (quantised && options_.quantised) {
      const std::lock_guard lock(mutex_);
      options_.quantised(*piece.source->info, error);
    }
    return OkStatus();
  }

  static RowRange RowsOf(const StorePiece& piece) {
    return {.first = piece.first / piece.cols,
            .step = piece.row_stride / piece.cols,
            .count = piece.rows};
  }

  // As a matrix of their own; `quantised`: they were not before.
  static Status MakeRows(const StorePiece& piece, Reader* reader, std::span<uint8_t> bytes,
                         QuantisationError* error, bool* quantised) {
    const TensorDecoder* decoder = piece.source->decoder.get();
    if (IsGgufBlocks(piece.dtype)) {
      CHECK(decoder != nullptr && piece.source->kept_type() == piece.dtype);
      return decoder->blocks()->ReadBlocks(*reader, RowsOf(piece), bytes);
    }
    const CodeDecoder* codes = decoder != nullptr ? decoder->codes() : nullptr;
    if (codes != nullptr && CommonQuantisedType(codes->kept_as(), piece.dtype) == piece.dtype) {
      std::vector<int8_t> integers(piece.rows * piece.cols);
      std::vector<float> scales(integers.size() / kQuantisedGroup);
      RETURN_IF_ERROR(codes->DecodeCodes(*reader, RowsOf(piece), {integers, scales}));
      PlaceGroups(integers, scales, piece.dtype, bytes);
      return OkStatus();
    }
    std::vector<float> values(piece.rows * piece.cols);
    if (decoder != nullptr) {
      RETURN_IF_ERROR(decoder->Decode(*reader, RowsOf(piece), values));
    } else {
      std::vector<uint8_t> read;
      RETURN_IF_ERROR(Gather(piece, reader, &read));
      WidenNumbers(read, FromDType(piece.source->dtype), values);
    }
    *quantised = true;
    return QuantiseGroups(values, piece.dtype, bytes, error)
        .WithContext(fmt::format("tensor {}", piece.source->info->Where()));
  }

  // The elements of a piece that do not lie together, one after the other. Reads all between its
  // first and last at once: one expert's share of a tensor.
  static Status Gather(const StorePiece& piece, Reader* reader, std::vector<uint8_t>* gathered) {
    const uint64_t width = DTypeBytes(piece.source->dtype);
    const uint64_t elements =
        (piece.rows - 1) * piece.row_stride + (piece.cols - 1) * piece.col_stride + 1;
    std::vector<uint8_t> read(elements * width);
    RETURN_IF_ERROR(reader->Read(*piece.source->info, piece.first * width, read));
    gathered->resize(piece.rows * piece.cols * width);
    // In tiles, so that neither side jumps over a page for each element.
    constexpr uint64_t kTile = 64;
    for (uint64_t r0 = 0; r0 < piece.rows; r0 += kTile) {
      for (uint64_t c0 = 0; c0 < piece.cols; c0 += kTile) {
        for (uint64_t r = r0; r < std::min(r0 + kTile, piece.rows); ++r) {
          for (uint64_t c = c0; c < std::min(c0 + kTile, piece.cols); ++c) {
            const uint64_t from = r * piece.row_stride + c * piece.col_stride;
            std::memcpy(gathered->data() + (r * piece.cols + c) * width, read.data() + from * width,
                        width);
          }
        }
      }
    }
    return OkStatus();
  }

  const StoreLayout& layout_;
  const StoreFillOptions& options_;
  const int fd_;
  const std::string& name_;
  PackFile* const pack_;
  uint64_t total_bytes_ = 0;
  std::vector<uint64_t> checksums_;  // each written by the thread that took the unit
  std::atomic<size_t> next_unit_{0};
  std::atomic<uint64_t> done_bytes_{0};
  std::atomic<bool> stop_{false};

  std::mutex mutex_;
  std::condition_variable done_;
  int running_ = 0;  // guarded by mutex_ once the threads run
  Status status_;    // guarded by mutex_
};

template <typename Entry>
Entry ReadEntry(const std::vector<uint8_t>& metadata, const StoreExtent& section, size_t i) {
  Entry entry;
  std::memcpy(&entry, metadata.data() + section.offset + i * sizeof(Entry), sizeof(Entry));
  return entry;
}

template <typename Entry>
void SetChecksum(std::vector<uint8_t>* metadata, const StoreExtent& section, size_t i,
                 uint64_t checksum) {
  std::memcpy(metadata->data() + section.offset + i * sizeof(Entry) + offsetof(Entry, checksum),
              &checksum, sizeof(checksum));
}

// Over what the model is, not over where it lies.
Fingerprint ComputeFingerprint(const StoreHeader& header, const std::vector<uint8_t>& metadata) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  XXH3_128bits_reset(state.get());
  const auto add = [&](const auto& value) {
    XXH3_128bits_update(state.get(), &value, sizeof(value));
  };
  const auto add_text = [&](const uint8_t* text, uint64_t bytes) {
    add(bytes);
    XXH3_128bits_update(state.get(), text, bytes);
  };
  add_text(metadata.data() + header.config.offset, header.config.bytes);
  for (size_t i = 0; i < header.dense_index.bytes / sizeof(DenseEntry); ++i) {
    const auto entry = ReadEntry<DenseEntry>(metadata, header.dense_index, i);
    add_text(metadata.data() + header.names.offset + entry.name_offset, entry.name_bytes);
    add(entry.dtype);
    add(entry.rank);
    for (const int64_t size : entry.shape) add(size);
    add(entry.checksum);
  }
  for (size_t i = 0; i < header.expert_index.bytes / sizeof(ExpertEntry); ++i) {
    const auto entry = ReadEntry<ExpertEntry>(metadata, header.expert_index, i);
    add(entry.layer);
    add(entry.expert);
    add(entry.hidden);
    add(entry.intermediate);
    add(uint32_t{entry.gate_dtype});
    if (entry.up_dtype != entry.gate_dtype || entry.down_dtype != entry.gate_dtype) {
      add(uint32_t{entry.up_dtype});
      add(uint32_t{entry.down_dtype});
    }
    if (entry.bias != 0) add(uint32_t{entry.bias});
    add(entry.checksum);
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return {.low = hash.low64, .high = hash.high64};
}

// The final metadata: checksums, fingerprint and hashes are set.
std::vector<uint8_t> FinishMetadata(const StoreLayout& layout,
                                    const std::vector<uint64_t>& checksums) {
  std::vector<uint8_t> metadata(layout.metadata().begin(), layout.metadata().end());
  const StoreHeader& header = layout.header();
  for (size_t i = 0; i < layout.units().size(); ++i) {
    const StoreUnit& unit = layout.units()[i];
    if (unit.expert) {
      SetChecksum<ExpertEntry>(&metadata, header.expert_index, unit.entry, checksums[i]);
    } else {
      SetChecksum<DenseEntry>(&metadata, header.dense_index, unit.entry, checksums[i]);
    }
  }
  const Fingerprint fingerprint = ComputeFingerprint(header, metadata);
  std::memcpy(metadata.data() + offsetof(StoreHeader, fingerprint), &fingerprint,
              sizeof(fingerprint));
  SealHeader(metadata.data());
  return metadata;
}

Status Fill(const StoreLayout& layout, int fd, const std::string& name,
            const StoreFillOptions& options, PackFile* pack) {
  Filler filler(layout, options, fd, name, pack);
  RETURN_IF_ERROR(filler.Run());
  const std::vector<uint8_t> metadata = FinishMetadata(layout, filler.checksums());
  const std::span<const uint8_t> bytes(metadata);
  RETURN_IF_ERROR(WriteAt(fd, name, kStoreHeaderBytes, bytes.subspan(kStoreHeaderBytes)));
  RETURN_IF_ERROR(WriteAt(fd, name, 0, bytes.first(offsetof(StoreHeader, state))));
  filler.ReportEnd();
  return OkStatus();
}

}  // namespace

Status FillStore(const StoreLayout& layout, int fd, const std::string& name,
                 const StoreFillOptions& options) {
  return Fill(layout, fd, name, options, nullptr);
}

Status PackStore(const StoreLayout& layout, const std::string& path,
                 const StoreFillOptions& options) {
  ASSIGN_OR_RETURN(PackFile file, PackFile::Open(path, layout));
  const int error = ::posix_fallocate(file.fd(), 0, static_cast<off_t>(layout.total_bytes()));
  if (error != 0) {
    return FromErrno(error,
                     fmt::format("cannot write {} ({})", path, FormatBytes(layout.total_bytes())));
  }
  RETURN_IF_ERROR(Fill(layout, file.fd(), path, options, &file));
  const auto ready = static_cast<uint32_t>(StoreState::kReady);
  uint8_t state[sizeof(ready)];
  std::memcpy(state, &ready, sizeof(ready));
  RETURN_IF_ERROR(WriteAt(file.fd(), path, offsetof(StoreHeader, state), state));
  return file.Commit();
}

}  // namespace expertflow

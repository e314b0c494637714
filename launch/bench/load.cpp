#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/process.h"
#include "common/unique_fd.h"
#include "common/units.h"
#include "expert_store/segment.h"
#include "expert_store/store_layout.h"
#include "launch/bench/bench_host.h"
#include "launch/bench/bench_model.h"
#include "launch/bench/bench_setup.h"
#include "model/checkpoint/checkpoint.h"

namespace expertflow {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kRepetitions = 5;
constexpr size_t kReadBytes = size_t{8} << 20;
constexpr double kGoalOfReadPercent = 90;

struct WeightFile {
  UniqueFd fd;
  std::string path;
  uint64_t bytes = 0;
};

Result<std::vector<WeightFile>> WeightFiles(const std::string& folder) {
  std::vector<WeightFile> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".safetensors") continue;
    WeightFile file;
    file.path = entry.path().string();
    file.fd.Reset(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.fd.valid()) return FromErrno(errno, file.path);
    file.bytes = entry.file_size(error);
    files.push_back(std::move(file));
  }
  if (error) return FromErrno(error.value(), folder);
  if (files.empty()) {
    return InvalidArgument(fmt::format(
        "{}: no *.safetensors; this benchmark loads a checkpoint, not a packed store", folder));
  }
  return files;
}

// So that the next read comes from the disk. What the host of a virtual machine keeps is out of
// reach; both arms find the same.
Status ForgetPages(const std::vector<WeightFile>& files) {
  for (const WeightFile& file : files) {
    if (::fdatasync(file.fd.get()) != 0) return FromErrno(errno, file.path);
    const int error = ::posix_fadvise(file.fd.get(), 0, 0, POSIX_FADV_DONTNEED);
    if (error != 0) return FromErrno(error, file.path);
  }
  return OkStatus();
}

// Reads everything in order, `threads` blocks at a time, and keeps nothing.
Result<int64_t> TimeReadAll(const std::vector<WeightFile>& files, int threads) {
  struct Piece {
    const WeightFile* file;
    uint64_t offset;
  };
  std::vector<Piece> pieces;
  for (const WeightFile& file : files) {
    for (uint64_t at = 0; at < file.bytes; at += kReadBytes) pieces.push_back({&file, at});
  }
  std::atomic<size_t> next{0};
  std::atomic<int> failure{0};
  const int64_t begin_ns = NowNs();
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&] {
      std::vector<char> buffer(kReadBytes);
      for (size_t i = next++; i < pieces.size(); i = next++) {
        const Piece& piece = pieces[i];
        const auto at = static_cast<off_t>(piece.offset);
        if (::pread(piece.file->fd.get(), buffer.data(), kReadBytes, at) < 0) failure = errno;
      }
    });
  }
  for (std::thread& thread : pool) thread.join();
  if (failure != 0) return FromErrno(failure, files.front().path);
  return NowNs() - begin_ns;
}

}  // namespace

Result<BenchReport> BenchLoad(const BenchSetup& setup) {
  std::string folder = setup.model;
  if (folder.empty()) {
    folder = setup.work_folder + "/checkpoint";
    RETURN_IF_ERROR(
        WriteBenchCheckpoint({.layers = 1, .vocab = 1024}, folder, setup.work_folder).status());
  }
  ASSIGN_OR_RETURN(const BenchCheckpoint model, BenchCheckpoint::Open(folder));
  ASSIGN_OR_RETURN(const std::vector<WeightFile> files, WeightFiles(folder));
  uint64_t bytes = 0;
  for (const WeightFile& file : files) bytes += file.bytes;
  const int threads = std::clamp(2 * CoreCount(), 4, 16);
  const auto rate = [bytes](int64_t ns) { return static_cast<double>(bytes) / ns; };

  HostWatch host;
  std::vector<double> read, filled, created_ms, read_cached, filled_cached;
  const int32_t repetitions = setup.Repetitions(kRepetitions);
  for (int32_t repetition = 0; repetition < repetitions; ++repetition) {
    for (const bool cached : {false, true}) {
      if (!cached) RETURN_IF_ERROR(ForgetPages(files));
      ASSIGN_OR_RETURN(const int64_t read_ns, TimeReadAll(files, threads));
      (cached ? read_cached : read).push_back(rate(read_ns));
      if (!cached) RETURN_IF_ERROR(ForgetPages(files));
      SegmentOptions options;
      options.job_id = fmt::format("bench-{}", ::getpid());
      const int64_t begin_ns = NowNs();
      ASSIGN_OR_RETURN(StoreSegment segment,
                       StoreSegment::Create(options, model.layout.total_bytes()));
      const int64_t created_ns = NowNs();
      StoreFillOptions fill;
      fill.threads = threads;
      RETURN_IF_ERROR(segment.Fill(model.layout, fill));
      (cached ? filled_cached : filled).push_back(rate(NowNs() - created_ns));
      created_ms.push_back(static_cast<double>(created_ns - begin_ns) * 1e-6);
    }
  }
  std::vector<double> share = PairRatios(filled, read);
  for (double& ratio : share) ratio *= 100;

  BenchReport report;
  report.bench = "load";
  report.title = "a checkpoint into the shared-memory store";
  report.machine = host.Describe();
  report.AddSetting("model", folder);
  report.AddSetting("files", fmt::format("{} with {}", files.size(), FormatBytes(bytes)));
  report.AddSetting("threads", std::to_string(threads));
  report.AddSetting("samples", "arms take turns; page cache emptied before each cold one");
  report.AddRow("read, from disk", "GB/s", read, "limit");
  report.AddRow("load with checksums, from disk", "GB/s", filled);
  report.AddRow("load / read, pair by pair", "%", share);
  report.AddRow("read, from the page cache", "GB/s", read_cached, "limit");
  report.AddRow("load, from the page cache", "GB/s", filled_cached);
  report.AddRow("segment created and its memory committed", "ms", created_ms);
  report.AddGoal("loading, of the disk's speed", "%", share, true, kGoalOfReadPercent);
  return report;
}

}  // namespace expertflow

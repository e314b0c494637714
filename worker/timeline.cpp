#include "worker/timeline.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "common/log.h"
#include "common/mapped_file.h"
#include "common/process.h"

namespace expertflow {
namespace {

constexpr uint64_t kMagic = 0x454e494c54465845;  // "EXFTLINE"
constexpr uint32_t kVersion = 2;                 // 1 had no sequences
// Kinds of records that are no spans.
constexpr auto kSequenceRecord = static_cast<TraceSpanKind>(kTraceSpanKinds);
constexpr auto kTraceIdRecord = static_cast<TraceSpanKind>(kTraceSpanKinds + 1);
constexpr size_t kTraceIdDigits = 32;
constexpr size_t kBlockSpans = 4096;

template <typename T>
std::span<const uint8_t> BytesOf(const T* data, size_t count) {
  return {reinterpret_cast<const uint8_t*>(data), count * sizeof(T)};
}

int64_t FromHex(std::string_view digits) {
  uint64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  return static_cast<int64_t>(value);
}

int16_t Narrow(int32_t value) {
  return static_cast<int16_t>(std::min(value, INT16_MAX));
}

}  // namespace

TimelineRecorder::TimelineRecorder(UniqueFd fd, std::string path, bool keep)
    : fd_(std::move(fd)), path_(std::move(path)), keep_(keep) {
  block_.reserve(kBlockSpans);
}

Result<std::unique_ptr<TimelineRecorder>> TimelineRecorder::Create(const std::string& path,
                                                                   bool keep) {
  if (path.empty()) {
    return std::unique_ptr<TimelineRecorder>(new TimelineRecorder(UniqueFd(), path, keep));
  }
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.valid()) return FromErrno(errno, "--trace " + path);
  TimelineHeader header;
  header.magic = kMagic;
  header.version = kVersion;
  header.span_bytes = sizeof(TimelineSpan);
  header.pid = ::getpid();
  const std::string host = HostName();
  std::memcpy(header.host, host.data(), std::min(host.size(), sizeof(header.host) - 1));
  const Status written = WriteAll(fd.get(), BytesOf(&header, 1), path);
  if (!written.ok()) return written.WithContext("--trace");
  return std::unique_ptr<TimelineRecorder>(new TimelineRecorder(std::move(fd), path, keep));
}

TimelineRecorder::~TimelineRecorder() {
  const std::lock_guard lock(mutex_);
  WriteBlock();
}

void TimelineRecorder::WriteBlock() {
  if (!failed_ && fd_.valid()) {
    const Status status = WriteAll(fd_.get(), BytesOf(block_.data(), block_.size()), path_);
    if (!status.ok()) {
      failed_ = true;  // the run goes on; the trace ends here
      LogError("{}; the trace ends here", status.message());
    }
  }
  block_.clear();
}

void TimelineRecorder::Add(const TimelineSpan& span) {
  const std::lock_guard lock(mutex_);
  if (keep_) kept_.push_back(span);
  AddRecord(span);
}

void TimelineRecorder::AddRecord(const TimelineSpan& record) {
  if (!fd_.valid()) return;
  block_.push_back(record);
  if (block_.size() >= kBlockSpans) WriteBlock();
}

void TimelineRecorder::OnLayerBegin(LayerId /*layer*/, int64_t now_ns) {
  layer_begin_ns_ = now_ns;
}

void TimelineRecorder::OnLayerEnd(LayerId layer, int64_t now_ns) {
  Add({.begin_ns = layer_begin_ns_,
       .end_ns = now_ns,
       .layer = Narrow(layer.value),
       .kind = TraceSpanKind::kLayer});
}

void TimelineRecorder::OnStallBegin(LayerId /*layer*/, int64_t now_ns) {
  stall_begin_ns_ = now_ns;
}

void TimelineRecorder::OnStallEnd(LayerId layer, int64_t now_ns) {
  Add({.begin_ns = stall_begin_ns_,
       .end_ns = now_ns,
       .layer = Narrow(layer.value),
       .kind = TraceSpanKind::kStall});
}

void TimelineRecorder::OnCopyBegin(ExpertKey key, CopyKind /*kind*/, uint64_t /*bytes*/,
                                   int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  copies_.push_back({key, now_ns});
}

void TimelineRecorder::OnCopyEnd(ExpertKey key, CopyKind kind, uint64_t bytes, int64_t now_ns) {
  int64_t begin_ns = now_ns;
  {
    const std::lock_guard lock(mutex_);
    const auto open = std::find_if(copies_.begin(), copies_.end(),
                                   [&key](const OpenCopy& copy) { return copy.key == key; });
    if (open != copies_.end()) {
      begin_ns = open->begin_ns;
      copies_.erase(open);
    }
  }
  Add({.begin_ns = begin_ns,
       .end_ns = now_ns,
       .bytes = bytes,
       .layer = Narrow(key.layer.value),
       .expert = Narrow(key.expert.value),
       .kind =
           kind == CopyKind::kDemand ? TraceSpanKind::kCopyDemand : TraceSpanKind::kCopyPrefetch});
}

void TimelineRecorder::OnStep(int64_t begin_ns, int64_t end_ns, int64_t rows) {
  Add({.begin_ns = begin_ns,
       .end_ns = end_ns,
       .bytes = static_cast<uint64_t>(rows),
       .kind = TraceSpanKind::kStep});
}

void TimelineRecorder::OnSequence(const TimelineSequence& sequence) {
  const std::lock_guard lock(mutex_);
  AddRecord({.begin_ns = sequence.begin_ns,
             .end_ns = sequence.end_ns,
             .bytes = sequence.sequence,
             .kind = kSequenceRecord});
  if (sequence.trace_id.size() != kTraceIdDigits) return;
  const std::string_view digits = sequence.trace_id;
  AddRecord({.begin_ns = FromHex(digits.substr(0, kTraceIdDigits / 2)),
             .end_ns = FromHex(digits.substr(kTraceIdDigits / 2)),
             .bytes = sequence.sequence,
             .kind = kTraceIdRecord});
}

void TimelineRecorder::TakeSpans(std::vector<TimelineSpan>* spans) {
  spans->clear();
  const std::lock_guard lock(mutex_);
  spans->swap(kept_);
}

Result<Timeline> ReadTimeline(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const auto bytes = file.bytes();
  Timeline timeline;
  if (bytes.size() >= sizeof(TimelineHeader)) {
    std::memcpy(&timeline.header, bytes.data(), sizeof(TimelineHeader));
  }
  TimelineHeader& header = timeline.header;
  if (header.magic != kMagic) return InvalidArgument(path + ": not a timeline file");
  if (header.version < 1 || header.version > kVersion ||
      header.span_bytes != sizeof(TimelineSpan)) {
    return InvalidArgument(fmt::format("{}: timeline format version {}, this program reads {}",
                                       path, header.version, kVersion));
  }
  header.host[sizeof(header.host) - 1] = '\0';
  const size_t records = (bytes.size() - sizeof(TimelineHeader)) / sizeof(TimelineSpan);
  for (size_t i = 0; i < records; ++i) {
    TimelineSpan record;
    std::memcpy(&record, bytes.data() + sizeof(TimelineHeader) + i * sizeof(record),
                sizeof(record));
    std::vector<TimelineSequence>& sequences = timeline.sequences;
    if (record.kind == kTraceIdRecord && !sequences.empty() &&
        sequences.back().sequence == record.bytes) {
      sequences.back().trace_id =
          fmt::format("{:016x}{:016x}", static_cast<uint64_t>(record.begin_ns),
                      static_cast<uint64_t>(record.end_ns));
    } else if (record.kind > kSequenceRecord || record.end_ns < record.begin_ns) {
      return InvalidArgument(fmt::format("{}: record {} is damaged", path, i));
    } else if (record.kind == kSequenceRecord) {
      sequences.push_back({record.bytes, record.begin_ns, record.end_ns});
    } else {
      timeline.spans.push_back(record);
    }
  }
  return timeline;
}

}  // namespace expertflow

#include "transport/mpi_wireup.h"

#include <fmt/format.h>
#include <mpi.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "common/check.h"
#include "transport/wire.h"

namespace expertflow {
namespace {

constexpr auto kTestInterval = std::chrono::microseconds(200);

Status FromMpi(int error, std::string_view what) {
  if (error == MPI_SUCCESS) return OkStatus();
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(error, text, &length);
  return Unavailable(fmt::format("{}: {}", what, std::string_view(text, length)));
}

// Waits for a non-blocking collective without spinning: a rank that is late would otherwise cost
// the others a core each.
Status WaitFor(MPI_Request* request, Deadline deadline, std::string_view what) {
  while (true) {
    int done = 0;
    RETURN_IF_ERROR(FromMpi(MPI_Test(request, &done, MPI_STATUS_IGNORE), what));
    if (done != 0) return OkStatus();
    if (deadline.Passed()) {
      return DeadlineExceeded(
          fmt::format("{}: a process of the job did not take part in time", what));
    }
    std::this_thread::sleep_for(kTestInterval);
  }
}

Result<std::vector<Member>> ExchangeOverMpi(int size, const ProcessInfo& self, Deadline deadline) {
  const std::vector<uint8_t> mine = EncodeMessage(self);
  const int mine_bytes = static_cast<int>(mine.size());
  std::vector<int> bytes(size);
  MPI_Request request;
  RETURN_IF_ERROR(FromMpi(
      MPI_Iallgather(&mine_bytes, 1, MPI_INT, bytes.data(), 1, MPI_INT, MPI_COMM_WORLD, &request),
      "wire-up"));
  RETURN_IF_ERROR(WaitFor(&request, deadline, "wire-up"));

  std::vector<int> offsets(size);
  std::exclusive_scan(bytes.begin(), bytes.end(), offsets.begin(), 0);
  std::vector<uint8_t> all(static_cast<size_t>(offsets.back() + bytes.back()));
  RETURN_IF_ERROR(
      FromMpi(MPI_Iallgatherv(mine.data(), mine_bytes, MPI_BYTE, all.data(), bytes.data(),
                              offsets.data(), MPI_BYTE, MPI_COMM_WORLD, &request),
              "wire-up"));
  RETURN_IF_ERROR(WaitFor(&request, deadline, "wire-up"));

  std::vector<Member> members;
  for (int rank = 0; rank < size; ++rank) {
    const auto message =
        DecodeMessage({all.data() + offsets[rank], static_cast<size_t>(bytes[rank])});
    if (!message.ok()) return message.status().WithContext(fmt::format("rank {}", rank));
    const auto* info = std::get_if<ProcessInfo>(&*message);
    if (info == nullptr) {
      return InvalidArgument(fmt::format("rank {} sent {}", rank, MessageName(*message)));
    }
    members.push_back({ProcessId(rank), *info});
  }
  // MPI_Finalize() has no deadline: enter it only together.
  RETURN_IF_ERROR(FromMpi(MPI_Ibarrier(MPI_COMM_WORLD, &request), "wire-up"));
  RETURN_IF_ERROR(WaitFor(&request, deadline, "wire-up"));
  return members;
}

struct Ranks {
  int rank = -1;
  int size = 0;
};

Result<Ranks> InitMpi() {
  int provided = 0;
  RETURN_IF_ERROR(FromMpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided),
                          "cannot start MPI"));
  // The default handler ends the process.
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  Ranks ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &ranks.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks.size);
  return ranks;
}

}  // namespace

// What the two threads hand to each other. Each field is set once.
struct MpiWireUp::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Result<Ranks>> initialised;
  std::optional<std::pair<ProcessInfo, Deadline>> request;
  bool abandoned = false;  // no request will come
  std::optional<Result<std::vector<Member>>> members;

  // REQUIRES: `lock` holds `mutex`. False when the deadline passed first.
  bool Wait(std::unique_lock<std::mutex>* lock, Deadline deadline,
            const std::function<bool()>& condition) {
    return changed.wait_for(*lock, std::chrono::nanoseconds(deadline.RemainingNs()), condition);
  }

  // The MPI thread: MPI allows its calls from the thread that initialised it.
  void Run() {
    Result<Ranks> ranks = InitMpi();
    std::unique_lock lock(mutex);
    initialised = ranks;
    changed.notify_all();
    if (!ranks.ok()) return;
    changed.wait(lock, [this] { return request || abandoned; });
    if (abandoned) return;
    const auto [self, deadline] = *request;
    lock.unlock();
    Result<std::vector<Member>> result = ExchangeOverMpi(ranks->size, self, deadline);
    // After a failure the others may never come to MPI_Finalize().
    if (result.ok()) MPI_Finalize();
    lock.lock();
    members = std::move(result);
    changed.notify_all();
  }
};

Result<std::unique_ptr<MpiWireUp>> MpiWireUp::Create(Deadline deadline) {
  auto shared = std::make_shared<Shared>();
  std::thread([shared] { shared->Run(); }).detach();
  std::unique_lock lock(shared->mutex);
  if (!shared->Wait(&lock, deadline, [&] { return shared->initialised.has_value(); })) {
    return DeadlineExceeded(
        "MPI did not start in time: a process of the job is missing, or mpirun cannot be reached");
  }
  if (!shared->initialised->ok()) return shared->initialised->status();
  lock.unlock();
  return std::unique_ptr<MpiWireUp>(new MpiWireUp(std::move(shared)));
}

MpiWireUp::MpiWireUp(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

MpiWireUp::~MpiWireUp() {
  const std::lock_guard lock(shared_->mutex);
  shared_->abandoned = true;
  shared_->changed.notify_all();
}

Result<std::vector<Member>> MpiWireUp::Exchange(const ProcessInfo& self, Deadline deadline) {
  std::unique_lock lock(shared_->mutex);
  CHECK(!shared_->request);
  shared_->request = {self, deadline};
  shared_->changed.notify_all();
  if (!shared_->Wait(&lock, deadline, [this] { return shared_->members.has_value(); })) {
    return DeadlineExceeded("wire-up: a process of the job did not take part in time");
  }
  return *shared_->members;
}

ProcessId MpiWireUp::self() const {
  const std::lock_guard lock(shared_->mutex);
  return ProcessId((*shared_->initialised)->rank);
}

int MpiWireUp::size() const {
  const std::lock_guard lock(shared_->mutex);
  return (*shared_->initialised)->size;
}

}  // namespace expertflow

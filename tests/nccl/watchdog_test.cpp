// Error texts of the NCCL watchdog if a collective times out, an event fails or a rank aborts. They end with the last
// operations of this rank. CUDA and NCCL are stubs.
#include "comm/nccl/watchdog.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "comm/record/rank_record.h"
#include "support/idle_backend.h"

namespace {

std::atomic<cudaError_t> event_state{cudaErrorNotReady};
std::atomic<ncclResult_t> comm_state{ncclSuccess};
std::atomic<bool> only_idle_fails{false};
int comm_of_test = 0, idle_comm = 0;  // Their addresses stand for communicators.

}  // namespace

extern "C" {
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return *event = nullptr, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return event_state; }
const char* cudaGetErrorString(cudaError_t) { return "a stand-in's error"; }
ncclResult_t ncclCommAbort(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const bool idle = comm == reinterpret_cast<ncclComm_t>(&idle_comm);
  return *state = only_idle_fails && !idle ? ncclSuccess : comm_state.load(), ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) { return "a stand-in's result"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }
}

namespace dtensor::nccl {
namespace {

const std::string kLast = "; last of rank 1: all_gather #1, aten::mm, all_reduce #2";

// A watchdog of rank 1 in its second collective. It lives as long as the process.
Watchdog& watching(std::chrono::milliseconds timeout, bool enqueued = true) {
  static const std::string mm = "aten::mm";
  const auto record = std::make_shared<RankRecord>(1, 2);
  record->note(CollectiveKind::all_gather, 1, nullptr);
  record->note(mm);
  record->note(CollectiveKind::all_reduce, 2, nullptr);
  const auto backend = std::make_shared<test::NoopBackend>(1, std::vector<std::int64_t>{0, 1});
  backend->set_record(record);
  static auto& all = *new std::vector<Watchdog*>;
  auto* watchdog = all.emplace_back(new Watchdog(Communicator(backend), timeout));
  const auto comm = reinterpret_cast<ncclComm_t>(&comm_of_test);
  watchdog->open(comm);
  CollectiveCall call;
  call.kind = CollectiveKind::all_reduce;
  call.dtype = at::kFloat;
  call.sequence = 2;
  const auto operation =
      std::make_shared<Operation>(std::make_shared<EventPool>(), CallDescription(call, at::ones({4}), {}),
                                  std::make_shared<GroupName>(GroupName{"", {0, 1}}));
  operation->comm = comm;
  operation->state = enqueued ? Operation::State::enqueued : Operation::State::waiting;
  watchdog->watch(operation);
  return *watchdog;
}

// Sleeps for `timeout`; the watchdog ends the process first.
void wait_for(std::chrono::milliseconds timeout) {
  watching(timeout);
  std::this_thread::sleep_for(std::chrono::minutes(1));
}

TEST(Watchdog, TimeoutReportsLastOperations) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(wait_for(std::chrono::milliseconds(1)), testing::ExitedWithCode(1),
              std::string("rank 1: timeout after 1 ms: waits in all_reduce #2 \\(sum, Float \\[4\\]\\) on \\{0, 1\\}") +
                  kLast + "\n");
}

// NCCL blocks the host in the first call of a communicator until its peers are connected.
TEST(Watchdog, TimeoutIncludesCallsThatAreNotEnqueued) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto blocked = [] {
    event_state = cudaSuccess;
    watching(std::chrono::milliseconds(1), /*enqueued=*/false);
    std::this_thread::sleep_for(std::chrono::minutes(1));
  };
  EXPECT_EXIT(blocked(), testing::ExitedWithCode(1), "rank 1: timeout after 1 ms: waits in all_reduce #2 ");
}

// std::chrono::milliseconds::max() would overflow as nanoseconds.
TEST(Watchdog, MaximumTimeoutDoesNotExpire) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto fails_later = [] {
    watching(std::chrono::milliseconds::max());
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // The watchdog polls every 50 ms.
    comm_state = ncclRemoteError;
    std::this_thread::sleep_for(std::chrono::minutes(1));
  };
  EXPECT_EXIT(fails_later(), testing::ExitedWithCode(1), "rank 1: a stand-in's result in all_reduce #2 ");
}

// If standard output is a file or a pipe, printed text may still be in the buffer of this process.
TEST(Watchdog, StandardOutputIsFlushedBeforeExit) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto prints = [] {
    dup2(STDERR_FILENO, STDOUT_FILENO);
    std::setvbuf(stdout, nullptr, _IOFBF, 1 << 12);
    std::printf("printed before\n");
    wait_for(std::chrono::milliseconds(1));
  };
  EXPECT_EXIT(prints(), testing::ExitedWithCode(1), "printed before\n");
}

TEST(Watchdog, DeviceAndCommunicatorErrorsReportLastOperations) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto fails = [](cudaError_t event, ncclResult_t comm) {
    event_state = event, comm_state = comm;
    wait_for(std::chrono::minutes(1));
  };
  EXPECT_EXIT(fails(cudaErrorNotReady, ncclRemoteError), testing::ExitedWithCode(1),
              std::string("rank 1: a stand-in's result in all_reduce #2 .*") + kLast);
  EXPECT_EXIT(fails(cudaErrorUnknown, ncclSuccess), testing::ExitedWithCode(1),
              std::string("rank 1: a collective on the GPU: a stand-in's error") + kLast);
}

// The pending operation waits for a peer that has lost another communicator.
TEST(Watchdog, ErrorsOfIdleCommunicatorsAreReported) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto fails = [] {
    only_idle_fails = true, comm_state = ncclRemoteError;
    watching(std::chrono::minutes(1)).open(reinterpret_cast<ncclComm_t>(&idle_comm));
    std::this_thread::sleep_for(std::chrono::minutes(1));
  };
  EXPECT_EXIT(fails(), testing::ExitedWithCode(1), std::string("rank 1: a stand-in's result in NCCL") + kLast);
}

TEST(Watchdog, AbortOfAnotherRankIsThrownWithLastOperations) {
  Watchdog& watchdog = watching(std::chrono::minutes(1));
  watchdog.check();
  watchdog.fail("rank 0 aborted: out of data");
  try {
    watchdog.check();
    FAIL() << "no error";
  } catch (const CommError& error) {
    EXPECT_EQ(error.what(), std::string("rank 0 aborted: out of data") + kLast);
  }
}

}  // namespace
}  // namespace dtensor::nccl

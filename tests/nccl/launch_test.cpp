// Number of ranks that `--backend nccl` starts in one process. CUDA and the backend are stubs for a machine with three
// GPUs.
#include "dtensor/launch.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <atomic>
#include <cstdlib>

#include "comm/nccl/backend.h"
#include "support/idle_backend.h"

extern "C" cudaError_t cudaGetDeviceCount(int* count) { return *count = 3, cudaSuccess; }
extern "C" ncclResult_t ncclGetVersion(int* version) { return *version = 23000, ncclSuccess; }

namespace dtensor::nccl {
namespace {

std::atomic<int> devices_used{0};  // One bit for each device.
std::atomic<int> own_streams{0};

}  // namespace

std::shared_ptr<CommBackend> make_world_backend(const Communicator& cpu, int device, RunOptions) {
  devices_used |= 1 << device;
  auto backend = std::make_shared<test::NoopBackend>(cpu.rank(), cpu.ranks());
  backend->set_record(backend_of(cpu)->shared_record());
  return backend;
}

void run_on_own_stream(int, const std::function<void()>& body) {
  ++own_streams;
  body();
}

namespace {

struct Launched {
  int status = -1, ranks = 0, devices = 0;
  std::string error;
};

Launched launched(std::vector<std::string> args) {
  for (const char* name : {"DTENSOR_RANK", "DTENSOR_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "RANK",
                           "PMI_RANK", "PMI_SIZE", "WORLD_SIZE", "SLURM_PROCID"}) {
    unsetenv(name);  // Hides the launcher of the test run.
  }
  args.insert(args.begin(), {"program", "--backend", "nccl"});
  std::vector<char*> argv;
  for (auto& a : args) argv.push_back(a.data());
  Launched out;
  std::atomic<int> ranks{0};
  devices_used = 0;
  ::testing::internal::CaptureStderr();
  out.status =
      launch(static_cast<int>(argv.size()), argv.data(), [&](const Communicator& world) { ranks = world.size(); });
  out.error = ::testing::internal::GetCapturedStderr();
  out.ranks = ranks, out.devices = devices_used;
  return out;
}

TEST(NcclLaunch, RunsRequestedNumberOfRanks) {
  for (const auto& [args, ranks] : {std::pair<std::vector<std::string>, int>{{"--ranks", "2"}, 2},
                                    {{"--mesh", "tp=2"}, 2},
                                    {{"--ranks=1"}, 1},
                                    {{}, 3}}) {
    const auto out = launched(args);
    EXPECT_EQ(out.status, 0) << out.error;
    EXPECT_EQ(out.ranks, ranks);
    EXPECT_EQ(out.devices, (1 << ranks) - 1);
  }
}

TEST(NcclLaunch, RefusesMoreRanksThanGpus) {
  const auto out = launched({"--ranks", "4"});
  EXPECT_EQ(out.status, 2);
  EXPECT_EQ(out.ranks, 0);
  EXPECT_EQ(out.error, "nccl: expected one GPU per rank, got 4 ranks and 3 GPUs\n");
}

TEST(NcclLaunch, RanksShareGpusIfNcclPermitsIt) {
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  const auto out = launched({"--ranks", "4"});
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
  EXPECT_EQ(out.status, 0) << out.error;
  EXPECT_EQ(out.ranks, 4);
  EXPECT_EQ(out.devices, 0b111);
  EXPECT_EQ(own_streams, 4);
}

}  // namespace
}  // namespace dtensor::nccl

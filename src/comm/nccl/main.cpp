// One rank of a launched program on a GPU: a process of torchrun or Slurm (NCCL ids over sockets), a process of mpirun
// (ids over MPI), or a thread of a single process. Registers itself when the library is loaded.
#include <ATen/ATen.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "comm/error_messages.h"
#include "comm/launch/launchers.h"
#include "comm/nccl/backend.h"
#include "comm/nccl/error_checks.h"
#include "dtensor/launch.h"

namespace dtensor {
namespace nccl {
namespace {

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

// The GPU of this rank: its number among the ranks of its host, modulo the visible GPUs. Collective. All ranks throw if
// one has no GPU.
int local_device(const Communicator& cpu) {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  const auto host = static_cast<std::int64_t>(std::hash<std::string_view>()(name));
  std::vector<at::Tensor> of_ranks;
  for (int rank = 0; rank < cpu.size(); ++rank) of_ranks.push_back(at::empty({2}, at::kLong));
  const std::int64_t devices = device_count();
  cpu.all_gather(of_ranks, at::tensor({host, devices}, at::kLong)).wait();
  std::int64_t before = 0;
  for (int rank = 0; rank < cpu.size(); ++rank) {
    const auto* of = of_ranks[static_cast<std::size_t>(rank)].const_data_ptr<std::int64_t>();
    TORCH_CHECK(of[1] > 0, "nccl_communicator: expected a GPU for each rank, but CUDA finds none for rank ", rank,
                "; check nvidia-smi and CUDA_VISIBLE_DEVICES on its host, or use a mesh of CPUs");
    if (rank < cpu.rank() && of[0] == host) ++before;
  }
  return static_cast<int>(before % devices);
}

// Whether NCCL lets ranks share a GPU, for tests on few GPUs.
bool can_share_devices() {
  constexpr int kFirstVersion = 23000;
  const char* enabled = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  int version = 0;
  return enabled != nullptr && std::string_view(enabled) == "1" && ncclGetVersion(&version) == ncclSuccess &&
         version >= kFirstVersion;
}

int refuse(const LauncherEnvironment& environment, const std::string& why) {
  if (environment.rank == 0) std::fprintf(stderr, "nccl: %s\n", why.c_str());
  return 2;
}

Communicator communicator(const Communicator& cpu, int device, RunOptions options) {
  return Communicator(make_world_backend(cpu, device < 0 ? local_device(cpu) : device, options));
}

int run(int argc, char** argv, const std::function<void(Communicator)>& fn, RunOptions options,
        const LauncherEnvironment& environment) {
  const int devices = device_count();
  if (devices == 0) return refuse(environment, "this machine has no GPU that CUDA can use");
  if (environment.mpi || environment.size > 1) {
    const ProcessMain over = environment.mpi ? mpi_main() : socket_main();
    if (over == nullptr) return refuse(environment, "started by mpirun, but this build has no MPI");
    const auto body = [&](Communicator cpu) { fn(communicator(cpu, -1, options)); };
    return over(argc, argv, body, options, environment);
  }
  const int ranks = environment.threads > 0 ? environment.threads : devices;
  if (ranks > devices && !can_share_devices()) {
    return refuse(environment, "expected one GPU per rank, got " + std::to_string(ranks) + " ranks and " +
                                   std::to_string(devices) + " GPUs");
  }
  try {
    const auto body = [&](const Communicator& cpu) {
      const int device = cpu.rank() % devices;
      const Communicator world = communicator(cpu, device, options);
      // On a common stream, a rank would wait for the work of another rank that is queued behind its own.
      ranks > devices ? run_on_own_stream(device, [&] { fn(world); }) : fn(world);
    };
    run_local(ranks, body, options);
    return 0;
  } catch (...) {
    print_failure(0, current_exception_text(), current_exception_trace());
    return 1;
  }
}

[[maybe_unused]] const bool kRegistered = (register_nccl({&run, &communicator}), true);

}  // namespace
}  // namespace nccl
}  // namespace dtensor

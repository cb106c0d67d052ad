// This program replaces pwrite and pread.
#include "faults/disk_mpi.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "dtensor/checkpoint.h"
#include "dtensor/dtensor.h"

namespace {

enum class Fault { none, stop, slow };
std::atomic<Fault> fault_of_next_transfer{Fault::none};

constexpr unsigned kStopSeconds = 5;
constexpr std::chrono::seconds kSlow{3};  // more than the timeout

// Continued later, so that the launcher need not kill it.
void stop_this_process() {
  if (fork() == 0) {
    for (int file = 0; file < 3; ++file) ::close(file);
    ::sleep(kStopSeconds);
    ::kill(getppid(), SIGCONT);
    ::_exit(0);
  }
  ::raise(SIGSTOP);
}

void begin_transfer() {
  const Fault fault = fault_of_next_transfer.exchange(Fault::none);
  if (fault == Fault::stop) stop_this_process();
  if (fault == Fault::slow) std::this_thread::sleep_for(kSlow);
}

}  // namespace

extern "C" ssize_t pwrite(int file, const void* data, std::size_t bytes, off_t offset) {
  begin_transfer();
  return ::syscall(SYS_pwrite64, file, data, bytes, offset);
}

extern "C" ssize_t pread(int file, void* data, std::size_t bytes, off_t offset) {
  begin_transfer();
  return ::syscall(SYS_pread64, file, data, bytes, offset);
}

namespace dtensor::test {
namespace {

StateTensors state(const DeviceMesh& mesh, double value) {
  return {{"split", distribute_tensor(at::full({12, 3}, value), mesh, {Shard(0)})},
          {"replicated", distribute_tensor(at::full({5}, value), mesh, {Replicate()})}};
}

}  // namespace

void run_disk_fault(const Communicator& world, const std::string& fault, const std::string& call,
                    const std::string& folder) {
  const auto mesh = init_device_mesh(world, at::kCPU, {world.size()});
  const StateTensors saved = state(mesh, 3), loaded = state(mesh, 0);
  if (call == "load") save_state(folder, world, saved);
  if (world.rank() == 1) fault_of_next_transfer = fault == "stop" ? Fault::stop : Fault::slow;
  if (call == "save") save_state(folder, world, saved);
  if (call == "save_async") save_state_async(folder, world, saved).wait();
  if (call == "load") load_state(folder, world, loaded);
  TORCH_CHECK(fault_of_next_transfer == Fault::none, call, " made no transfer on rank ", world.rank());
  if (call != "load") load_state(folder, world, loaded);
  for (const auto& [name, tensor] : loaded) TORCH_CHECK(DTensor(tensor).full_tensor().eq(3).all().item<bool>(), name);
}

}  // namespace dtensor::test

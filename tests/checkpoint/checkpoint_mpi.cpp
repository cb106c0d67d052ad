// Checkpoints of MPI ranks: all ranks save, meshes of all or some ranks load, and the disk of one rank is full.
#include <ATen/ATen.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstdio>
#include <filesystem>

#include "dtensor/checkpoint.h"
#include "dtensor/launch.h"
#include "dtensor/tensor.h"

namespace {

using namespace dtensor;

std::string folder_of(const Communicator& world) {
  return (std::filesystem::temp_directory_path() / ("dtensor_checkpoint_mpi_" + std::to_string(world.size()))).string();
}

at::Tensor unsharded() { return at::arange(601 * 300, at::kFloat).view({601, 300}); }

StateTensors state(const Communicator& world, const Placements& placements, double factor) {
  const DeviceMesh all = init_device_mesh(world, at::kCPU, {world.size()});
  const DeviceMesh last = device_mesh(world, at::kCPU, {world.size() - 1}, {1});
  return {{"w", distribute_tensor(unsharded() * factor, all, placements)},
          {"far", distribute_tensor(unsharded() * factor, last, {Shard(1)})},
          {"regular", at::full({3}, factor)}};
}

void expect_values(const StateTensors& tensors, double factor) {
  for (const auto& [name, t] : tensors) {
    if (is_dtensor(t) && !DTensor(t).mesh().is_member()) continue;
    const at::Tensor got = is_dtensor(t) ? DTensor(t).full_tensor() : t;
    TORCH_CHECK(at::equal(got, is_dtensor(t) ? unsharded() * factor : at::full({3}, factor)), name, " is wrong");
  }
}

void check_layouts(const Communicator& world, const std::string& folder) {
  const std::vector<Placements> layouts = {{Shard(0)}, {Shard(1)}, {StridedShard(0, 3)}, {Replicate()}};
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    save_state(folder, world, state(world, layouts[i], 2), {{"step", std::int64_t{3}}});
    const auto targets = state(world, layouts[(i + 1) % layouts.size()], 0);
    TORCH_CHECK(std::get<std::int64_t>(load_state(folder, world, targets).at("step")) == 3, "step");
    expect_values(targets, 2);
  }
}

// Rank 1 cannot write beyond 64 KiB of a file: its writes fail, those of the other ranks do not.
void check_full_disk(const Communicator& world, const std::string& folder) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  if (world.rank() == 1) {
    const rlimit small{64 << 10, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  std::string error;
  try {
    save_state(folder, world, state(world, {Shard(0)}, 5));
  } catch (const c10::Error& e) {
    error = e.what_without_backtrace();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  TORCH_CHECK(error.find("rank 1: cannot write") != std::string::npos, "expected an error of rank 1, got on rank ",
              world.rank(), ": ", error);
  TORCH_CHECK(error.find("rank 0") == std::string::npos, error);
  const auto targets = state(world, {Shard(1)}, 0);
  load_state(folder, world, targets);
  expect_values(targets, 2);  // the previous checkpoint
}

void check(const Communicator& world) {
  const std::string folder = folder_of(world);
  check_layouts(world, folder);
  check_full_disk(world, folder);
  world.barrier();
  if (world.rank() != 0) return;
  TORCH_CHECK(!std::filesystem::exists(folder + ".saving"), "the temporary folder is still there");
  std::filesystem::remove_all(folder);
  std::printf("ok checkpoints of %d ranks (%s)\n", world.size(), world.backend_name());
}

}  // namespace

int main(int argc, char** argv) { return dtensor::launch(argc, argv, check); }

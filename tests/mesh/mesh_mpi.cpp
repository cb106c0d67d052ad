// Meshes and random numbers on processes: collectives along every line of a mesh, and tensors equal to those of one
// rank.
#include <gtest/gtest.h>

#include "dtensor/dtensor.h"

namespace dtensor {
namespace {

Communicator world;

std::vector<std::int64_t> gathered_ranks(const Communicator& comm) {
  std::vector<at::Tensor> all;
  for (int i = 0; i < comm.size(); ++i) all.push_back(at::empty({1}, at::kLong));
  comm.all_gather(all, at::full({1}, std::int64_t{world.rank()}, at::kLong)).wait();
  std::vector<std::int64_t> ranks;
  for (const auto& t : all) ranks.push_back(t.item<std::int64_t>());
  return ranks;
}

std::vector<DeviceMesh> meshes() {
  const std::int64_t n = world.size();
  return {init_device_mesh(world, at::kCPU, {n}, {"dp"}), init_device_mesh(world, at::kCPU, {n / 2, 2}, {"dp", "tp"}),
          init_device_mesh(world, at::kCPU, {2, n / 2}, {"dp", "tp"})};
}

TEST(MeshOfProcesses, EveryLineCommunicates) {
  for (const auto& mesh : meshes()) {
    for (const auto& name : mesh.names()) EXPECT_EQ(gathered_ranks(mesh.communicator(name)), mesh[name].ranks());
    EXPECT_EQ(gathered_ranks(mesh.flatten().communicator()), mesh.ranks());
  }
}

TEST(MeshOfProcesses, RanksOutsideTakeNoPart) {
  const auto first = init_device_mesh(world, at::kCPU, {1}, {"alone"});
  EXPECT_EQ(first.is_member(), world.rank() == 0);
  if (world.rank() == 0) {
    EXPECT_EQ(first.communicator().size(), 1);
  } else {
    EXPECT_THROW(first.communicator(), c10::Error);
  }
}

// Several kinds of random tensors in one program, as full tensors.
std::vector<at::Tensor> draws(const DeviceMesh& mesh, const Placements& placements) {
  manual_seed(mesh, 17);
  const DTensor normal = randn({9, 7}, mesh, placements);
  const DTensor dropped(at::dropout(normal, 0.3, true));
  const DTensor weights = rand({5, 11}, mesh, placements);
  return {normal.full_tensor(), dropped.full_tensor(), DTensor(at::bernoulli(weights)).full_tensor(),
          weights.full_tensor()};
}

TEST(RandomOnProcesses, SameAsOnOneRank) {
  std::vector<at::Tensor> expected;
  run_local(1,
            [&](Communicator one) { expected = draws(init_device_mesh(one, at::kCPU, {1}, {"dp"}), {Replicate()}); });
  for (const auto& mesh : meshes()) {
    for (const auto& p : {Replicate(), Shard(0), Shard(1)}) {
      const auto actual = draws(mesh, Placements(static_cast<std::size_t>(mesh.ndim()), p));
      for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(actual[i].equal(expected[i])) << mesh.str() << i;
    }
  }
}

}  // namespace
}  // namespace dtensor

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  int failed = 0;
  const int status = dtensor::launch(argc, argv, [&](const dtensor::Communicator& communicator) {
    dtensor::world = communicator;
    failed = RUN_ALL_TESTS();
    dtensor::world = {};
  });
  return status != 0 ? status : failed;
}

// Device meshes on thread ranks: coordinates, shared objects, and the ranks of each communicator.
#include "dtensor/mesh.h"

#include <gtest/gtest.h>

#include <mutex>
#include <numeric>

#include "dtensor/random.h"
#include "mesh/mesh_impl.h"
#include "mesh/world_state.h"
#include "random/state.h"
#include "support/errors.h"

namespace dtensor {
namespace {

using test::error_of;

#define EXPECT_ERROR(expression, part)                                           \
  EXPECT_NE(error_of([&] { (void)(expression); }).find(part), std::string::npos) \
      << error_of([&] { (void)(expression); })

std::vector<std::int64_t> gathered_ranks(const Communicator& comm, std::int64_t world_rank) {
  std::vector<at::Tensor> all;
  for (int i = 0; i < comm.size(); ++i) all.push_back(at::empty({1}, at::kLong));
  comm.all_gather(all, at::full({1}, world_rank, at::kLong)).wait();
  std::vector<std::int64_t> ranks;
  for (const auto& t : all) ranks.push_back(t.item<std::int64_t>());
  return ranks;
}

TEST(DeviceMesh, NativeParallelismCube) {
  run_local(8, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2, 2, 2}, {"replicate", "shard", "tp"});
    EXPECT_EQ(mesh.ndim(), 3);
    EXPECT_EQ(mesh.size("tp"), 2);
    EXPECT_EQ(mesh.local_rank("replicate"), world.rank() / 4);
    EXPECT_EQ(*mesh.coordinate(),
              (std::vector<std::int64_t>{world.rank() / 4, world.rank() / 2 % 2, world.rank() % 2}));
    EXPECT_EQ(mesh.coordinate_of(6), (std::vector<std::int64_t>{1, 1, 0}));
    EXPECT_FALSE(mesh["tp"].coordinate_of(world.rank() ^ 2).has_value());
    const auto dp = mesh[{"replicate", "shard"}];
    const auto tp = mesh["tp"];
    if (world.rank() == 0) {
      EXPECT_EQ(dp.ranks(), (std::vector<std::int64_t>{0, 2, 4, 6}));
      EXPECT_EQ(dp.shape(), (std::vector<std::int64_t>{2, 2}));
      EXPECT_EQ(tp.ranks(), (std::vector<std::int64_t>{0, 1}));
    }
    EXPECT_EQ(gathered_ranks(dp.communicator(), world.rank()), dp.ranks());
    EXPECT_EQ(gathered_ranks(tp.communicator(), world.rank()), tp.ranks());
    EXPECT_EQ(gathered_ranks(mesh.communicator("shard"), world.rank()), mesh["shard"].ranks());
  });
}

TEST(DeviceMesh, EveryLineOfEveryMeshCommunicates) {
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{1}, {2}, {3}, {2, 2}, {2, 3}, {2, 1, 2}, {2, 2, 2}}) {
    const auto n = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    run_local(static_cast<int>(n), [&](Communicator world) {
      const auto mesh = init_device_mesh(world, at::kCPU, shape);
      for (AxisMask mask = 0; mask < (1U << shape.size()); ++mask) {
        const auto& comm = impl_of(mesh)->communicator(mask);
        const auto ranks = gathered_ranks(comm, world.rank());
        EXPECT_EQ(ranks, comm.ranks());
        EXPECT_EQ(ranks[comm.rank()], world.rank());
        EXPECT_EQ(&comm, &impl_of(mesh)->communicator(mask));
      }
    });
  }
}

TEST(DeviceMesh, PermutedRanksGiveCommunicatorsInMeshOrder) {
  run_local(4, [](Communicator world) {
    const auto mesh = device_mesh(world, at::kCPU, {3, 1, 0, 2}, {2, 2}, {"a", "b"});
    EXPECT_EQ(gathered_ranks(mesh.communicator(), world.rank()), (std::vector<std::int64_t>{3, 1, 0, 2}));
    const bool first_row = world.rank() % 2 == 1;
    EXPECT_EQ(gathered_ranks(mesh.communicator("b"), world.rank()),
              first_row ? (std::vector<std::int64_t>{3, 1}) : (std::vector<std::int64_t>{0, 2}));
  });
}

TEST(DeviceMesh, EqualMeshesAreOneObject) {
  run_local(4, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"dp", "tp"});
    EXPECT_EQ(impl_of(mesh), impl_of(init_device_mesh(world, at::kCPU, {2, 2}, {"dp", "tp"})));
    EXPECT_EQ(impl_of(mesh["tp"]), impl_of(mesh["tp"]));
    EXPECT_EQ(impl_of(mesh.flatten("all").view({2, 2}, {"dp", "tp"})), impl_of(mesh));
    EXPECT_EQ(impl_of(mesh[{"dp", "tp"}]), impl_of(mesh));
    EXPECT_NE(mesh, init_device_mesh(world, at::kCPU, {2, 2}, {"dp", "cp"}));
    EXPECT_NE(mesh, init_device_mesh(world, at::kCPU, {4, 1}, {"dp", "tp"}));
    EXPECT_NE(mesh, (mesh[{"tp", "dp"}]));
    EXPECT_NE(mesh, DeviceMesh());
    EXPECT_EQ(DeviceMesh(), DeviceMesh());
  });
}

TEST(DeviceMesh, EqualAcrossThreadRanks) {
  std::mutex mutex;
  std::vector<DeviceMesh> meshes;
  run_local(2, [&](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"dp"});
    const std::lock_guard lock(mutex);
    meshes.push_back(mesh);
  });
  EXPECT_EQ(meshes[0], meshes[1]);
  EXPECT_NE(impl_of(meshes[0]), impl_of(meshes[1]));
}

TEST(DeviceMesh, CommunicatorsAreSharedByRankSet) {
  run_local(4, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {1, 2, 2}, {"pp", "dp", "tp"});
    EXPECT_EQ(mesh.communicator("tp"), mesh["tp"].communicator());
    EXPECT_EQ(mesh.communicator("tp"), (mesh[{"pp", "tp"}]).flatten("x").communicator("x"));
    EXPECT_EQ(mesh.communicator(), world);
    EXPECT_EQ(mesh.communicator("tp").label(), "tp");
    EXPECT_EQ(mesh["tp"].flatten("x").communicator().label(), "x");
    EXPECT_EQ(impl_of(mesh)->communicator(0b110).label(), "dp_tp");
    EXPECT_EQ(mesh.communicator("pp").size(), 1);
  });
}

TEST(DeviceMesh, RanksOutsideTakeNoPart) {
  run_local(3, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2, 1}, {"dp", "tp"});
    EXPECT_EQ(mesh.is_member(), world.rank() < 2);
    EXPECT_EQ(mesh["dp"].is_member(), world.rank() < 2);  // ranks outside can slice as well
    EXPECT_EQ(mesh.flatten().size(), 2);
    EXPECT_NE(mesh.diagram().find("dp=1"), std::string::npos);
    if (world.rank() == 2) {
      EXPECT_FALSE(mesh.coordinate().has_value());
      EXPECT_ERROR(mesh.communicator(), "rank 2 is not in DeviceMesh(cpu, dp=2, tp=1, ranks=[0, 1])");
      EXPECT_ERROR(mesh.communicator("dp"), "has no communicator there");
      EXPECT_ERROR(mesh.local_rank("dp"), "rank 2 is not in DeviceMesh(cpu, dp=2, tp=1, ranks=[0, 1])");
    } else {
      EXPECT_EQ(gathered_ranks(mesh.communicator("dp"), world.rank()), (std::vector<std::int64_t>{0, 1}));
    }
  });
}

TEST(DeviceMesh, InvalidMeshesAreErrors) {
  EXPECT_ERROR(DeviceMesh().size(), "this DeviceMesh is empty");
  EXPECT_EQ(DeviceMesh().str(), "DeviceMesh()");
  EXPECT_ERROR(init_device_mesh(Communicator(), at::kCPU, {1}), "needs a world communicator");
  run_local(2, [](Communicator world) {
    EXPECT_ERROR(init_device_mesh(world, at::kCPU, {2, 2}), "needs 4 ranks, but the world has 2");
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"dp"});
    EXPECT_ERROR(mesh["tp"], "no dimension 'tp'; its dimensions are: dp");
    EXPECT_ERROR(mesh.size(1), "out of range");
    EXPECT_ERROR(mesh.communicator(1), "out of range");
    EXPECT_ERROR(mesh.view({3}), "cannot be viewed as [3] (3 ranks)");
  });
}

TEST(WorldState, HasTheLifetimeOfTheWorld) {
  std::weak_ptr<CommBackend> backend;
  std::weak_ptr<WorldState> state;
  run_local(1, [&](Communicator world) {
    {
      const auto mesh = init_device_mesh(world, at::kCPU, {1});
      (void)mesh.communicator(0);
      manual_seed(mesh, 5);
    }
    EXPECT_EQ(get_rng_state(init_device_mesh(world, at::kCPU, {1})).seed, 5U);  // no mesh existed in between
    state = WorldState::of(world);
    backend = backend_of(world);
  });
  EXPECT_TRUE(backend.expired());
  run_local(1, [&](Communicator world) {  // the next world releases the state
    EXPECT_NE(get_rng_state(init_device_mesh(world, at::kCPU, {1})).seed, 5U);
  });
  EXPECT_TRUE(state.expired());
}

TEST(WorldState, OneCounterForAllMeshesOfAWorld) {
  run_local(2, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2, 1}, {"dp", "tp"});
    const auto tp = mesh["tp"];
    manual_seed(mesh, 9);
    EXPECT_EQ(get_rng_state(tp), (RngState{9, 0}));
    EXPECT_EQ(next_random_key(*impl_of(tp)).op, 0U);
    EXPECT_EQ(next_random_key(*impl_of(mesh)).op, 1U);
    const auto saved = get_rng_state(mesh);
    EXPECT_EQ(saved, (RngState{9, 2}));
    (void)next_random_key(*impl_of(mesh));
    set_rng_state(tp, saved);
    const auto key = next_random_key(*impl_of(mesh));
    EXPECT_EQ(key.seed, 9U);
    EXPECT_EQ(key.op, 2U);
  });
  EXPECT_ERROR(manual_seed(DeviceMesh(), 1), "got an empty DeviceMesh");
}

}  // namespace
}  // namespace dtensor

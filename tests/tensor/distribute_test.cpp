// distribute_tensor: every rank passes the full tensor, and the result is one DTensor.
#include <atomic>

#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

at::Tensor of_rank(const at::Tensor& unsharded, const DeviceMesh& mesh) {
  return mesh.world().rank() == 0 ? unsharded.clone() : unsharded + static_cast<double>(mesh.world().rank());
}

TEST(Distribute, DifferentValuesAreReplacedByThoseOfTheFirstRank) {
  for (const auto& shape : mesh_shapes()) {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      Draw draw(seed);
      const auto unsharded = draw.normal(draw.sizes(draw.integer(0, 3), 0, 9));
      on_mesh(shape, [&](const DeviceMesh& mesh) {
        Draw mine(seed);
        const auto x = distribute_tensor(of_rank(unsharded, mesh), mesh, mine.placements(mesh, unsharded.dim()));
        expect_close(x, unsharded, c10::str("seed ", seed, " ", x.spec_str()), 1e-12);
      });
    }
  }
}

// All threads of the process share one generator, so thread ranks draw different numbers from it.
TEST(Distribute, RandomNumbersDrawnByEachRankBecomeOneTensor) {
  on_mesh({2, 2}, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(at::randn({64, 32}), mesh, {Replicate(), Shard(1)});
    const auto full = x.full_tensor();
    auto all = at::empty({4, 64, 32});
    mesh.communicator().all_gather(all.unbind(0), full).wait();
    for (int rank = 1; rank < 4; ++rank) EXPECT_TRUE(all[rank].equal(all[0])) << rank;
  });
}

TEST(Distribute, GradientsReachTheTensorOfEachRank) {
  on_mesh({3}, [](const DeviceMesh& mesh) {
    auto mine = of_rank(at::arange(10, at::kDouble).reshape({5, 2}), mesh).requires_grad_();
    const auto x = distribute_tensor(mine, mesh, {Shard(0)});
    (x * x).sum().backward();
    expect_close(mine.grad(), 2 * x.full_tensor().detach(), "gradient", 1e-12);
  });
}

TEST(Distribute, SizesThatDifferAreAnErrorOnEveryRank) {
  std::atomic<int> errors{0};
  on_mesh({3}, [&](const DeviceMesh& mesh) {
    try {
      distribute_tensor(at::zeros({mesh.world().rank() == 1 ? 4 : 3, 2}), mesh, {Shard(0)});
    } catch (const c10::Error& e) {
      EXPECT_NE(std::string(e.what()).find("rank 1: Float [4, 2]"), std::string::npos) << e.what();
      ++errors;
    }
  });
  EXPECT_EQ(errors, 3);
}

TEST(Distribute, ManyDimensionsRoundTrip) {
  for (const std::int64_t ndim : {24, 25, 26, 40, 64}) {
    Shape sizes(static_cast<std::size_t>(ndim), 1);
    sizes.front() = 3;
    sizes.back() = 4;
    const auto unsharded = at::arange(12, at::kDouble).view(sizes);
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      for (const auto& p : {Replicate(), Shard(0), Shard(ndim - 1)}) {
        const auto x = distribute_tensor(of_rank(unsharded, mesh), mesh, {p});
        EXPECT_TRUE(x.full_tensor().equal(unsharded)) << x.spec_str();
        EXPECT_EQ(DTensor::from_local(x.to_local(), mesh, {p}).sizes(), unsharded.sizes());
      }
    });
  }
}

TEST(Distribute, TooManyDimensionsAreAnErrorOnEveryRank) {
  std::atomic<int> errors{0};
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto error = error_of(
        [&] { distribute_tensor(at::zeros(Shape(mesh.world().rank() == 1 ? 70 : 3, 1)), mesh, {Replicate()}); });
    EXPECT_NE(error.find("got 70 on rank 1"), std::string::npos) << error;
    ++errors;
  });
  EXPECT_EQ(errors, 2);
}

TEST(Distribute, DifferentDtypesAreReported) {
  std::atomic<int> errors{0};
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    try {
      distribute_tensor(at::zeros({2}, mesh.world().rank() == 1 ? at::kDouble : at::kFloat), mesh, {Shard(0)});
    } catch (const c10::Error& e) {
      EXPECT_NE(std::string(e.what()).find("rank 0: Float [2], rank 1: Double [2]"), std::string::npos) << e.what();
      ++errors;
    }
  });
  EXPECT_EQ(errors, 2);
}

TEST(Distribute, LocalReplicasOfDifferentSizesAreAnErrorOnEveryRank) {
  std::atomic<int> errors{0};
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    try {
      DTensor::from_local(at::zeros({mesh.world().rank() + 1, 2}), mesh, {Replicate()});
    } catch (const c10::Error& e) {
      EXPECT_NE(std::string(e.what()).find("rank 1: Float [2, 2]"), std::string::npos) << e.what();
      ++errors;
    }
  });
  EXPECT_EQ(errors, 2);
}

// Gradients of autograd may be zero tensors without memory.
TEST(Distribute, ZerosWithoutMemory) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const Placement& p : {Replicate(), Shard(0), Partial()}) {
      const auto x = distribute_tensor(at::_efficientzerotensor({4}, at::kDouble), mesh, {p});
      EXPECT_TRUE(at::equal(x.full_tensor(), at::zeros({4}, at::kDouble))) << p;
    }
  });
}

// They have an empty local tensor, as after distribute_tensor.
TEST(Distribute, RanksOutsideTheMeshGetAHandle) {
  run_local(3, [](const Communicator& world) {
    const DeviceMesh pair = device_mesh(world, at::kCPU, {2, 0}, {2});
    const auto unsharded = at::arange(5, at::kDouble);
    const auto given = world.rank() == 0 ? unsharded : at::zeros({5}, at::kDouble);
    const auto x = distribute_tensor_from(given, pair, {Shard(0)}, 0);
    EXPECT_EQ(x.sizes(), unsharded.sizes());
    EXPECT_FALSE(pair.is_member() && !at::equal(x.full_tensor(), unsharded));
    const auto everywhere = x.redistribute(init_device_mesh(world, at::kCPU, {3}), {Replicate()});
    EXPECT_TRUE(at::equal(everywhere.to_local(), unsharded));
  });
}

TEST(Distribute, RaggedSizesThatDoNotMatchAreAnErrorOnEveryRank) {
  std::atomic<int> errors{0};
  run_local(3, [&](const Communicator& world) {
    const DeviceMesh pair = device_mesh(world, at::kCPU, {0, 1}, {2});
    const auto error = error_of([&] { distribute_tensor(at::ones({5}), pair, {RaggedShard(0, {1, 3})}); });
    errors += error.find("expected their sum 4 as the size of the dimension, got 5") != std::string::npos ? 1 : 0;
  });
  EXPECT_EQ(errors, 3);
}

}  // namespace
}  // namespace dtensor::test

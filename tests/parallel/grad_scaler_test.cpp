// Loss scaling over several meshes: all ranks skip the same steps.
#include <gtest/gtest.h>

#include <cmath>

#include "dtensor/dtensor.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace {

using namespace dtensor;

TEST(GradScaler, SkipsTheSameStepsOnEveryRankOfEveryMesh) {
  run_local(4, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"dp", "tp"});
    const at::Tensor a = distribute_tensor(at::ones({5, 3}), mesh, {Shard(0), Shard(1)}).requires_grad_();
    const at::Tensor b = distribute_tensor(at::ones({3}), mesh["tp"], {Shard(0)}).requires_grad_();
    const at::Tensor c = at::ones({2}).requires_grad_();
    const std::vector<at::Tensor> all = {b, c, a};
    GradScaler scaler({.init_scale = 8, .growth_interval = 2});
    int steps = 0;
    const auto round = [&](double poison) {
      for (at::Tensor p : all) p.mutable_grad() = p.detach() * 16;
      if (poison != 0 && world.rank() == 3) DTensor(a.grad()).to_local().fill_(poison);
      const bool stepped = scaler.step(all, [&] { ++steps; });
      if (stepped) {
        for (const at::Tensor& p : all) test::expect_close(p.grad(), at::full(p.sizes(), 2.0, at::kFloat), "unscaled");
      }
      scaler.update();
      return stepped;
    };
    EXPECT_TRUE(round(0));
    EXPECT_EQ(scaler.get_scale(), 8);
    EXPECT_FALSE(round(std::numeric_limits<double>::infinity()));
    EXPECT_EQ(scaler.get_scale(), 4);
    EXPECT_FALSE(round(std::nan("")));
    EXPECT_EQ(scaler.get_scale(), 2);
    scaler.set_state({8, 0});
    EXPECT_TRUE(round(0));
    EXPECT_TRUE(round(0));
    EXPECT_EQ(scaler.get_scale(), 16);
    EXPECT_EQ(steps, 3);
    scaler.unscale_(all);
    EXPECT_ANY_THROW(scaler.unscale_(all));
    const at::Tensor half = distribute_tensor(at::ones({}, at::kHalf), mesh, {Replicate(), Replicate()});
    EXPECT_EQ(GradScaler().scale(half).scalar_type(), at::kFloat);
  });
}

// Rank 0 shares a mesh with 1, 1 with 2, 2 with 3: an overflow on rank 3 reaches rank 0 over two other ranks.
TEST(GradScaler, OverflowPropagatesAlongAChainOfMeshes) {
  run_local(4, [](Communicator world) {
    std::vector<at::Tensor> chain;
    for (std::int64_t first = 0; first < 3; ++first) {
      const DeviceMesh mesh = device_mesh(world, at::kCPU, {first, first + 1}, {2});
      at::Tensor p = distribute_tensor(at::ones({4}), mesh, {Shard(0)}).requires_grad_();
      p.mutable_grad() = p.detach() * 16;
      chain.push_back(p);
    }
    if (world.rank() == 3) DTensor(chain[2].grad()).to_local().fill_(std::nan(""));
    GradScaler scaler;
    EXPECT_FALSE(scaler.unscale_(chain)) << "rank " << world.rank();
  });
}

TEST(GradScaler, ScaleStaysPositiveAfterThousandsOfOverflows) {
  for (const bool overflows : {true, false}) {
    const at::Tensor p = at::ones({2}).requires_grad_();
    GradScaler scaler({.growth_interval = 1});
    for (int i = 0; i < 4000; ++i) {
      p.mutable_grad() = at::full({2}, overflows ? std::numeric_limits<float>::infinity() : 0.f);
      EXPECT_EQ(scaler.step({p}, [] {}), !overflows);
      scaler.update();
    }
    p.mutable_grad() = at::full({2}, 2 * scaler.get_scale(), at::kDouble).to(at::kFloat);
    EXPECT_TRUE(scaler.unscale_({p}));
    EXPECT_NEAR(p.grad()[0].item<double>(), 2, 1e-5) << scaler.get_scale();
  }
}

at::Tensor with_gradient(const at::Tensor& full_tensor, const DeviceMesh& mesh, const Placements& placements) {
  const at::Tensor p = distribute_tensor(full_tensor, mesh, placements).requires_grad_();
  p.mutable_grad() = p.detach() * 16;
  return p;
}

// Two pipeline stages without a common rank, and a regular parameter beside a mesh of half the ranks.
TEST(GradScaler, OverflowPropagatesBetweenDisjointMeshesAndRegularParameters) {
  run_local(4, [](Communicator world) {
    const DeviceMesh first = device_mesh(world, at::kCPU, {0, 1}, {2}),
                     second = device_mesh(world, at::kCPU, {2, 3}, {2});
    for (const bool poison : {true, false}) {
      const at::Tensor a = with_gradient(at::ones({4}), first, {Shard(0)});
      const at::Tensor b = with_gradient(at::ones({4}), second, {Shard(0)});
      if (poison && world.rank() == 3) DTensor(b.grad()).to_local().fill_(std::nan(""));
      EXPECT_EQ(GradScaler().unscale_({a, b}), !poison) << "rank " << world.rank();
      const at::Tensor regular = at::ones({2}).requires_grad_();
      regular.mutable_grad() = at::ones({2});
      EXPECT_EQ(GradScaler().unscale_({regular, b}), !poison) << "rank " << world.rank();
    }
  });
}

// A rank outside a parameter's mesh may not have run the backward pass.
TEST(GradScaler, MissingGradientsOutsideTheMeshDoNotBlock) {
  run_local(3, [](Communicator world) {
    const DeviceMesh all = init_device_mesh(world, at::kCPU, {3}), two = device_mesh(world, at::kCPU, {0, 1}, {2});
    const at::Tensor a = with_gradient(at::ones({4}), all, {Shard(0)});
    const at::Tensor b = with_gradient(at::ones({4}), two, {Shard(0)});
    if (!two.is_member()) b.mutable_grad().reset();
    if (world.rank() == 1) DTensor(b.grad()).to_local().fill_(std::nan(""));
    EXPECT_FALSE(GradScaler().unscale_({a, b}));
    world.barrier();
  });
}

TEST(GradScaler, RefusedGradientIsUnscaledLater) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor p = distribute_tensor(at::ones({3}), mesh, {Replicate()}).requires_grad_();
    p.mutable_grad() = DTensor::from_local(at::full({3}, 8.f), mesh, {Partial()}, {3});
    GradScaler scaler({.init_scale = 8});
    EXPECT_NE(test::error_of([&] { scaler.unscale_({p}); }).find("is not reduced"), std::string::npos);
    p.mutable_grad() = DTensor(p.grad()).redistribute({Replicate()});
    const auto version = p.grad()._version();
    EXPECT_TRUE(scaler.step({p}, [] {}));
    test::expect_close(p.grad(), at::full({3}, 2.f), "unscaled");
    EXPECT_GT(p.grad()._version(), version);
  });
}

// The third rank lacks the gradient of `b`. Its gradient of `a` must not be divided before the error.
TEST(GradScaler, GradientRefusedByOneRankIsRefusedByAll) {
  run_local(3, [](Communicator world) {
    const DeviceMesh all = init_device_mesh(world, at::kCPU, {3}), two = device_mesh(world, at::kCPU, {0, 1}, {2});
    const at::Tensor a = with_gradient(at::ones({4}), all, {Shard(0)});
    const at::Tensor b = distribute_tensor(at::ones({4}), two, {Replicate()}).requires_grad_();
    if (two.is_member()) b.mutable_grad() = DTensor::from_local(at::full({4}, 8.f), two, {Partial()}, {4});
    GradScaler scaler({.init_scale = 8});
    const std::string error = test::error_of([&] { scaler.step({a, b}, [] {}); });
    EXPECT_NE(error.find("is not reduced"), std::string::npos) << error;
    test::expect_close(a.grad(), at::full({4}, 16.f), "as it was");
    reduce_gradients({b});
    EXPECT_TRUE(scaler.step({a, b}, [] {}));
    test::expect_close(a.grad(), at::full({4}, 2.f), "unscaled once");
    if (two.is_member()) test::expect_close(b.grad(), at::full({4}, 2.f), "reduced and unscaled");
  });
}

TEST(GradScaler, GradientRefusedByOneStageIsRefusedByTheMesh) {
  run_local(4, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {4}), last = device_mesh(world, at::kCPU, {2, 3}, {2});
    const at::Tensor own = distribute_tensor(at::ones({4}), last, {Replicate()}).requires_grad_();
    if (last.is_member()) own.mutable_grad() = DTensor::from_local(at::full({4}, 8.f), last, {Partial()}, {4});
    const at::Tensor regular = at::ones({2}).requires_grad_();
    regular.mutable_grad() = at::full({2}, 16.f);
    GradScaler scaler({.init_scale = 8, .mesh = mesh});
    const std::string error = test::error_of([&] { scaler.unscale_({last.is_member() ? own : regular}); });
    EXPECT_NE(error.find("is not reduced"), std::string::npos) << error;
    test::expect_close(regular.grad(), at::full({2}, 16.f), "as it was");
  });
}

TEST(GradScaler, GradientsOfSeveralOptimizersAreUnscaled) {
  const at::Tensor a = at::ones({2}).requires_grad_(), b = at::ones({2}).requires_grad_();
  GradScaler scaler({.init_scale = 8});
  const auto gradients = [&](double of_b) {
    a.mutable_grad() = at::full({2}, 16.f), b.mutable_grad() = at::full({2}, of_b, at::kFloat);
  };
  gradients(16);
  EXPECT_TRUE(scaler.step({a}, [] {}));
  EXPECT_TRUE(scaler.step({a, b}, [] {}));
  for (const at::Tensor& p : {a, b}) test::expect_close(p.grad(), at::full({2}, 2.f), "unscaled once");
  scaler.update();
  gradients(std::nan(""));
  EXPECT_FALSE(scaler.step({b}, [] {}));
  EXPECT_TRUE(scaler.step({a}, [] {}));
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 4);  // Either overflow lowers the scale.
}

TEST(GradScaler, DuplicateWeightIsDividedOnce) {
  const at::Tensor tied = at::ones({2}).requires_grad_();
  tied.mutable_grad() = at::full({2}, 16.f);
  EXPECT_TRUE(GradScaler({.init_scale = 8}).step({tied, tied}, [] {}));
  test::expect_close(tied.grad(), at::full({2}, 2.f), "divided once");
}

// A run is resumed with a shorter growth interval than that of the saved state.
TEST(GradScaler, GrowsIfTheRestoredIntervalHasElapsed) {
  const at::Tensor p = at::ones({2}).requires_grad_();
  GradScaler scaler({.init_scale = 8, .growth_interval = 4});
  scaler.set_state({8, 10});
  p.mutable_grad() = at::ones({2});
  scaler.step({p}, [] {});
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 16);
}

// Tensors that the scaler creates must not become DTensors of the scope's mesh.
TEST(GradScaler, WorksInAMeshScope) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor p = with_gradient(at::ones({3}), mesh, {Shard(0)});
    {
      const MeshScope scope(mesh, {Shard(0)});
      EXPECT_TRUE(GradScaler({.init_scale = 8}).step({p}, [] {}));
    }
    test::expect_close(p.grad(), at::full({3}, 2.f), "unscaled");
  });
}

// A run in half precision is resumed in another dtype: a disabled scaler ignores the saved scale, also in a pipeline.
TEST(GradScaler, DisabledScalerScalesByOneWithAnyState) {
  GradScaler scaler({.enabled = false});
  scaler.set_state({1024, 3});
  EXPECT_EQ(scaler.get_scale(), 1);
  EXPECT_EQ(scaler.scale(at::ones({})).item<double>(), 1);
}

TEST(GradScaler, StateWithInvalidScaleIsRefused) {
  for (const double scale : {0., -8., static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    GradScaler scaler;
    EXPECT_NE(test::error_of([&] {
                scaler.set_state({scale, 0});
              }).find("GradScaler: expected a state with scale > 0"),
              std::string::npos);
    EXPECT_EQ(scaler.get_scale(), 65536);
  }
}

// Gradient accumulation: only the last part of a batch steps.
TEST(GradScaler, UpdateWithoutStepKeepsTheScale) {
  const at::Tensor p = at::ones({2}).requires_grad_();
  GradScaler scaler({.init_scale = 8, .growth_interval = 2});
  for (int piece = 0; piece < 5; ++piece) scaler.update();
  EXPECT_EQ(scaler.get_scale(), 8);
  p.mutable_grad() = at::ones({2});
  scaler.step({p}, [] {});
  scaler.update();
  EXPECT_EQ(scaler.state().good_steps, 1);
}

// Pipeline ranks have different parameters: a regular one, none, or one on the mesh of the stage.
TEST(GradScaler, RanksOfTheMeshOptionSkipStepsTogether) {
  run_local(4, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {4}), last = device_mesh(world, at::kCPU, {2, 3}, {2});
    std::vector<at::Tensor> own;
    if (world.rank() == 0) own = {at::ones({2}).requires_grad_()};
    if (world.rank() > 1) own = {distribute_tensor(at::ones({4}), last, {Shard(0)}).requires_grad_()};
    GradScaler scaler({.init_scale = 8, .mesh = mesh});
    for (const int bad : {0, 3, -1}) {
      for (const bool before : {true, false}) {
        for (at::Tensor& p : own) p.mutable_grad() = p.detach() * (world.rank() == bad ? INFINITY : 1);
        if (before) {
          EXPECT_EQ(scaler.unscale_(own), bad < 0);
        }
        EXPECT_EQ(scaler.step(own, [] {}), bad < 0) << "rank " << world.rank();
        scaler.update();
      }
    }
    EXPECT_EQ(scaler.get_scale(), 0.5);
  });
}

TEST(GradScaler, ParameterOutsideTheMeshOptionIsRefused) {
  run_local(2, [](Communicator world) {
    const DeviceMesh all = init_device_mesh(world, at::kCPU, {2}), one = device_mesh(world, at::kCPU, {0}, {1});
    const at::Tensor p = with_gradient(at::ones({4}), all, {Shard(0)});
    GradScaler scaler({.mesh = one});
    EXPECT_NE(test::error_of([&] { scaler.unscale_({p}); }).find("expected parameters on ranks of the scaler's mesh"),
              std::string::npos);
  });
}

}  // namespace

// The local/global boundary: values, agreement on sizes, and gradients.
#include <torch/csrc/autograd/autograd.h>

#include <atomic>

#include "support/ranks.h"

namespace dtensor::test {
namespace {

TEST(LocalGlobalBoundary, DistributeThenFullTensorIsTheIdentityForAllLayouts) {
  for (const auto& shape : mesh_shapes()) {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      Draw draw(seed);
      const auto unsharded = draw.normal(draw.sizes(draw.integer(0, 3), 0, 9)).requires_grad_();
      const auto cotangent = draw.normal(unsharded.sizes().vec());
      on_mesh(shape, [&](const DeviceMesh& mesh) {
        Draw mine(seed);
        auto leaf = unsharded.detach().clone().requires_grad_();
        auto x = distribute_tensor(leaf, mesh, mine.placements(mesh, leaf.dim()));
        const auto what = c10::str("seed ", seed, " ", x.spec_str());
        expect_close(x.detach(), leaf.detach(), what, 1e-12);
        auto y = x.redistribute(mine.placements(mesh, leaf.dim()));
        (y.full_tensor() * cotangent).sum().backward();
        expect_close(leaf.grad(), cotangent, what + " gradient", 1e-12);
      });
    }
  }
}

TEST(LocalGlobalBoundary, LocalRoundTripIsTheIdentityForwardAndBackward) {
  for (const auto& placement : {Replicate(), Shard(0), Partial(), Partial(ReduceOp::avg)}) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      auto x = distribute_tensor(at::arange(8, at::kDouble).reshape({4, 2}), mesh, {Shard(0)}).requires_grad_();
      const auto there = DTensor(x).redistribute({placement});
      const auto back = DTensor::from_local(there.to_local(), mesh, {placement}, {4, 2});
      expect_close(back.detach(), x.detach().clone(), placement.str(), 1e-12);
      (back * back).sum().backward();
      expect_close(x.grad(), x.detach() * 2, "gradient " + placement.str(), 1e-12);
    });
  }
}

TEST(LocalGlobalBoundary, UnevenLocalSizesAreAgreed) {
  on_mesh({4}, [](const DeviceMesh& mesh) {
    const auto rank = mesh.coordinate()->front();
    const auto x = DTensor::from_local(at::full({rank == 3 ? 1 : 3, 2}, static_cast<double>(rank)), mesh, {Shard(0)});
    EXPECT_EQ(x.sizes(), (at::IntArrayRef{10, 2}));
    EXPECT_EQ(x.full_tensor().sum().item<double>(), (0 + 3 + 6 + 3) * 2);
  });
}

TEST(LocalGlobalBoundary, InconsistentLocalSizesAreAnErrorOnEveryRank) {
  std::atomic<int> errors{0};
  on_mesh({3}, [&](const DeviceMesh& mesh) {
    try {
      DTensor::from_local(at::zeros({mesh.coordinate()->front() + 1, 2}), mesh, {Shard(0)});
    } catch (const c10::Error& e) {
      EXPECT_NE(std::string(e.what()).find("rank 2: Float [3, 2]"), std::string::npos) << e.what();
      ++errors;
    }
  });
  EXPECT_EQ(errors, 3);
}

TEST(LocalGlobalBoundary, DifferentReplicatedGradientsAreAnError) {
  EXPECT_THROW(on_mesh({2},
                       [](const DeviceMesh& mesh) {
                         auto w = distribute_tensor(at::ones({3}, at::kDouble), mesh, {Replicate()}).requires_grad_();
                         (DTensor(w).to_local() * static_cast<double>(mesh.coordinate()->front() + 1)).sum().backward();
                       }),
               std::exception);
  on_mesh({2}, [](const DeviceMesh& mesh) {
    auto w = distribute_tensor(at::ones({3}, at::kDouble), mesh, {Replicate()}).requires_grad_();
    (DTensor(w).to_local({Partial()}) * static_cast<double>(mesh.coordinate()->front() + 1)).sum().backward();
    expect_close(w.grad(), at::full({3}, 3.0, at::kDouble), "sum of shares");
  });
}

TEST(LocalGlobalBoundary, LocalMapKeepsGlobalSizesAndReducesGradientsOfReplicatedInputs) {
  for (const auto& shape : {Shape{2}, Shape{3}}) {
    on_mesh(shape, [](const DeviceMesh& mesh) {
      const auto unsharded = at::arange(15, at::kDouble).reshape({5, 3});
      auto x = distribute_tensor(unsharded, mesh, {Shard(0)}).requires_grad_();
      auto w = distribute_tensor(at::ones({3}, at::kDouble), mesh, {Replicate()}).requires_grad_();
      const auto y =
          local_map([](const auto& in) { return std::vector<at::Tensor>{in[0] * in[1]}; }, {x, w}, {{Shard(0)}});
      EXPECT_EQ(y[0].sizes(), (at::IntArrayRef{5, 3}));
      y[0].sum().backward();
      expect_close(w.grad(), unsharded.sum(0), "gradient of the replicated input");
      expect_close(x.grad(), at::ones({5, 3}, at::kDouble), "gradient of the sharded input");
    });
  }
}

// Partial inputs and Partial outputs: each rank's gradient is that of the full tensor on its elements, for every
// reduction.
TEST(LocalGlobalBoundary, LocalMapOfPartialInputsGivesTheFullGradient) {
  for (const auto& placement : {Partial(), Partial(ReduceOp::avg)}) {
    on_mesh({3}, [&](const DeviceMesh& mesh) {
      const auto unsharded = at::arange(8, at::kDouble).reshape({4, 2});
      auto x = distribute_tensor(unsharded, mesh, {Shard(0)}).requires_grad_();
      const auto shares = DTensor(x).redistribute({placement});
      const auto y =
          local_map([](const auto& in) { return std::vector<at::Tensor>{in[0] * 2}; }, {shares}, {{placement}})[0];
      expect_close(y.detach(), unsharded * 2, "twice " + placement.str());
      y.sum().backward();
      expect_close(x.grad(), at::full({4, 2}, 2.0, at::kDouble), "gradient " + placement.str());
    });
  }
}

TEST(LocalGlobalBoundary, RedistributeInPlaceAffectsEveryHandle) {
  on_mesh({2, 2}, [](const DeviceMesh& mesh) {
    const auto unsharded = at::arange(12, at::kDouble).reshape({4, 3});
    DTensor x = distribute_tensor(unsharded, mesh, {Shard(0), Replicate()});
    x.requires_grad_();
    const at::Tensor handle = x;
    x.redistribute_({Replicate(), Shard(1)});
    EXPECT_EQ(DTensor(handle).placements(), (Placements{Replicate(), Shard(1)}));
    (handle * handle).sum().backward();
    EXPECT_EQ(DTensor(handle.grad()).placements(), (Placements{Replicate(), Shard(1)}));
    expect_close(handle.grad(), unsharded * 2, "gradient");
    EXPECT_THROW(DTensor(handle * 2).redistribute_({Replicate(), Replicate()}), c10::Error);
  });
}

TEST(LocalGlobalBoundary, RanksOutsideTheMeshDoNotParticipate) {
  run_local(3, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2});
    const auto x = distribute_tensor(at::ones({4, 2}, at::kDouble), mesh, {Shard(0)});
    const auto y = (x * 2).sum();
    EXPECT_EQ(y.dim(), 0);
    if (world.rank() < 2) {
      EXPECT_EQ(DTensor(y).full_tensor().item<double>(), 16);
    } else {
      EXPECT_THROW(DTensor(y).to_local(), c10::Error);
      EXPECT_THROW(y.item<double>(), c10::Error);
    }
  });
}

TEST(LocalGlobalBoundary, ScalarReadsGiveTheGlobalValueOnEveryRank) {
  on_mesh({3}, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(at::arange(5, at::kDouble), mesh, {Shard(0)});
    EXPECT_EQ(x.sum().item<double>(), 10);
    EXPECT_EQ(x.select(0, 4).item<double>(), 4);
    EXPECT_TRUE(at::equal(x, x.redistribute({Replicate()})));
  });
}

// The gradient is a tensor of the graph and must be redistributed with the leaf.
TEST(LocalGlobalBoundary, RedistributeInPlaceRedistributesGradientWithGraph) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto unsharded = at::arange(5, at::kDouble);
    const at::Tensor x = distribute_tensor(unsharded, mesh, {Shard(0)}).requires_grad_();
    (x * x * x).sum().backward({}, /*keep_graph=*/true, /*create_graph=*/true);
    DTensor(x).redistribute_({Replicate()});
    EXPECT_EQ(DTensor(x).placements(), (Placements{Replicate()}));
    EXPECT_EQ(DTensor(x.grad()).placements(), (Placements{Replicate()}));
    const auto second = torch::autograd::grad({x.grad().sum()}, {x})[0];
    expect_close(second, 6 * unsharded, "second derivative");
    x.mutable_grad() = at::Tensor();  // Breaks a reference cycle.
  });
}

}  // namespace
}  // namespace dtensor::test

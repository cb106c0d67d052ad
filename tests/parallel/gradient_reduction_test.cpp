// Gradients of leaves that are Replicate on an axis on which their gradients are Partial: they are reduced together,
// and before backward returns.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "dtensor/dtensor.h"
#include "internal/gradient_hooks.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

// Rows of a batch times vectors. Every leaf is used; all but the first may have any placements.
struct Sums {
  std::vector<at::Tensor> leaves;
  at::Tensor loss(const at::Tensor& x, bool recompute = false) const {
    at::Tensor sum = x.sum() * 0;
    for (const auto& w : leaves) {
      const auto term = [&w](const at::Tensor& in) { return at::gelu(in * w).square().mean(); };
      sum = sum + (recompute ? checkpoint(term, x) : term(x)) + 0.1 * (x * w).mean();
    }
    return sum;
  }
};

Sums make_sums(Draw& draw, int count, at::ScalarType dtype = at::kDouble) {
  Sums sums;
  for (int i = 0; i < count; ++i) sums.leaves.push_back(draw.normal({6}, dtype).requires_grad_());
  return sums;
}

Sums placed(const Sums& regular, const DeviceMesh& mesh, const std::vector<Placements>& placements) {
  Sums sums;
  for (std::size_t i = 0; i < regular.leaves.size(); ++i) {
    sums.leaves.push_back(distribute_tensor(regular.leaves[i].detach(), mesh, placements[i]).requires_grad_());
  }
  return sums;
}

std::vector<Placements> full_tensor(const DeviceMesh& mesh, std::size_t count) {
  return std::vector<Placements>(count, Placements(static_cast<std::size_t>(mesh.ndim())));
}

void expect_reduced(const Sums& actual, const Sums& expected, const std::string& what) {
  for (std::size_t i = 0; i < actual.leaves.size(); ++i) {
    const auto& leaf = actual.leaves[i];
    ASSERT_TRUE(leaf.grad().defined()) << what << i;
    EXPECT_EQ(DTensor(leaf.grad()).placements(), gradient_placements(DTensor(leaf))) << what << i;
    EXPECT_EQ(leaf.grad().strides(), expected.leaves[i].grad().strides()) << what << i;
    expect_close(leaf.grad(), expected.leaves[i].grad(), what + std::to_string(i));
  }
}

RC_GTEST_PROP(LeafReduction, AnyPlacementsAndPassesMatchSingleDevice, ()) {
  const auto seed = *rc::gen::inRange<std::uint64_t>(0, 100000);
  const auto shape = *rc::gen::elementOf(mesh_shapes());
  on_mesh(shape, [&](const DeviceMesh& mesh) {
    Draw draw(seed);
    const auto regular = make_sums(draw, 4);
    std::vector<Placements> placements;
    for (int i = 0; i < 4; ++i) placements.push_back(draw.placements(mesh, 1, false));
    const auto split = placed(regular, mesh, placements);
    const at::Tensor x = draw.normal({draw.integer(1, 7), 6}),
                     on = distribute_tensor(x, mesh, draw.placements(mesh, 1));
    for (int pass = 0; pass < 4; ++pass) {
      const bool recompute = draw.coin(), twice = draw.coin();
      std::optional<NoGradientSync> off;
      if (pass < 3 && draw.coin()) off.emplace();
      const auto expected = regular.loss(x), loss = split.loss(on, recompute);
      if (twice) torch::autograd::backward({expected}, {}, true), torch::autograd::backward({loss}, {}, true);
      torch::autograd::backward({expected}, {}), torch::autograd::backward({loss}, {});
      if (!off) expect_reduced(split, regular, c10::str("seed ", seed, " pass ", pass, " leaf "));
    }
  });
  RC_ASSERT(!::testing::Test::HasFailure());
}

TEST(LeafReduction, OneCollectivePerBackwardPass) {
  for (const Shape& shape : {Shape{2}, Shape{3}, Shape{2, 2}}) {
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      Draw draw(1);
      const auto regular = make_sums(draw, 9);
      const auto split = placed(regular, mesh, full_tensor(mesh, 9));
      const at::Tensor x = draw.normal({8, 6}), on = distribute_tensor(x, mesh, Placements(shape.size(), Shard(0)));
      for (const bool recompute : {false, true}) {
        const auto loss = split.loss(on, recompute);
        const CommDebugMode comms;
        loss.backward();
        EXPECT_EQ(comms.total("", Phase::backward).calls, 1) << comms.table();
      }
      for (int i = 0; i < 2; ++i) regular.loss(x).backward();
      expect_reduced(split, regular, "leaf ");
    });
  }
}

TEST(LeafReduction, LargeGradientsAreReducedBeforeTheEnd) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const std::int64_t size = 4 << 20;  // 16 MiB of floats.
    std::vector<at::Tensor> leaves;
    for (int i = 0; i < 4; ++i) leaves.push_back(zeros({size}, mesh, {Replicate()}).requires_grad_());
    const auto x = distribute_tensor(at::ones({2, 1}), mesh, {Shard(0)});
    at::Tensor loss = (x * leaves[0]).sum();
    for (int i = 1; i < 4; ++i) loss = loss + (x * leaves[i]).sum();
    const CommDebugMode comms;
    loss.backward();
    EXPECT_EQ(comms.total("all_reduce", Phase::backward).calls, 2) << comms.table();
    for (const auto& leaf : leaves) EXPECT_TRUE(at::equal(DTensor(leaf.grad()).to_local(), at::full({size}, 2.0)));
  });
}

// A rank in several meshes collects more gradients than others, but must not reduce earlier for it.
TEST(LeafReduction, LargeGradientsOnOverlappingMeshesAreReducedInTheSameOrder) {
  run_local(4, [](const Communicator& world) {
    const std::int64_t size = 4 << 20;  // 16 MiB of floats.
    const auto part = init_device_mesh(world, at::kCPU, {2}), full_tensor = init_device_mesh(world, at::kCPU, {4});
    const auto leaf_on = [&](const DeviceMesh& mesh) {
      return at::Tensor(zeros({size}, mesh, {Replicate()})).requires_grad_();
    };
    const auto loss_of = [](const at::Tensor& leaf, const DeviceMesh& mesh) {
      return (distribute_tensor(at::ones({mesh.size(), 1}), mesh, {Shard(0)}) * leaf).sum();
    };
    const auto a = leaf_on(part);
    std::vector<at::Tensor> leaves, losses;
    for (int i = 0; i < 4; ++i) {
      leaves.push_back(leaf_on(full_tensor));
      losses.push_back(loss_of(leaves.back(), full_tensor));
    }
    losses.push_back(loss_of(a, part));
    torch::autograd::backward(losses, {});
    for (const auto& leaf : leaves) EXPECT_TRUE(at::equal(DTensor(leaf.grad()).to_local(), at::full({size}, 4.0F)));
    if (!part.is_member()) return;
    EXPECT_TRUE(at::equal(DTensor(a.grad()).to_local(), at::full({size}, 2.0F)));
  });
}

TEST(LeafReduction, MeshesOfTheSameRanksShareACollective) {
  run_local(4, [](const Communicator& world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"dp", "tp"}), slice = mesh["dp"];
    const auto leaf_on = [](const DeviceMesh& on) {
      return at::Tensor(zeros({3}, on, Placements(static_cast<std::size_t>(on.ndim())))).requires_grad_();
    };
    const auto loss_of = [](const at::Tensor& leaf, const Placements& rows) {
      return (distribute_tensor(at::ones({4, 3}), DTensor(leaf).mesh(), rows) * leaf).sum();
    };
    const auto a = leaf_on(mesh), b = leaf_on(slice);
    const std::vector<at::Tensor> losses = {loss_of(a, {Shard(0), Replicate()}), loss_of(b, {Shard(0)})};
    const CommDebugMode comms;
    torch::autograd::backward(losses, {});
    EXPECT_EQ(comms.total("", Phase::backward).calls, 1) << comms.table();
    for (const auto& leaf : {a, b}) EXPECT_TRUE(at::equal(DTensor(leaf.grad()).to_local(), at::full({3}, 4.0F)));
  });
}

// A kept gradient must not keep the memory of the others.
TEST(LeafReduction, GradientsOfOneCollectiveShareNoStorage) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    Draw draw(1);
    const auto split = placed(make_sums(draw, 2), mesh, full_tensor(mesh, 2));
    split.loss(distribute_tensor(draw.normal({8, 6}), mesh, {Shard(0)})).backward();
    const auto storage_of = [](const at::Tensor& leaf) { return DTensor(leaf.grad()).to_local().storage(); };
    EXPECT_FALSE(storage_of(split.leaves[0]).is_alias_of(storage_of(split.leaves[1])));
  });
}

// Others may keep the unreduced gradient.
TEST(LeafReduction, AGradientThatAHookKeepsIsNotOverwritten) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto leaf = at::Tensor(zeros({3}, mesh, {Replicate()})).requires_grad_();
    at::Tensor kept;
    leaf.register_hook([&](const at::Tensor& gradient) { kept = gradient; });
    (distribute_tensor(at::ones({4, 3}), mesh, {Shard(0)}) * leaf).sum().backward();
    EXPECT_TRUE(at::equal(DTensor(kept).to_local(), at::full({3}, 2.0F)));
    EXPECT_TRUE(at::equal(DTensor(leaf.grad()).to_local(), at::full({3}, 4.0F)));
  });
}

// Autograd passes views of one tensor as gradients.
TEST(LeafReduction, GradientsOfViewsShareNoMemory) {
  for (const auto& placement : {Replicate(), Shard(0)}) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      const auto a = distribute_tensor(at::ones({4, 4}), mesh, {placement}).requires_grad_();
      const auto b = distribute_tensor(at::ones({4, 4}), mesh, {placement}).requires_grad_();
      for (int pass = 0; pass < 3; ++pass) (a.view(16) + b.view(16)).square().sum().backward();
      a.grad().mul_(2);
      expect_close(a.grad(), at::full({4, 4}, 24.0F), "written to");
      expect_close(b.grad(), at::full({4, 4}, 12.0F), "not written to");
    });
  }
}

// A gradient has the strides of its leaf.
TEST(LeafReduction, GradientsHaveTheStridesOfTheLeaf) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor w = distribute_tensor(at::ones({3, 4}).t(), mesh, {Replicate()}).requires_grad_();
    (w * distribute_tensor(at::ones({6, 4, 3}), mesh, {Shard(0)})).sum().backward();
    EXPECT_EQ(w.grad().strides(), (at::IntArrayRef{1, 4}));
    EXPECT_EQ(w.grad().t().view({-1}).sum().item<float>(), 72);
  });
}

TEST(LeafReduction, AutogradGradReturnsReducedGradients) {
  for (const bool create_graph : {false, true}) {
    on_mesh({2, 2}, [&](const DeviceMesh& mesh) {
      Draw draw(3);
      const auto regular = make_sums(draw, 3), split = placed(regular, mesh, full_tensor(mesh, 3));
      const at::Tensor x = draw.normal({5, 6}), on = distribute_tensor(x, mesh, {Shard(0), Replicate()});
      const auto want = torch::autograd::grad({regular.loss(x)}, regular.leaves, {}, true, create_graph);
      const auto have = torch::autograd::grad({split.loss(on)}, split.leaves, {}, true, create_graph);
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_FALSE(split.leaves[i].grad().defined());
        EXPECT_EQ(DTensor(have[i]).placements(), Placements(2));
        expect_close(have[i].detach(), want[i].detach(), "grad");
      }
      if (!create_graph) return;
      (want[0].square().sum() + want[1].sum()).backward();
      (have[0].square().sum() + have[1].sum()).backward();
      for (std::size_t i = 0; i < 2; ++i) expect_close(split.leaves[i].grad(), regular.leaves[i].grad(), "second");
    });
  }
}

TEST(LeafReduction, BackwardWithAGraphAndForSomeLeavesOnly) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    Draw draw(3);
    const auto regular = make_sums(draw, 3), split = placed(regular, mesh, full_tensor(mesh, 3));
    const at::Tensor x = draw.normal({5, 6}), on = distribute_tensor(x, mesh, {Shard(0)});
    const auto run = [](const Sums& sums, const at::Tensor& in) {
      torch::autograd::backward({sums.loss(in)}, {}, true, false, {sums.leaves[0], sums.leaves[2]});
      EXPECT_FALSE(sums.leaves[1].grad().defined());
      torch::autograd::backward({sums.loss(in)}, {}, true, true);
      torch::autograd::backward({sums.leaves[1].grad().square().sum()}, {}, true);
    };
    run(regular, x);
    run(split, on);
    expect_reduced(split, regular, "leaf ");
    // A gradient with a graph and its leaf reference each other.
    for (const Sums* sums : {&regular, &split}) {
      for (const at::Tensor& leaf : sums->leaves) leaf.mutable_grad().reset();
    }
  });
}

// After a pass that throws, no gradient is pending and none is lost.
TEST(LeafReduction, RecoversFromAFailedBackwardPass) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    Draw draw(3);
    const auto regular = make_sums(draw, 3), split = placed(regular, mesh, full_tensor(mesh, 3));
    const at::Tensor x = draw.normal({5, 6}), on = distribute_tensor(x, mesh, {Shard(0)});
    regular.loss(x).backward();
    split.loss(on).backward();
    {
      const auto source = distribute_tensor(draw.normal({6}), mesh, {Replicate()}).requires_grad_();
      const auto last = source * 1;
      last.register_hook([](const at::Tensor& g) -> at::Tensor { TORCH_CHECK(false, "stop ", g.dim()); });
      // Nodes that were created last run first.
      EXPECT_THROW((on * last + on * split.leaves[0] * split.leaves[1]).sum().backward(), c10::Error);
    }
    expect_reduced(split, regular, "kept ");
    regular.loss(x).backward();
    split.loss(on).backward();
    expect_reduced(split, regular, "next ");
  });
}

TEST(LeafReduction, HooksReceiveTheReducedGradientOnce) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    Draw draw(3);
    const auto split = placed(make_sums(draw, 2), mesh, full_tensor(mesh, 2));
    std::vector<Placements> seen;
    for (const auto& leaf : split.leaves) {
      set_gradient_ready_hook(DTensor(leaf), [&](const DTensor& w) { seen.push_back(DTensor(w.grad()).placements()); });
    }
    split.loss(distribute_tensor(draw.normal({5, 6}), mesh, {Shard(0)})).backward();
    EXPECT_EQ(seen, std::vector<Placements>(2, {Replicate()}));
  });
}

}  // namespace
}  // namespace dtensor::test

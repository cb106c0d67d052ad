// Hooks of schedules: first use, complete gradient, accumulation without synchronization. Also the gradient pipeline of
// a leaf.
#include <torch/csrc/autograd/autograd.h>

#include "internal/gather_hook.h"
#include "internal/gradient_hooks.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

struct Step {
  at::Tensor w, x;
};

Step make_step(const DeviceMesh& mesh) {
  return {distribute_tensor(at::ones({4, 3}, at::kDouble), mesh, {Shard(0).as_storage()}).requires_grad_(),
          distribute_tensor(at::ones({6, 4}, at::kDouble), mesh, {Shard(0)})};
}

TEST(Hooks, GatherHookRunsBeforeEachGatherAndMayReplaceIt) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    auto step = make_step(mesh);
    int asked = 0;
    set_gather_hook(DTensor(step.w), [&](const DTensor& w, const Placements& needed, at::ScalarType) {
      ++asked;
      EXPECT_EQ(needed, Placements{Replicate()});
      return at::full(w.sizes(), 2.0, at::kDouble);
    });
    const auto y = at::mm(step.x, step.w);
    EXPECT_EQ(asked, 1);
    expect_close(y.detach(), at::full({6, 3}, 8.0, at::kDouble), "provided");
    set_gather_hook(DTensor(step.w), {});
    expect_close(at::mm(step.x, step.w).detach(), at::full({6, 3}, 4.0, at::kDouble), "gathered");
  });
}

TEST(Hooks, GradientHookReceivesTheReducedGradientOncePerBackward) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    auto step = make_step(mesh);
    std::vector<Placements> seen;
    set_gradient_ready_hook(DTensor(step.w), [&](const DTensor& w) { seen.push_back(DTensor(w.grad()).placements()); });
    at::mm(step.x, step.w).sum().backward();
    at::mm(step.x, step.w).sum().backward();
    EXPECT_EQ(seen, (std::vector<Placements>(2, {Shard(0)})));
    expect_close(step.w.grad(), at::full({4, 3}, 12.0, at::kDouble), "two passes");
  });
}

// A local gradient that a schedule has reduced is accumulated in the parameter's placements or in others.
TEST(Hooks, LocalGradientIsAccumulatedOrRefused) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto step = make_step(mesh);
    const DTensor w(step.w);
    int reported = 0;
    set_gradient_ready_hook(w, [&](const DTensor&) { ++reported; });
    const auto part = at::ones({2, 3}, at::kDouble);
    accumulate_gradient(w, part, gradient_placements(w));
    EXPECT_EQ(DTensor(w.grad()).to_local().data_ptr(), part.data_ptr());
    accumulate_gradient(w, at::ones({2, 3}, at::kDouble), gradient_placements(w));
    EXPECT_EQ(DTensor(w.grad()).placements(), Placements{Shard(0)});
    expect_close(w.grad(), at::full({4, 3}, 2.0, at::kDouble), "two parts");
    EXPECT_EQ(reported, 2);
    w.mutable_grad().reset();
    accumulate_gradient(w, at::ones({4, 3}, at::kDouble), {Partial()});
    expect_close(w.grad(), at::full({4, 3}, 2.0, at::kDouble), "shares");
    EXPECT_ANY_THROW(accumulate_gradient(w, at::ones({4, 3}, at::kDouble), gradient_placements(w)));
    EXPECT_ANY_THROW(accumulate_gradient(w, at::ones({2, 3}), gradient_placements(w)));
    EXPECT_ANY_THROW(accumulate_gradient(w, at::Tensor(), gradient_placements(w)));
    EXPECT_ANY_THROW(accumulate_gradient(DTensor(), part, {Replicate()}));
  });
}

TEST(Hooks, AccumulationWithoutSynchronizationReducesOnce) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    auto step = make_step(mesh);
    {
      const NoGradientSync off;
      at::mm(step.x, step.w).sum().backward();
      EXPECT_EQ(DTensor(step.w.grad()).placements(), Placements{Partial()});
      at::mm(step.x, step.w).sum().backward();
    }
    int reductions = 0;
    const EventListener listener([&](const Event& e) {
      reductions += e.kind == Event::Kind::collective && e.name.find("reduce_scatter") != std::string::npos;
    });
    at::mm(step.x, step.w).sum().backward();
    EXPECT_EQ(reductions, 1);
    EXPECT_EQ(DTensor(step.w.grad()).placements(), Placements{Shard(0)});
    expect_close(step.w.grad(), at::full({4, 3}, 18.0, at::kDouble), "three passes");
  });
}

// The result does not depend on which leaf it is or how it became one.
TEST(Hooks, GradientOfResultThatBecomesALeafIsReduced) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    auto step = make_step(mesh);
    at::Tensor w = at::mul(step.w, 1);
    (void)at::abs(w);  // The operator kernel sees it before it is a leaf.
    w.detach_().requires_grad_();
    at::mm(step.x, w).sum().backward();
    EXPECT_EQ(DTensor(w.grad()).placements(), gradient_placements(DTensor(w)));
    expect_close(w.grad(), at::full({4, 3}, 6.0, at::kDouble), "gradient");
  });
}

TEST(Hooks, GradientsHaveThePlacementsOfTheLeafOnOneRank) {
  on_mesh({1}, [](const DeviceMesh& mesh) {
    auto step = make_step(mesh);
    at::mm(step.x, step.w).sum().backward();
    EXPECT_EQ(DTensor(step.w.grad()).placements(), Placements{Shard(0)});
  });
}

TEST(Hooks, UserHooksDoNotReplaceTheGradientPipeline) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    auto step = make_step(mesh);
    step.w.register_hook([](const at::Tensor& g) { return g * 2; });
    (void)at::abs(step.w);
    step.w.register_hook([](const at::Tensor& g) { return g + 1; });
    at::mm(step.x, step.w).sum().backward();
    EXPECT_EQ(DTensor(step.w.grad()).placements(), Placements{Shard(0)});
    expect_close(step.w.grad(), at::full({4, 3}, 13.0, at::kDouble), "gradient");
  });
}

// autograd::grad returns reduced gradients and does not change .grad. The next accumulated gradient is added to an
// unreduced one.
TEST(Hooks, AutogradGradIsReducedAndKeepsAccumulatedGradients) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    auto step = make_step(mesh);
    {
      const NoGradientSync off;
      at::mm(step.x, step.w).sum().backward();
    }
    const auto kept = step.w.grad();
    const auto got = torch::autograd::grad({at::mm(step.x, step.w).sum()}, {step.w})[0];
    EXPECT_EQ(DTensor(got).placements(), Placements{Shard(0)});
    EXPECT_TRUE(step.w.grad().is_same(kept));
    expect_close(got, at::full({4, 3}, 6.0, at::kDouble), "asked for");
    at::mm(step.x, step.w).sum().backward();
    expect_close(step.w.grad(), at::full({4, 3}, 12.0, at::kDouble), "accumulated");
  });
}

}  // namespace
}  // namespace dtensor::test

// Hooks of schedules: first use, start of backward, gradient complete, accumulation without synchronisation.
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

TEST(Hooks, UseIsAskedBeforeEachGatherAndMayProvideIt) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    auto step = make_step(mesh);
    int asked = 0;
    set_use_hook(DTensor(step.w), [&](const DTensor& w, const Placements& needed, at::ScalarType) {
      ++asked;
      EXPECT_EQ(needed, Placements{Replicate()});
      return at::full(w.sizes(), 2.0, at::kDouble);
    });
    const auto y = at::mm(step.x, step.w);
    EXPECT_EQ(asked, 1);
    expect_close(y.detach(), at::full({6, 3}, 8.0, at::kDouble), "provided");
    set_use_hook(DTensor(step.w), {});
    expect_close(at::mm(step.x, step.w).detach(), at::full({6, 3}, 4.0, at::kDouble), "gathered");
  });
}

TEST(Hooks, GradientHookSeesTheReducedGradientOncePerBackward) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    auto step = make_step(mesh);
    std::vector<Placements> seen;
    set_gradient_hook(DTensor(step.w), [&](const DTensor& w) { seen.push_back(DTensor(w.grad()).placements()); });
    at::mm(step.x, step.w).sum().backward();
    at::mm(step.x, step.w).sum().backward();
    EXPECT_EQ(seen, (std::vector<Placements>(2, {Shard(0)})));
    expect_close(step.w.grad(), at::full({4, 3}, 12.0, at::kDouble), "two passes");
  });
}

TEST(Hooks, BackwardStartIsHeardOncePerPass) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    auto step = make_step(mesh);
    int started = 0;
    const BackwardStartListener listener([&] { ++started; });
    const auto loss = at::mm(step.x, step.w).square().sum();
    EXPECT_EQ(started, 0);
    loss.backward();
    EXPECT_EQ(started, 1);
    at::mm(step.x, step.w).sum().backward();
    EXPECT_EQ(started, 2);
  });
}

TEST(Hooks, AccumulationWithoutSynchronisationReducesOnce) {
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

}  // namespace
}  // namespace dtensor::test

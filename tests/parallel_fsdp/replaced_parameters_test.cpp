// set_data and redistribute_ may give a parameter of a unit another mesh, dtype or size. It is then gathered and
// reduced separately.
#include "dtensor/hooks.h"
#include "internal/gradient_hooks.h"
#include "parallel_fsdp/tower.h"

namespace dtensor::test {
namespace {

// w is replaced after a step; v stays in the unit.
struct Pair {
  at::Tensor w = Draw(1).normal({4, 4}).requires_grad_(), v = Draw(8).normal({4, 4}).requires_grad_();
  at::Tensor loss(const at::Tensor& x) const {
    return at::linear(at::linear(x, v).to(w.scalar_type()), w).square().sum();
  }
};

void expect_alone(const DeviceMesh& mesh, const at::Tensor& fresh, const at::Tensor& placed, bool unsynced = false) {
  Pair regular, pair;
  fully_shard({{"w", &pair.w}, {"v", &pair.v}}, mesh);
  const auto x = Draw(3).normal({8, 4}), on = sharded(x, mesh);
  pair.loss(on).backward();
  for (auto* t : {&pair.w, &pair.v}) t->mutable_grad().reset();
  pair.w.set_data(placed);
  regular.w.set_data(fresh);
  for (int pass = 0; pass < 3; ++pass) {
    std::optional<NoGradientSync> later;
    if (unsynced && pass < 2) later.emplace();
    expect_close(pair.loss(on).detach(), regular.loss(x).detach(), "forward", 1e-5);
    regular.loss(x).backward(), pair.loss(on).backward();
    if (later) continue;
    expect_close(pair.w.grad(), regular.w.grad(), "w", 1e-5);
    expect_close(pair.v.grad(), regular.v.grad(), "v", 1e-5);
    EXPECT_EQ(DTensor(pair.w.grad()).placements(), gradient_placements(DTensor(pair.w)));
  }
}

TEST(FsdpReplacedParameters, InOtherSizes) {
  for (const bool unsynced : {false, true}) {
    for (const std::int64_t rows : {2, 6, 4}) {
      on_mesh({2}, [&](const DeviceMesh& mesh) {
        const auto fresh = Draw(2).normal({rows, 4});
        expect_alone(mesh, fresh, distribute_tensor(fresh, mesh, {Shard(0).as_storage()}), unsynced);
      });
    }
  }
}

TEST(FsdpReplacedParameters, InAnotherDtype) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      const auto fresh = Draw(2).normal({4, 4}, dtype);
      expect_alone(mesh, fresh, distribute_tensor(fresh, mesh, {Shard(0).as_storage()}));
    });
  }
}

TEST(FsdpReplacedParameters, InOtherPlacements) {
  for (const bool unsynced : {false, true}) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      const auto fresh = Draw(2).normal({4, 4});
      for (const auto& placement : {Shard(1).as_storage(), Replicate()}) {
        expect_alone(mesh, fresh, distribute_tensor(fresh, mesh, {placement}), unsynced);
      }
    });
  }
}

TEST(FsdpReplacedParameters, OnAnotherMesh) {
  run_local(2, [](const Communicator& world) {
    const auto mesh = device_mesh(world, at::kCPU, {0, 1}, {2}), turned = device_mesh(world, at::kCPU, {1, 0}, {2});
    const auto regular = Draw(1).normal({4, 4}), x = Draw(2).normal({6, 4});
    at::Tensor w = at::zeros_like(regular).requires_grad_();
    fully_shard({{"w", &w}}, mesh);
    w.set_data(distribute_tensor(regular, turned, {Shard(0).as_storage()}));
    const auto y = at::mm(sharded(x, turned), w);
    expect_close(y.detach(), at::mm(x, regular), "on another mesh");
    y.sum().backward();
    expect_close(w.grad(), x.t().mm(at::ones({6, 4}, at::kDouble)), "gradient");
  });
}

// An unreduced gradient is redistributed to the parameter's new placements.
TEST(FsdpReplacedParameters, WithAnUnreducedGradient) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    Pair regular, pair;
    fully_shard({{"w", &pair.w}, {"v", &pair.v}}, mesh);
    {
      const at::NoGradGuard no_grad;
      DTensor(pair.w).redistribute_({Shard(1).as_storage()});
    }
    const auto x = Draw(3).normal({8, 4});
    {
      const NoGradientSync later;
      pair.loss(sharded(x, mesh)).backward();
    }
    regular.loss(x).backward();
    reduce_gradients({pair.w, pair.v});
    expect_same_gradients({pair.w, pair.v}, {regular.w, regular.v});
    EXPECT_EQ(DTensor(pair.w.grad()).placements(), gradient_placements(DTensor(pair.w)));
  });
}

}  // namespace
}  // namespace dtensor::test

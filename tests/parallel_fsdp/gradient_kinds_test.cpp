// Gradients with a graph, gradients of several placements, and collectives in the background.
#include "dtensor/hooks.h"
#include "internal/gradient_hooks.h"
#include "parallel_fsdp/delayed.h"
#include "parallel_fsdp/tower.h"

namespace dtensor::test {
namespace {

TEST(FsdpGradients, KeepTheirGraphWithCreateGraph) {
  for (const Shape& shape : {Shape{2}, Shape{2, 2}}) {
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      Tower regular(2, 4), tower(2, 4);
      fully_shard(tower.list(), mesh);
      const auto run = [](Tower& t, const at::Tensor& x) {
        t.loss(x).backward({}, /*keep_graph=*/true, /*create_graph=*/true);
        at::Tensor penalty = at::mm(x, t.w[0]).square().mean();
        for (auto& w : t.w) penalty = penalty + std::exchange(w.mutable_grad(), at::Tensor()).square().sum();
        penalty.backward();
      };
      run(regular, input(8, 4));
      run(tower, distribute_tensor(input(8, 4), mesh, Placements(shape.size(), Shard(0))));
      expect_same_gradients(tower.w, regular.w);
    });
  }
}

// A hook sees only reduced gradients, also if gradients accumulated under NoGradientSync have other placements than new
// ones.
TEST(FsdpGradients, UnreducedGradientsOfDifferentPlacementsAreAdded) {
  run_local(4, [](const Communicator& world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"replicate", "shard"});
    Draw draw(1);
    at::Tensor regular = draw.normal({5, 4}).requires_grad_(), w = regular.detach().clone().requires_grad_();
    fully_shard({{"w", &w}}, mesh);
    set_gradient_ready_hook(DTensor(w), [](const DTensor& p) {
      if (NoGradientSync::current() || NoReplicaSync::current()) return;
      EXPECT_EQ(DTensor(p.grad()).placements(), gradient_placements(p)) << DTensor(p.grad()).spec_str();
    });
    const auto x = draw.normal({8, 5});
    const auto on = distribute_tensor(x, mesh, {Shard(0), Shard(0)});
    for (const bool replicas_only : {false, true}) {
      for (const bool data_first : {false, true}) {
        for (const bool second : {false, true}) {
          std::optional<NoGradientSync> later;
          std::optional<NoReplicaSync> later_replicas;
          if (!second) replicas_only ? static_cast<void>(later_replicas.emplace()) : static_cast<void>(later.emplace());
          const bool data = data_first != second;
          (data ? at::mm(on, w) : w).square().sum().backward();
          (data ? at::mm(x, regular) : regular).square().sum().backward();
        }
        expect_close(w.grad(), regular.grad(), c10::str("replicas only ", replicas_only, ", data first ", data_first));
        for (auto* t : {&w, &regular}) t->mutable_grad().reset();
      }
    }
  });
}

TEST(FsdpInTheBackground, ReshardDuringAGatherKeepsCompleteShards) {
  run_local(4, [](const Communicator& world) {
    const auto mesh = init_device_mesh(delayed(world), at::kCPU, {4}, {"shard"});
    Tower regular(1, 8), tower(1, 8);
    const auto unit = fully_shard(tower.list(), mesh, {.reshard_after_forward = 2});
    unit.unshard();
    unit.reshard();
    const auto x = input(4, 8);
    expect_close(tower.loss(sharded(x, mesh)).detach(), regular.loss(x).detach(), "loss");
  });
}

// The order must not depend on addresses of schedules, which differ between ranks.
TEST(FsdpInTheBackground, SchedulesAreFinishedInTheSameOrderOnAllRanks) {
  for (int trial = 0; trial < 4; ++trial) {
    run_local(2, [&](const Communicator& world) {
      const auto mesh = init_device_mesh(delayed(world), at::kCPU, {2, 1}, {"replicate", "shard"});
      const Tower regular(6, 4);
      Tower tower(6, 4);
      for (auto& w : tower.w) fully_shard({{"w", &w}}, mesh);
      const at::Tensor x = Draw(3).normal({8, 4}), on = distribute_tensor(x, mesh, {Shard(0), Shard(0)});
      for (std::size_t i = 0; i < 6; ++i) {
        {
          const NoGradientSync later;
          at::mm(on, tower.w[i]).square().sum().backward();
        }
        at::mm(x, regular.w[i]).square().sum().backward();
      }
      reduce_gradients(tower.w);
      expect_same_gradients(tower.w, regular.w);
    });
  }
}

}  // namespace
}  // namespace dtensor::test

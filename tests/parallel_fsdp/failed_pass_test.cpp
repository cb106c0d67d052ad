// A backward pass that throws leaves no state for the next one, even if the next one runs over a graph that existed
// before.
#include "dtensor/hooks.h"
#include "parallel_fsdp/delayed.h"
#include "parallel_fsdp/tower.h"

namespace dtensor::test {
namespace {

// Uses all layers; backward fails before the gradient of the first layer, if `fails` is set.
at::Tensor fragile(const Tower& tower, const at::Tensor& x, const bool& fails) {
  auto h = at::gelu(at::linear(x, tower.w[0]));
  h.register_hook([&fails](const at::Tensor&) { TORCH_CHECK(!fails, "stop"); });
  for (std::size_t i = 1; i < tower.w.size(); ++i) h = at::gelu(at::linear(h, tower.w[i]));
  return h.square().mean();
}

void clear(Tower& tower) {
  for (auto& w : tower.w) w.mutable_grad().reset();
}

TEST(FsdpFailedPass, LeavesNoStateForAPassOverAnOlderGraph) {
  for (const bool late : {false, true}) {
    for (const bool one_unit : {false, true}) {
      run_local(2, [&](const Communicator& world) {
        const auto mesh = init_device_mesh(late ? delayed(world) : world, at::kCPU, {2}, {"shard"});
        Tower regular(3), tower(3);
        one_unit ? static_cast<void>(fully_shard(tower.list(), mesh)) : static_cast<void>(tower.shard(mesh));
        const bool fails = true;
        const auto x = sharded(input(), mesh);
        const auto first = fragile(tower, x, fails), second = tower.loss(x), third = tower.loss(x);
        EXPECT_THROW(first.backward(), c10::Error);
        clear(tower);
        second.backward();
        regular.loss(input()).backward();
        expect_same_gradients(tower.w, regular.w);
        third.backward();
        regular.loss(input()).backward();
        expect_same_gradients(tower.w, regular.w);
        const auto stats = units_of(tower.w)[0].stats();
        EXPECT_EQ(stats.gathered_bytes, 0);
        EXPECT_EQ(stats.unreduced_bytes, 0);
      });
    }
  }
}

TEST(FsdpFailedPass, MayBeRepeated) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    Tower regular(3), tower(3);
    fully_shard(tower.list(), mesh);
    bool fails = true;
    const auto loss = fragile(tower, sharded(input(), mesh), fails);
    EXPECT_THROW(loss.backward({}, /*keep_graph=*/true), c10::Error);
    fails = false;
    loss.backward();
    regular.loss(input()).backward();
    expect_same_gradients(tower.w, regular.w);
  });
}

// In a unit, and for leaves that are reduced separately.
TEST(FsdpFailedPass, KeepsGradientsAccumulatedUnderNoGradientSync) {
  for (const bool unit : {true, false}) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      Tower regular(3), tower(3);
      if (unit) fully_shard(tower.list(), mesh);
      for (auto& w : tower.w) {
        if (!unit) w = distribute_tensor(w.detach(), mesh, {Replicate()}).requires_grad_();
      }
      const auto x = sharded(input(), mesh);
      {
        const NoGradientSync later;
        tower.loss(x).backward();
      }
      regular.loss(input()).backward();
      const bool fails = true;
      EXPECT_THROW(fragile(tower, x, fails).backward(), c10::Error);
      reduce_gradients(tower.w);
      expect_same_gradients(tower.w, regular.w);
    });
  }
}

// The same if a collective of the unit's reduction fails.
TEST(FsdpFailedPass, RestoresGradientsOfAFailedReduction) {
  run_local(2, [](const Communicator& world) {
    const auto mesh = init_device_mesh(delayed(world), at::kCPU, {2}, {"shard"});
    Tower regular(3), tower(3);
    fully_shard(tower.list(), mesh, {.reshard_after_forward = false});
    const auto x = sharded(input(), mesh);
    {
      const NoGradientSync later;
      tower.loss(x).backward();
    }
    regular.loss(input()).backward();
    const auto loss = tower.loss(x);
    delayed_failures = 1;
    EXPECT_THROW(loss.backward(), c10::Error);
    EXPECT_EQ(delayed_failures, 0);
    reduce_gradients(tower.w);
    expect_same_gradients(tower.w, regular.w);
  });
}

// The collective of the first unit fails after the accumulated gradients of the second one were taken.
TEST(FsdpFailedPass, RestoresGradientsOfSeveralUnits) {
  run_local(2, [](const Communicator& world) {
    const auto mesh = init_device_mesh(delayed(world), at::kCPU, {2}, {"shard"});
    Tower regular(3), tower(3);
    const auto units = tower.shard(mesh);
    {
      const NoGradientSync later;
      tower.loss(sharded(input(), mesh)).backward();
    }
    regular.loss(input()).backward();
    delayed_failures = 1;
    EXPECT_THROW(reduce_gradients(tower.w), c10::Error);
    EXPECT_EQ(delayed_failures, 0);
    EXPECT_EQ(units[0].stats().unreduced_bytes, 0);
    reduce_gradients(tower.w);
    expect_same_gradients(tower.w, regular.w);
    EXPECT_EQ(units[0].stats().unreduced_bytes, 0);
  });
}

TEST(FsdpFailedPass, FailedBackgroundGatherIsNotCounted) {
  run_local(2, [](const Communicator& world) {
    const auto mesh = init_device_mesh(delayed(world), at::kCPU, {2}, {"shard"});
    const Tower regular(3);
    Tower tower(3);
    const auto units = tower.shard(mesh);
    const auto x = sharded(input(), mesh);
    for (int i = 0; i < 2; ++i) {
      delayed_failures = 1;
      EXPECT_THROW(tower.loss(x), c10::Error);
      EXPECT_EQ(units[0].stats().gathered_bytes, 0);
    }
    expect_close(tower.loss(x).detach(), regular.loss(input()).detach(), "loss");
  });
}

// The failing pass runs in a hook of another pass, which catches the exception.
TEST(FsdpFailedPass, FailureInANestedPass) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    Tower regular(4), tower(4);
    tower.shard(mesh);
    const bool fails = true;
    const auto x = sharded(input(), mesh);
    auto h = at::linear(x, tower.w[0]);
    h.register_hook([&](const at::Tensor&) {
      const at::AutoGradMode on(true);
      auto inner = at::linear(x, tower.w[0]);
      inner.register_hook([&](const at::Tensor&) { TORCH_CHECK(!fails, "stop"); });
      EXPECT_THROW(inner.sum().backward(), c10::Error);
    });
    const auto rest = [](at::Tensor y, const Tower& t) {
      for (std::size_t i = 1; i < 4; ++i) y = at::gelu(at::linear(y, t.w[i]));
      return y.square().sum();
    };
    rest(h, tower).backward();
    rest(at::linear(input(), regular.w[0]), regular).backward();
    expect_same_gradients(tower.w, regular.w);
    EXPECT_EQ(units_of(tower.w)[0].stats().unreduced_bytes, 0);
  });
}

}  // namespace
}  // namespace dtensor::test

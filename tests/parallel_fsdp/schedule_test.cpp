// Properties of the schedule besides its results: collectives in the background, unused and frozen parameters, and
// gathered copies whose parameter changes.
#include "parallel_fsdp/delayed.h"
#include "parallel_fsdp/tower.h"

#include <rapidcheck/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace dtensor::test {
namespace {

// A unit's all-reduce over replicas runs during the reduce-scatter of the next unit, and is waited for when that one is
// done.
TEST(FsdpSchedule, AllReduceOverReplicasRunsInTheBackground) {
  run_local(4, [](Communicator world) {
    const auto mesh = init_device_mesh(delayed(world), at::kCPU, {2, 2}, {"replicate", "shard"});
    Tower regular(4), tower(4);
    tower.shard(mesh);
    for (int step = 0; step < 2; ++step) {
      const auto loss = tower.loss(distribute_tensor(input(), mesh, {Shard(0), Shard(0)}));
      regular.loss(input()).backward();
      std::vector<std::string> log;
      delayed_log = &log;
      loss.backward();
      delayed_log = nullptr;
      std::erase_if(log, [](const auto& line) { return line.find("reduce") == std::string::npos; });
      std::vector<std::string> expected = {"reduce_scatter starts", "reduce_scatter ends", "all_reduce starts",
                                           "reduce_scatter starts"};
      for (int unit = 2; unit < 4; ++unit) {
        expected.insert(expected.end(),
                        {"all_reduce ends", "reduce_scatter ends", "all_reduce starts", "reduce_scatter starts"});
      }
      expected.insert(expected.end(),
                      {"all_reduce ends", "reduce_scatter ends", "all_reduce starts", "all_reduce ends"});
      EXPECT_EQ(log, expected);
      expect_same_gradients(tower.w, regular.w);
    }
  });
}

// The number of communicators, which use memory of a device, does not grow with the model.
TEST(FsdpSchedule, UnitsShareTheirCommunicators) {
  run_local(4, [](Communicator world) {
    const auto communicators_of = [&](int layers) {
      const auto mesh = init_device_mesh(delayed(world), at::kCPU, {2, 2}, {"replicate", "shard"});
      Tower tower(layers);
      delayed_subgroups = 0;
      tower.shard(mesh);
      tower.loss(distribute_tensor(input(), mesh, {Shard(0), Shard(0)})).backward();
      return delayed_subgroups;
    };
    EXPECT_EQ(communicators_of(2), communicators_of(6));
  });
}

// Without units: two collectives of gradients of unsharded parameters, which end before backward() returns.
TEST(FsdpSchedule, UnshardedParametersAreReducedInTheBackground) {
  run_local(2, [](Communicator world) {
    const auto mesh = init_device_mesh(delayed(world), at::kCPU, {2});
    Tower regular(3, 1300), tower(3, 1300);  // 13.5 MB each.
    for (auto& w : tower.w) w = distribute_tensor(w.detach(), mesh, {Replicate()}).requires_grad_();
    const auto loss = tower.loss(sharded(input(4, 1300), mesh));
    regular.loss(input(4, 1300)).backward();
    std::vector<std::string> log;
    delayed_log = &log;
    loss.backward();
    delayed_log = nullptr;
    EXPECT_EQ(log, (std::vector<std::string>{"all_reduce starts", "all_reduce starts", "all_reduce ends",
                                             "all_reduce ends"}));
    expect_same_gradients(tower.w, regular.w);
  });
}

// Layers are dropped at random, only some gradients are requested, some parameters are frozen; the same on every rank.
RC_GTEST_PROP(FsdpSchedule, StepsMayUseDifferentParameters, ()) {
  const auto seed = *rc::gen::inRange<std::uint64_t>(0, 100000);
  const auto ranks = *rc::gen::inRange(1, 4);
  const auto reshard = *rc::gen::arbitrary<bool>();
  const auto ahead = *rc::gen::inRange<std::int64_t>(0, 3);
  on_mesh({ranks}, [&](const DeviceMesh& mesh) {
    Draw draw(seed);
    Tower regular(5), tower(5);
    tower.shard(mesh, {.reshard_after_forward = reshard, .prefetch_bytes = ahead * 320});
    for (int step = 0; step < 5; ++step) {
      const int skip = static_cast<int>(draw.integer(-1, 4));
      for (std::size_t i = 0; i < 5; ++i) {
        const bool wanted = draw.integer(0, 3) > 0 || i == 4;
        regular.w[i].set_requires_grad(wanted);
        tower.w[i].set_requires_grad(wanted);
      }
      if (draw.coin()) {  // A forward pass without backward.
        const at::NoGradGuard no_grad;
        expect_close(tower.loss(sharded(input(), mesh)), regular.loss(input()), "evaluation");
      }
      if (draw.integer(0, 4) == 0) (void)tower.loss(sharded(input(), mesh));  // A training forward without backward.
      auto expected = regular.loss(input(), skip), loss = tower.loss(sharded(input(), mesh), skip);
      expect_close(loss.detach(), expected.detach(), "loss");
      if (!expected.requires_grad()) continue;
      expected.backward();
      loss.backward();
      expect_same_gradients(tower.w, regular.w);
      if (draw.coin()) continue;  // Accumulates gradients.
      const at::NoGradGuard no_grad;
      for (std::size_t i = 0; i < 5; ++i) {
        if (!regular.w[i].grad().defined()) continue;
        regular.w[i].sub_(regular.w[i].grad(), 0.1);
        tower.w[i].sub_(tower.w[i].grad(), 0.1);
        regular.w[i].mutable_grad().reset();
        tower.w[i].mutable_grad().reset();
      }
    }
  });
  RC_ASSERT(!::testing::Test::HasFailure());
}

// All views and casts of a parameter, used by any operators, need one gather of the unit.
RC_GTEST_PROP(FsdpSchedule, ViewsAndCastsUseTheGatheredUnit, ()) {
  const auto seed = *rc::gen::inRange<std::uint64_t>(0, 100000);
  on_mesh({2, 2}, [&](const DeviceMesh& mesh2) {
    const auto mesh = mesh2.view({2, 2}, {"shard", "tp"});
    Draw draw(seed);
    const Shape sizes = {draw.integer(1, 5), 2 * draw.integer(1, 3), draw.integer(1, 4)};
    at::Tensor regular = draw.normal(sizes, at::kFloat);
    if (draw.coin()) regular = regular.permute({1, 0, 2});
    const Placement tp = draw.coin() ? Placement(Shard(draw.integer(0, 2))) : Placement(Replicate());
    at::Tensor w = distribute_tensor(regular, mesh, {Replicate(), tp}).requires_grad_();
    const auto unit = fully_shard({{"w", &w}}, mesh);
    int gathers = 0, uses = 0;
    std::string log = c10::str("seed ", seed, ": ", DTensor(w).spec_str(), "\n");
    const EventListener listener(
        [&](const Event& e) {
          log += e.name + " " + e.axis + "\n";
          gathers += e.axis.find("shard") != std::string::npos;
        },
        {Event::Kind::collective});
    const auto view = [&](at::Tensor t, Draw d) {
      for (int i = 0; i < 4; ++i) {
        const auto dims = t.dim();
        switch (d.integer(0, 7)) {
          case 0:
            t = t.transpose(0, dims - 1);
            break;
          case 1:
            t = t.unsqueeze(d.integer(0, dims));
            break;
          case 2:
            t = t.size(0) > 1 ? t.narrow(0, 1, t.size(0) - 1) : t;
            break;
          case 3:
            t = dims > 1 ? t.select(dims - 1, t.size(dims - 1) - 1) : t;
            break;
          case 4:
            t = t.size(1 % dims) % 2 == 0 ? t.unflatten(1 % dims, {2, t.size(1 % dims) / 2}) : t;
            break;
          case 5:
            t = t.detach();
            break;
          case 6:
            if (i == 0) t = t.to(at::kDouble);  // Of the full parameter.
            break;
          default:
            t = t.slice(dims - 1, 0, t.size(dims - 1), 2);
            break;
        }
      }
      return t;
    };
    for (int i = 0; i < 3; ++i) {
      Draw same = draw;
      const auto expected = view(regular, same), got = view(w, same);
      const at::NoGradGuard no_grad;
      // A view that was redistributed, over tp or to shards other than storage shards, does not use the unit.
      const bool found = tp.is_replicate() && DTensor(got).placements()[0].is_storage();
      log += DTensor(got).spec_str() + (found ? " found\n" : "\n");
      gathers = 0;
      const auto sine = got.sin(), power = got.exp();
      uses += found ? gathers : 0;
      // In float, vectorized loops and their remainders round differently.
      expect_close(sine, expected.sin(), "view", 1e-6);
      expect_close(power, expected.exp(), "view again", 1e-6);
      (void)draw.integer(0, 1);
    }
    EXPECT_LE(unit.stats().all_gathers, 1);
    EXPECT_LE(uses, 1) << log;
  });
  RC_ASSERT(!::testing::Test::HasFailure());
}

TEST(FsdpSchedule, OneGatherForLinearAndItsSavedTensors) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Tower tower(1);
    const auto units = tower.shard(mesh);
    int gathers = 0;
    const EventListener listener([&](const Event& e) { gathers += e.name.find("all_gather") != std::string::npos; });
    const auto x = sharded(input(), mesh).requires_grad_();
    auto y = at::linear(at::linear(x, tower.w[0]), tower.w[0].to(at::kFloat).to(at::kDouble));
    y.sum().backward();
    EXPECT_EQ(units[0].stats().all_gathers, 1);  // In use from forward to backward.
  });
}

TEST(FsdpSchedule, GatheredCopyIsInvalidatedByWrites) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Tower regular(2), tower(2);
    tower.shard(mesh, {.reshard_after_forward = false});
    const at::NoGradGuard no_grad;
    expect_close(tower.loss(sharded(input(), mesh)), regular.loss(input()), "before");
    const auto fresh = Draw(77).normal({6, 6});
    regular.w[0].copy_(fresh);
    tower.w[0].copy_(fresh);  // As loading an unsharded state does.
    expect_close(tower.loss(sharded(input(), mesh)), regular.loss(input()), "after copy_");
    regular.w[1].view({36}).mul_(0.5);
    DTensor(tower.w[1]).to_local().mul_(0.5);
    expect_close(tower.loss(sharded(input(), mesh)), regular.loss(input()), "after a write to the shard");
    const auto cast = tower.w[0].to(at::kFloat);
    tower.w[0].mul_(3);
    expect_close(cast.sin(), regular.w[0].to(at::kFloat).sin(), "a cast before the write keeps its values", 1e-6);
  });
}

TEST(FsdpSchedule, AutogradGradLeavesTheAccumulatedGradient) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Tower regular(2), tower(2);
    tower.shard(mesh);
    regular.loss(input()).backward();
    tower.loss(sharded(input(), mesh)).backward();
    const auto expected = torch::autograd::grad({regular.loss(input())}, {regular.w[0]})[0];
    const auto got = torch::autograd::grad({tower.loss(sharded(input(), mesh))}, {tower.w[0]})[0];
    expect_close(got, expected, "autograd::grad");
    expect_same_gradients(tower.w, regular.w);
  });
}

TEST(FsdpSchedule, StateOfAFailedPassIsDiscarded) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Tower regular(3), tower(3);
    const auto unit = fully_shard(tower.list(), mesh);
    auto h = at::gelu(at::linear(sharded(input(), mesh), tower.w[0]));
    h.register_hook([](const at::Tensor&) { TORCH_CHECK(false, "stop"); });
    EXPECT_THROW(at::linear(h, tower.w[1]).sum().backward(), c10::Error);  // Only w1 has a gradient.
    regular.loss(input(), /*skip=*/1).backward();
    tower.loss(sharded(input(), mesh), /*skip=*/1).backward();
    expect_same_gradients(tower.w, regular.w);
    EXPECT_EQ(unit.stats().gathered_bytes, 0);
    EXPECT_EQ(unit.stats().unreduced_bytes, 0);
  });
}

}  // namespace
}  // namespace dtensor::test

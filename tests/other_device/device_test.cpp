// DTensors on a mesh of a device type other than the CPU: where tensors are allocated, training, and refused
// operations.
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <thread>

#include "dtensor/hooks.h"
#include "dtensor/loss.h"
#include "internal/gradient_norms.h"
#include "other_device/register.h"
#include "other_device/step.h"
#include "scope/module_scope.h"

namespace dtensor::test {
namespace {

TEST(OtherDevice, TensorsAreOnTheDeviceOfTheMesh) {
  on_device_mesh({2, 2}, [](const DeviceMesh& mesh) {
    EXPECT_EQ(mesh.device_type(), fake::kDevice);
    const auto expect_there = [&](const at::Tensor& t) {
      EXPECT_EQ(t.device().type(), fake::kDevice);
      EXPECT_EQ(DTensor(t).to_local().device().type(), fake::kDevice);
    };
    const Placements split = {Shard(0), Replicate()};
    const at::Tensor host = at::arange(12, at::kDouble).view({4, 3});
    const auto x = distribute_tensor(host, mesh, split);
    expect_there(x);
    EXPECT_EQ(x.full_tensor().device().type(), fake::kDevice);
    EXPECT_TRUE(at::equal(x.full_tensor().cpu(), host));
    expect_there(zeros({4, 3}, mesh, split));
    expect_there(at::zeros_like(x));
    expect_there(x.new_ones({2, 2}));
    expect_there(at::gelu(x));
    expect_there(x.redistribute({Replicate(), Shard(1)}));
    const MeshScope scope(mesh, split);
    expect_there(at::rand({4, 3}));
    expect_there(at::arange(4));
  });
}

// A copy to another device is on a mesh of that device with the same ranks, also if the call was cached for this
// device.
TEST(OtherDevice, CopiesAreOnTheMeshOfTheirDevice) {
  on_device_mesh({2}, [&](const DeviceMesh& mesh) {
    const at::Tensor host = at::arange(12, at::kDouble).view({4, 3});
    const auto x = distribute_tensor(host, mesh, {Shard(0)}).requires_grad_();
    for (int time = 0; time < 2; ++time) {
      const auto there = x.to(fake::kDevice, at::kFloat);
      EXPECT_EQ(DTensor(there).mesh(), mesh);
      const auto here = x.to(at::kCPU, at::kFloat), zeros = at::zeros_like(x, at::TensorOptions(at::kCPU));
      for (const auto& t : {here, zeros}) {
        EXPECT_TRUE(t.is_cpu());
        EXPECT_EQ(DTensor(t).mesh().device_type(), at::kCPU);
        EXPECT_EQ(DTensor(t).placements(), (Placements{Shard(0)}));
        EXPECT_TRUE(DTensor(t.detach()).to_local().is_cpu());
      }
      EXPECT_TRUE(at::equal(DTensor(here.detach() * 2).to_local(),
                            host.narrow(0, 2 * mesh.coordinate()->front(), 2).to(at::kFloat) * 2));
      const auto back = here.to(fake::kDevice);
      EXPECT_EQ(DTensor(back).mesh(), mesh);
      const auto gradient = torch::autograd::grad({back.sum()}, {x})[0];
      EXPECT_EQ(DTensor(gradient).mesh(), mesh);
      EXPECT_TRUE(at::equal(host_value(gradient), at::ones({4, 3}, at::kDouble)));
    }
  });
}

// The values are those of the CPU, whatever the layout.
TEST(OtherDevice, RandomFillsMatchTheCpu) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    std::vector<at::Tensor> expected;
    on_mesh({1}, [&](const DeviceMesh& mesh) {
      manual_seed(mesh, 4);
      expected = {rand({5, 3}, mesh, {Replicate()}, dtype), randn({5, 3}, mesh, {Replicate()}, dtype)};
      for (auto& t : expected) t = DTensor(t).to_local();
    });
    on_device_mesh({2, 2}, [&](const DeviceMesh& mesh) {
      manual_seed(mesh, 4);
      const Placements split = {Shard(0), Shard(1)};
      EXPECT_TRUE(at::equal(rand({5, 3}, mesh, split, dtype).full_tensor().cpu(), expected[0]));
      EXPECT_TRUE(at::equal(randn({5, 3}, mesh, split, dtype).full_tensor().cpu(), expected[1]));
    });
  }
}

// A CPU operand beside a DTensor of the device is refused, as it is without DTensors; a scalar tensor is accepted.
TEST(OtherDevice, CpuOperandsAreRefused) {
  on_device_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(at::ones({4, 3}), mesh, {Shard(0)});
    EXPECT_ANY_THROW(at::mm(x, at::ones({3, 2})));
    EXPECT_ANY_THROW(x.add(at::ones({4, 3})));
    EXPECT_ANY_THROW(DTensor::from_local(at::ones({2, 3}), mesh, {Shard(0)}, {4, 3}));
    EXPECT_TRUE(at::equal(host_value(x * at::scalar_tensor(2.0)), at::full({4, 3}, 2.0)));
  });
}

TEST(OtherDevice, TrainingEqualsCpu) {
  for (const Shape& shape : {Shape{1, 1}, Shape{2, 1}, Shape{1, 2}, Shape{2, 2}}) {
    for (const auto stored : {Stored::by_placements, Stored::in_units}) {
      on_device_mesh(shape, [&](const DeviceMesh& mesh) {
        expect_trains(mesh, {.stored = stored}, [](const Net& net) {
          EXPECT_EQ(net.p.at("a.w").device().type(), fake::kDevice);
          EXPECT_EQ(net.p.at("a.w").grad().device().type(), fake::kDevice);
        });
      });
    }
  }
}

// A rank outside the mesh of a matrix has handles to it and to its gradient.
TEST(OtherDevice, MatricesStepOnMeshesWithoutAllRanks) {
  using Step = std::function<void(const at::Tensor&)>;
  const at::Tensor start = Draw(1).normal({4, 3}), gradient = Draw(2).normal({4, 3});
  const Step muon = [](const at::Tensor& p) { Muon({p}, {.bfloat16 = false}).step(); };
  const Step shampoo = [](const at::Tensor& p) { Shampoo({p}, {.eps = 1e-4, .start = 1}).step(); };
  for (const Step& step : {muon, shampoo}) {
    const at::Tensor expected = start.clone().requires_grad_();
    expected.mutable_grad() = gradient.clone();
    step(expected);
    on_device_mesh({3}, [&](const DeviceMesh& all) {
      const DeviceMesh two = device_mesh(all.world(), fake::kDevice, {0, 1}, {2});
      const at::Tensor p = distribute_tensor(start, two, {Shard(0)}).requires_grad_();
      p.mutable_grad() = distribute_tensor(gradient, two, {Shard(0)});
      step(p);
      if (two.is_member()) expect_close(host_value(p), expected.detach(), "parameter");
    });
  }
}

// Its summand must be on the same device as those of the other ranks.
TEST(OtherDevice, RankWithoutGradientsGetsTheNormOnTheDevice) {
  on_device_mesh({3}, [](const DeviceMesh& all) {
    const DeviceMesh two = device_mesh(all.world(), fake::kDevice, {0, 1}, {2});
    const at::Tensor a = distribute_tensor(at::ones({4}), two, {Shard(0)}).requires_grad_();
    const at::Tensor b = distribute_tensor(at::ones({3}), all, {Shard(0)}).requires_grad_();
    if (two.is_member()) a.mutable_grad() = a.detach() * 2;
    for (const at::Tensor& norm : {get_grad_squares({a, b}).sum().sqrt(), clip_grad_norm_({a, b}, 1)}) {
      EXPECT_EQ(norm.device().type(), fake::kDevice);
      EXPECT_NEAR(norm.sum().item<double>(), 4, 1e-6);
    }
  });
}

// Autograd runs a backward pass on threads for devices; scopes of the starting thread apply there.
TEST(OtherDevice, ScopesApplyOnAutogradThreads) {
  on_device_mesh({1, 1}, [](const DeviceMesh& mesh) {
    auto& autograd = c10::AutogradState::get_tls_state();
    autograd.set_multithreading_enabled(true);
    at::Tensor w = at::ones({3}).requires_grad_();
    fully_shard({{"w", &w}}, mesh, {.cpu_offload = true});
    const auto x = distribute_tensor(at::ones({4, 3}), mesh, {Replicate(), Shard(0)});
    std::thread::id thread;
    bool replicas_off = false;
    set_gradient_ready_hook(DTensor(w), [&](const DTensor&) {
      thread = std::this_thread::get_id();
      replicas_off = NoReplicaSync::current();
    });
    {
      const NoGradientSync off;
      const NoReplicaSync replicas;
      (x * w).sum().backward();
      EXPECT_TRUE(replicas_off);
      EXPECT_EQ(DTensor(w.grad()).to_local().device().type(), fake::kDevice);  // Not offloaded before synchronization.
    }
    (x * w).sum().backward();
    EXPECT_FALSE(replicas_off);
    EXPECT_TRUE(DTensor(w.grad()).to_local().is_cpu());
    EXPECT_TRUE(at::equal(host_value(w.grad()), at::full({3}, 8.0)));
    EXPECT_NE(thread, std::this_thread::get_id());
    autograd.set_multithreading_enabled(false);
  });
}

TEST(OtherDevice, ModesAndListenersApplyOnAutogradThreads) {
  on_device_mesh({1, 1}, [](const DeviceMesh& mesh) {
    auto& autograd = c10::AutogradState::get_tls_state();
    autograd.set_multithreading_enabled(true);
    const auto x = distribute_tensor(at::ones({4, 3}), mesh, {Replicate(), Shard(0)}).requires_grad_();
    const auto outside = std::this_thread::get_id();
    int heard_there = 0, refused = 0;
    const auto pass = [&] {
      auto y = x * 2;
      y.register_hook([&](const at::Tensor& gradient) {
        EXPECT_NE(std::this_thread::get_id(), outside);
        EXPECT_EQ(AttentionStrategyScope::current(),
                  refused == 0 ? AttentionStrategy::ring : AttentionStrategy::automatic);
        try {
          gradient + at::ones({3}).to(fake::kDevice);
        } catch (const c10::Error& error) {
          ++refused;
        }
        return gradient;
      });
      y.sum().backward();
    };
    {
      const AttentionStrategyScope strategy(AttentionStrategy::ring);
      const Strict strict;
      const EventListener listener([&](const Event&) { heard_there += std::this_thread::get_id() != outside ? 1 : 0; });
      pass();
    }
    EXPECT_EQ(refused, 1);
    EXPECT_GT(heard_there, 0);
    heard_there = 0;
    pass();
    EXPECT_EQ(refused, 1);
    EXPECT_EQ(heard_there, 0);
    autograd.set_multithreading_enabled(false);
  });
}

TEST(OtherDevice, BackwardOnAutogradThreadsReportsTheModule) {
  on_device_mesh({1, 1}, [](const DeviceMesh& mesh) {
    auto& autograd = c10::AutogradState::get_tls_state();
    autograd.set_multithreading_enabled(true);
    const auto x = distribute_tensor(at::ones({4, 3}), mesh, {Replicate(), Shard(0)}).requires_grad_();
    const std::string name = "block";
    const NodeRecorder recorder;
    at::Tensor y;
    {
      const ModuleScope scope(name);
      y = x * 2;
    }
    const auto outside = std::this_thread::get_id();
    std::vector<std::string> seen;
    const EventListener listener([&](const Event& event) {
      if (event.kind == Event::Kind::op && std::this_thread::get_id() != outside)
        seen.push_back(event.name + " in " + current_module_and_phase().module);
    });
    y.sum().backward();
    EXPECT_EQ(std::count(seen.begin(), seen.end(), "aten::mul.Scalar in block"), 1) << c10::Join(", ", seen);
    autograd.set_multithreading_enabled(false);
  });
}

// On each rank another of the two threads of one backward pass runs first, so their calls have no common order to
// compare.
TEST(OtherDevice, CheckedComparesOneAutogradThread) {
  on_device_mesh({1, 2}, [](const DeviceMesh& mesh) {
    auto& autograd = c10::AutogradState::get_tls_state();
    autograd.set_multithreading_enabled(true);
    const Checked checked(Checks::calls);
    const auto x = distribute_tensor(at::ones({4, 3}), mesh, {Replicate(), Shard(0)}).requires_grad_();
    const at::Tensor host = at::ones({2}).requires_grad_();
    const at::Tensor other = x.detach();
    const bool device_first = mesh.coordinate()->back() == 0;
    std::atomic<bool> began{false}, device_done{false}, host_done{false};
    const auto wait_for = [](const std::atomic<bool>& flag) {
      while (!flag) std::this_thread::yield();
    };
    const at::Tensor there = x * 2, here = host * 2;
    there.register_hook([&](const at::Tensor& gradient) {
      began = true;
      if (!device_first) wait_for(host_done);
      at::tanh(gradient);
      device_done = true;
      return gradient;
    });
    here.register_hook([&](const at::Tensor& gradient) {
      wait_for(device_first ? device_done : began);
      at::relu(other);
      host_done = true;
      return gradient;
    });
    torch::autograd::backward({there.sum(), here.sum()}, {});
    EXPECT_TRUE(at::equal(host_value(x.grad()), at::full({4, 3}, 2.0)));
    autograd.set_multithreading_enabled(false);
  });
}

// Checks that parameters, gradients and states are in host memory.
struct Positions {
  bool on_host(const at::Tensor& t) const { return DTensor(t).to_local().is_cpu(); }
  std::int64_t local_numel(const at::Tensor& t) const { return DTensor(t.detach()).to_local().numel(); }
  void expect_on_host(const Net& net) const {
    for (const auto& [name, t] : net.p) {
      EXPECT_TRUE(on_host(t.detach())) << name;
      const auto numel = local_numel(t);  // Called on every rank.
      EXPECT_TRUE(DTensor(t.detach()).to_local().is_pinned() || numel == 0) << name;
      EXPECT_TRUE(!t.grad().defined() || on_host(t.grad())) << name;
    }
  }
};

TEST(CpuOffload, MatchesSingleDevice) {
  for (const Shape& shape : {Shape{1, 1}, Shape{1, 2}, Shape{1, 3}, Shape{2, 1}, Shape{2, 2}}) {
    for (const bool reshard : {true, false}) {
      on_device_mesh(shape, [&](const DeviceMesh& mesh) {
        expect_trains(mesh, {.options = {.reshard_after_forward = reshard, .cpu_offload = true}},
                      [](const Net& net) { Positions().expect_on_host(net); });
      });
    }
  }
}

TEST(CpuOffload, AccumulatesOnTheDeviceUntilSynchronization) {
  for (const Shape& shape : {Shape{1, 2}, Shape{2, 2}, Shape{2, 1}}) {
    for (const bool replicas_only : {true, false}) {
      on_device_mesh(shape, [&](const DeviceMesh& mesh) {
        expect_trains(mesh, {.options = {.cpu_offload = true}, .accumulate = 3, .replicas_only = replicas_only});
      });
    }
  }
}

// A head that the loss multiplies by itself.
TEST(CpuOffload, HeadOfALossEqualsOneDevice) {
  const at::Tensor rows = Draw(3).normal({6, 4}), head = Draw(4).normal({7, 4}).requires_grad_();
  const at::Tensor targets = at::arange(6, at::kLong);
  const at::Tensor expected = linear_cross_entropy(rows, head, targets);
  expected.backward();
  for (const Shape& shape : {Shape{1, 1}, Shape{1, 2}, Shape{2, 2}}) {
    on_device_mesh(shape, [&](const DeviceMesh& mesh) {
      at::Tensor w = head.detach().clone().requires_grad_();
      const auto unit = fully_shard({{"w", &w}}, mesh, {.cpu_offload = true});
      const auto place = [&](const at::Tensor& t) { return distribute_tensor(t, mesh, {Replicate(), Shard(0)}); };
      const auto loss = linear_cross_entropy(place(rows), w, place(targets));
      loss.backward();
      EXPECT_NEAR(host_value(loss).item<double>(), expected.item<double>(), 1e-6);
      EXPECT_TRUE(DTensor(w.grad()).to_local().is_cpu());
      expect_close(host_value(w.grad()), head.grad(), "gradient");
      EXPECT_GT(unit.stats().all_gathers, 0);
    });
  }
}

// Where device and host have the same memory, offloading only copies.
TEST(CpuOffload, OnAMeshOfCpusEqualsOneDevice) {
  for (const Shape& shape : {Shape{1, 1}, Shape{1, 2}, Shape{2, 2}}) {
    for (const bool reshard : {true, false}) {
      run_local(count(shape), [&](Communicator world) {
        const auto mesh = init_device_mesh(world, at::kCPU, shape, {"replicate", "shard"});
        const FsdpOptions options{.reshard_after_forward = reshard, .cpu_offload = true};
        EXPECT_NE(mesh, mesh.offloaded());
        expect_trains(mesh, {.options = options, .accumulate = 2}, [&](const Net& net) {
          for (const auto& [name, t] : net.p) EXPECT_EQ(DTensor(t.detach()).mesh(), mesh.offloaded()) << name;
        });
      });
    }
  }
}

}  // namespace
}  // namespace dtensor::test

// Training on thread ranks that share a GPU, and over NCCL, equals training on one CPU.
#include "dtensor/launch.h"
#include "gpu/gpu.h"
#include "other_device/step.h"

namespace dtensor::test {
namespace {

using GpuTraining = Gpu;

DeviceMesh mesh_of(const Communicator& world, const Shape& shape) {
  return init_device_mesh(world, at::kCUDA, shape, {"replicate", "shard"});
}

void expect_trains_both_ways(const DeviceMesh& mesh) {
  for (const auto stored : {Stored::by_placements, Stored::in_units}) {
    expect_trains(mesh, {.stored = stored, .accumulate = 2}, [](const Net& net) {
      EXPECT_TRUE(net.p.at("a.w").is_cuda());
      EXPECT_TRUE(net.p.at("a.w").grad().is_cuda());
    });
  }
}

TEST_F(GpuTraining, OnThreadRanks) {
  for (const Shape& shape : {Shape{1, 1}, Shape{2, 1}, Shape{1, 2}, Shape{2, 2}}) {
    run_local(count(shape), [&](const Communicator& world) { expect_trains_both_ways(mesh_of(world, shape)); });
  }
}

TEST_F(GpuTraining, EqualsOneDeviceOverNccl) {
  run_local(1, [&](const Communicator& world) {
    expect_trains_both_ways(mesh_of(nccl_communicator(world, 0), {1, 1}));
  });
}

TEST_F(GpuTraining, WithParametersInHostMemory) {
  run_local(2, [&](const Communicator& world) {
    expect_trains(mesh_of(world, {1, 2}), {.options = {.cpu_offload = true}},
                  [](const Net& net) { EXPECT_TRUE(DTensor(net.p.at("a.w").detach()).to_local().is_cpu()); });
  });
}

// Autograd runs on its own thread for the device; the scopes of the thread that starts backward are current there.
TEST_F(GpuTraining, ScopesAreCurrentOnAutogradsThread) {
  run_local(1, [&](const Communicator& world) {
    auto& autograd = c10::AutogradState::get_tls_state();
    autograd.set_multithreading_enabled(true);
    const auto mesh = mesh_of(world, {1, 1});
    const auto x = distribute_tensor(at::ones({4, 3}), mesh, {Replicate(), Shard(0)}).requires_grad_();
    const auto outside = std::this_thread::get_id();
    int received = 0;
    auto y = x * 2;
    y.register_hook([](const at::Tensor& gradient) { return gradient * 3; });
    {
      const EventListener listener([&](const Event&) { received += std::this_thread::get_id() != outside ? 1 : 0; });
      y.sum().backward();
    }
    EXPECT_GT(received, 0);
    EXPECT_TRUE(at::equal(host_value(x.grad()), at::full({4, 3}, 6.0)));
    autograd.set_multithreading_enabled(false);
  });
}

}  // namespace
}  // namespace dtensor::test

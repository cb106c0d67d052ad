// A training step reads nothing from the device and waits for no copy, so that the host can run ahead of it.
#include "other_device/step.h"

namespace dtensor::test {
namespace {

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(const std::vector<at::Tensor>&)>;

// Reads and blocking copies of all ranks in the third step; the first two create what is kept between steps.
int waits_of_a_step(const Shape& shape, Stored stored, const MakeOptimizer& make) {
  std::atomic<int> waits = -1;
  on_device_mesh(shape, [&](const DeviceMesh& mesh) {
    Net net(5);
    const auto units = store(net, mesh, stored, {});
    const auto optimizer = make(tensors_of(net));
    const auto d = data(net, 3, 6);
    const Placements batch(static_cast<std::size_t>(mesh.ndim()), Shard(0));
    const at::Tensor x = distribute_tensor(d.x, mesh, batch), ids = distribute_tensor(d.ids, mesh, batch);
    for (int step = 0; step < 3; ++step) {
      mesh.world().barrier();
      fake::host_reads = fake::blocking_copies = 0;
      mesh.world().barrier();
      net.loss(x, ids).backward();
      clip_grad_norm_(tensors_of(net), 0.5);
      optimizer->step();
      optimizer->zero_grad();
      mesh.world().barrier();
    }
    if (mesh.world().rank() == 0) waits = fake::host_reads + fake::blocking_copies;
    mesh.world().barrier();
  });
  return waits;
}

TEST(OtherDevice, StepWithClippingDoesNotWait) {
  const std::pair<const char*, MakeOptimizer> optimizers[] = {
      {"AdamW", [](const auto& p) { return std::make_unique<AdamW>(p); }},
      {"SGD", [](const auto& p) { return std::make_unique<SGD>(p, SGDOptions{.lr = 0.1, .momentum = 0.9}); }},
      {"Adagrad", [](const auto& p) { return std::make_unique<Adagrad>(p); }},
  };
  for (const auto& [name, make] : optimizers) {
    for (const Shape& shape : {Shape{1, 1}, Shape{2, 1}, Shape{1, 2}, Shape{2, 2}}) {
      for (const auto stored : {Stored::by_placements, Stored::in_units}) {
        EXPECT_EQ(waits_of_a_step(shape, stored, make), 0)
            << name << ' ' << at::IntArrayRef(shape) << static_cast<int>(stored);
      }
    }
  }
}

}  // namespace
}  // namespace dtensor::test

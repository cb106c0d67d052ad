// A training step reads nothing from the device and waits for no copy, so that the host can run ahead of it.
#include <unistd.h>

#include <numeric>

#include "dtensor/data.h"
#include "other_device/step.h"

namespace dtensor::test {
namespace {

// Reads and blocking copies of all ranks in `body`.
int waits_in(const DeviceMesh& mesh, const std::function<void()>& body) {
  mesh.world().barrier();
  fake::host_reads = fake::blocking_copies = 0;
  mesh.world().barrier();
  body();
  mesh.world().barrier();
  const int waits = fake::host_reads + fake::blocking_copies;
  mesh.world().barrier();
  return waits;
}

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(const std::vector<at::Tensor>&)>;

// Waits in the third step; the first two create what is kept between steps.
int waits_of_a_step(const Shape& shape, Stored stored, const MakeOptimizer& make) {
  std::atomic<int> waits = -1;
  on_device_mesh(shape, [&](const DeviceMesh& mesh) {
    Net net(5);
    const auto units = store(net, mesh, stored, {});
    const auto optimizer = make(tensors_of(net));
    const auto d = data(net, 3, 6);
    const Placements batch(static_cast<std::size_t>(mesh.ndim()), Shard(0));
    const at::Tensor x = distribute_tensor(d.x, mesh, batch), ids = distribute_tensor(d.ids, mesh, batch);
    const auto step = [&] {
      net.loss(x, ids).backward();
      clip_grad_norm_(tensors_of(net), 0.5);
      optimizer->step();
      optimizer->zero_grad();
    };
    step(), step();
    const int found = waits_in(mesh, step);
    if (mesh.world().rank() == 0) waits = found;
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

TEST(OtherDevice, NormOverSeveralMeshesDoesNotWait) {
  on_device_mesh({2, 2}, [](const DeviceMesh& mesh) {
    const at::Tensor all = distribute_tensor(at::ones({4}), mesh, {Replicate(), Shard(0)});
    const at::Tensor slice = distribute_tensor(at::ones({5}), mesh["shard"], {Shard(0)});
    at::Tensor norm;
    EXPECT_EQ(waits_in(mesh, [&] { norm = get_total_norm({all, slice}); }), 0);
    EXPECT_NEAR(norm.item<double>(), 3, 1e-6);
  });
}

TEST(OtherDevice, TokensAreCopiedWithoutWait) {
  const std::string path = ::testing::TempDir() + "tokens_" + std::to_string(::getpid());
  std::vector<std::int64_t> tokens(100);
  std::iota(tokens.begin(), tokens.end(), 0);
  write_token_file(path, tokens, TokenFiles::Dtype::uint16);
  const TokenBatches batches(TokenFiles({path}, TokenFiles::Dtype::uint16), {.batch = 4, .sequence = 3});
  on_device_mesh({2, 2}, [&](const DeviceMesh& mesh) {
    TokenBatches::Batch batch;
    EXPECT_EQ(waits_in(mesh, [&] { batch = batches.at(1, mesh, {Shard(0), Replicate()}); }), 0);
    EXPECT_EQ(batch.ids.device().type(), fake::kDevice);
    EXPECT_TRUE(at::equal(host_value(batch.ids), batches.at(1).ids));
  });
}

}  // namespace
}  // namespace dtensor::test

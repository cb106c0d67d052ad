// Tensors, meshes and communicators used by another rank.
#include <gtest/gtest.h>

#include <thread>

#include "dtensor/dtensor.h"
#include "faults/errors.h"

namespace dtensor::test {
namespace {

at::Tensor shard_of(const Communicator& world) {
  const auto mesh = init_device_mesh(world, at::kCPU, {world.size()});
  return distribute_tensor(at::arange(8, at::kDouble), mesh, {Shard(0)});
}

void expect_rejected(const std::string& text) {
  EXPECT_TRUE(contains(text, "of rank 0 of 2")) << text;
  EXPECT_TRUE(contains(text, "is used by a thread of rank 1 of 2")) << text;
}

// A global model: made by one rank, used by all ranks.
TEST(Owner, TensorOfAnotherRankIsRefused) {
  at::Tensor global;
  const auto errors = errors_of(2, [&](Communicator world) {
    const auto mine = shard_of(world);
    if (world.rank() == 0) global = mine;
    world.barrier();
    if (world.rank() == 1) global.sum();
    if (world.rank() == 0) world.barrier();
  });
  expect_rejected(errors[1]);
  EXPECT_TRUE(contains(errors[1], "aten::sum")) << errors[1];
  EXPECT_TRUE(contains(errors[0], "rank 1 failed")) << errors[0];
}

TEST(Owner, EveryUseOfAnotherRanksTensorIsRefused) {
  const std::vector<std::function<void(at::Tensor&)>> uses = {
      [](at::Tensor& t) { DTensor(t).full_tensor(); },
      [](at::Tensor& t) { DTensor(t).redistribute({Replicate()}); },
      [](at::Tensor& t) { t.mul_(2); },
      [](at::Tensor& t) { t + t; },
      [](at::Tensor& t) { t.select(0, 1).item<double>(); },
      [](at::Tensor& t) { at::_foreach_add({t}, 1); },
      [](at::Tensor& t) { DTensor(t).mesh().communicator(0).barrier(); },
      [](at::Tensor& t) { DTensor(t).mesh().world().barrier(); },
      [](at::Tensor& t) {
        at::mm(t.view({2, 4}), t.view({4, 2}));
      },
  };
  for (const auto& use : uses) {
    at::Tensor global;
    const auto errors = errors_of(2, [&](Communicator world) {
      const auto mine = shard_of(world);
      if (world.rank() == 0) global = mine;
      world.barrier();
      if (world.rank() == 1) use(global);
      if (world.rank() == 0) world.barrier();
    });
    expect_rejected(errors[1]);
  }
}

// The tensor belongs to a rank of the outer run, and the inner run has other ranks.
TEST(Owner, TensorOfAnEnclosingRunIsRefused) {
  run_local(1, [&](Communicator outer) {
    const auto x = shard_of(outer);
    const auto errors = errors_of(2, [&](Communicator) { x.sum(); });
    for (int r : {0, 1}) {
      const auto& text = errors[static_cast<std::size_t>(r)];
      if (contains(text, "rank 1 failed") || contains(text, "rank 0 failed")) continue;  // reported by the other rank
      EXPECT_TRUE(contains(text, "of rank 0 of 1 of run ")) << text;
      EXPECT_TRUE(contains(text, "is used by a thread of rank " + std::to_string(r) + " of 2 of run ")) << text;
    }
    EXPECT_EQ(DTensor(x.sum()).full_tensor().item<double>(), 28);  // the outer rank continues
  });
}

TEST(Owner, HelperThreadsActForTheRankThatStartedThem) {
  run_local(2, [&](Communicator world) {
    const auto x = shard_of(world);
    double sum = 0;
    std::thread([&] { sum = x.sum().item<double>(); }).join();
    EXPECT_EQ(sum, 28);
  });
}

TEST(Owner, PoolThreadsBelongToNoRankBetweenRuns) {
  at::Tensor kept;
  run_local(1, [&](Communicator world) { kept = shard_of(world); });
  EXPECT_EQ((kept + kept).sum().item<double>(), 56);
}

}  // namespace
}  // namespace dtensor::test

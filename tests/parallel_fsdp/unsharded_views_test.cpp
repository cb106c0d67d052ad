// The views of a gathered copy are created once; its memory is freed and allocated again.
#include <gtest/gtest.h>

#include "dtensor/dry_run.h"
#include "parallel/fsdp/unit.h"
#include "parallel_fsdp/tower.h"

namespace dtensor::test {
namespace {

const fsdp::Parameter& parameter_of(const at::Tensor& tensor) {
  std::size_t k = 0;
  auto* unit = fsdp::unit_of(tensor, k);
  return unit->parameters[k];
}

TEST(FsdpViews, AreReusedWithNewMemory) {
  for (const std::variant<bool, std::int64_t> reshard : {std::variant<bool, std::int64_t>(true), {2L}}) {
    on_mesh({4}, [&](const DeviceMesh& mesh) {
      Tower regular(3), tower(3);
      const auto units = tower.shard(mesh, {.reshard_after_forward = reshard});
      std::vector<const c10::TensorImpl*> views;
      for (int step = 0; step < 3; ++step) {
        tower.loss(sharded(input(), mesh)).backward();
        regular.loss(input()).backward();
        expect_same_gradients(tower.w, regular.w);
        EXPECT_EQ(units[0].stats().gathered_bytes, 0);
        for (std::size_t i = 0; i < 3; ++i) {
          const auto& p = parameter_of(tower.w[i]);
          EXPECT_EQ(p.full.storage().data(), nullptr);  // The memory is freed.
          if (step == 0) views.push_back(p.full.unsafeGetTensorImpl());
          EXPECT_EQ(p.full.unsafeGetTensorImpl(), views[i]);
        }
      }
    });
  }
}

// All units together would have hundreds of megabytes of them.
TEST(FsdpViews, PiecesAreNotKeptBeyond256Ranks) {
  for (const int ranks : {256, 257}) {
    const auto report = dry_run({.ranks = ranks}, [&](const Communicator& world) {
      at::Tensor weight = at::ones({2 * 257, 64}).requires_grad_();
      const auto mesh = init_device_mesh(world, at::kCPU, {ranks}, {"dp"});
      const auto unit = fully_shard(NamedTensors{{"w", &weight}}, mesh);
      for (int step = 0; step < 2; ++step) {
        at::linear(distribute_tensor(at::ones({ranks, 64}), mesh, {Shard(0)}), weight).sum().backward();
        EXPECT_EQ(parameter_of(weight).pieces.size(), ranks == 256 ? 256 : 0) << ranks;
      }
    });
    EXPECT_GE((report.collectives.at({"all_gather", "dp"}).calls), 4) << ranks;  // forward and backward, twice
  }
}

TEST(FsdpViews, TensorsInUseKeepTheirMemory) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Tower regular(3), tower(3);
    const auto units = tower.shard(mesh);
    const at::NoGradGuard no_grad;
    const auto x = sharded(input(), mesh);
    const auto former = regular.w[0].clone();
    const auto diagonal = tower.w[0].diagonal();  // A view of the gathered copy, since it has elements of every rank.
    EXPECT_EQ(DTensor(diagonal).to_local().storage().unsafeGetStorageImpl(),
              parameter_of(tower.w[0]).full.storage().unsafeGetStorageImpl());
    const auto held = DTensor(diagonal).to_local();
    for (int step = 0; step < 3; ++step) {
      expect_close(tower.loss(x), regular.loss(input()), "other units reuse free memory");
      for (auto* w : {&regular.w[0], &tower.w[0]}) w->mul_(1.5);
      expect_close(held, former.diagonal(), "a view of the first gathered copy");
    }
    expect_close(diagonal, regular.w[0].diagonal(), "a view of the parameter");
  });
}

// After out-of-memory a program may free memory and use the unit again.
TEST(FsdpViews, AreCreatedAgainAfterAGatherWithoutMemory) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const Tower regular(2);
    Tower tower(2);
    const auto units = tower.shard(mesh);
    const at::NoGradGuard no_grad;
    const auto x = sharded(input(), mesh);
    tower.loss(x);
    units[0].reshard();
    std::size_t k = 0;
    fsdp::unit_of(tower.w[0], k)->reshard_after_failed_gather();  // As the schedule does after a failed allocation.
    expect_close(tower.loss(x), regular.loss(input()), "loss");
  });
}

}  // namespace
}  // namespace dtensor::test

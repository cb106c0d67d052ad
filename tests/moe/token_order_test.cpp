// Order of tokens in the batch if shards of the input do not follow the order of ranks.
#include <gtest/gtest.h>

#include "small_layer.h"

namespace dtensor::test {
namespace {

const std::vector<Placements>& layouts() {
  static const std::vector<Placements> all = {{Shard(0), Shard(0)},
                                              {Shard(0), RaggedShard(0, {4, 4})},
                                              {Shard(0), RaggedShard(0, {2, 6})},
                                              {RaggedShard(0, {2, 6}), Shard(0)},
                                              {Replicate(), RaggedShard(0, {4, 4})}};
  return all;
}

// A ragged shard splits before placements to its left. Tokens beyond the capacity, at the end of the batch, are
// dropped.
TEST(TokenOrder, CapacityDropsTheEndOfTheBatchForRaggedShards) {
  auto options = small_options();
  options.router.top_k = 1;
  const auto x = Draw(4).normal({8, 8});
  const auto make = [&](MixtureOfExperts& layer) {
    fill(layer, 4);
    layer.set_dispatch(DispatchKind::capacity, {.factor = 0.7});
  };
  MixtureOfExperts one(options);
  make(one);
  const auto wanted = one.forward(x).detach();
  EXPECT_GT(one.stats().dropped, 0);
  run_local(4, [&](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"a", "b"});
    MixtureOfExperts layer(options);
    make(layer);
    for (const auto& placements : layouts()) {
      expect_close(layer.forward(distribute_tensor(x, mesh, placements)).detach(), wanted, to_string(placements));
    }
  });
}

TEST(TokenOrder, EqualDispatchNeedsRaggedShardsInRankOrder) {
  auto options = small_options();
  options.router.choice = RouterChoice::round_robin;
  options.router.top_k = 1;
  const auto x = Draw(4).normal({8, 8});
  MixtureOfExperts one(options);
  fill(one, 4);
  const auto wanted = one.forward(x).detach();
  run_local(4, [&](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"a", "b"});
    MixtureOfExperts layer(options);
    fill(layer, 4);
    apply_expert_parallel(layer, mesh.view({4}, {"ep"}));
    layer.set_dispatch(DispatchKind::equal);
    const auto run = [&](const Placements& p) { return layer.forward(distribute_tensor(x, mesh, p)).detach(); };
    expect_close(run({RaggedShard(0, {4, 4}), Shard(0)}), wanted, "in order");
    EXPECT_THROW(run({Shard(0), RaggedShard(0, {4, 4})}), c10::Error);
  });
}

}  // namespace
}  // namespace dtensor::test

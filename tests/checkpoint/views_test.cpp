// Targets are views of a sharded tensor whose data was redistributed for the view: loaded values reach the base, as
// with copy_. This loads q, k and v into one fused weight.
#include "checkpoint/folder.h"

namespace dtensor::test {
namespace {

constexpr const char* kNames[] = {"q", "k", "v"};

struct Fused {
  DTensor weight;
  StateTensors targets;
};

// Three parts of a weight that cross shard boundaries.
Fused fused(const DeviceMesh& mesh, const Placements& placements, bool parameter) {
  Fused f{zeros({12, 6}, mesh, placements, at::kDouble), {}};
  if (parameter) f.weight.requires_grad_();
  for (int i = 0; i < 3; ++i) f.targets.emplace_back(kNames[i], f.weight.narrow(0, 4 * i, 4));
  return f;
}

StateTensors parts_of(const at::Tensor& full) {
  StateTensors parts;
  for (int i = 0; i < 3; ++i) parts.emplace_back(kNames[i], full.narrow(0, 4 * i, 4));
  return parts;
}

const std::vector<Placements>& layouts() {
  static const std::vector<Placements> all = {
      {Shard(0), Shard(0)}, {Shard(0), Shard(1)}, {Shard(1), Replicate()}, {StridedShard(0, 2), Shard(0)}};
  return all;
}

at::Tensor values() { return at::arange(1, 73, at::kDouble).view({12, 6}); }

void expect_arrived(const Fused& f, const std::string& how) {
  EXPECT_TRUE(DTensor(f.weight.detach()).full_tensor().equal(values())) << how << f.weight.spec_str();
  for (int i = 0; i < 3; ++i) {
    const auto part = DTensor(f.targets[static_cast<std::size_t>(i)].second.detach()).full_tensor();
    EXPECT_TRUE(part.equal(values().narrow(0, 4 * i, 4))) << how << kNames[i];
  }
}

TEST(Views, LoadStateIntoPartsOfAFusedWeight) {
  const Folder folder;
  run_local(1, [&](Communicator world) { save_state(folder / "c", world, parts_of(values()), {}, kQuick); });
  for (const bool parameter : {false, true}) {
    for (const auto& placements : layouts()) {
      on_mesh({2, 2}, [&](const DeviceMesh& mesh) {
        const auto f = fused(mesh, placements, parameter);
        load_state(folder / "c", mesh.world(), f.targets);
        expect_arrived(f, "load_state ");
      });
    }
  }
}

TEST(Views, BroadcastStateIntoPartsOfAFusedWeight) {
  for (const auto& placements : layouts()) {
    on_mesh({2, 2}, [&](const DeviceMesh& mesh) {
      const auto f = fused(mesh, placements, false);
      const bool source = mesh.world().rank() == 1;
      broadcast_state(source ? parts_of(values()) : StateTensors(), mesh.world(), f.targets, 1);
      expect_arrived(f, "broadcast_state ");
    });
  }
}

// A write to such a view needs all ranks of its mesh.
TEST(Views, ViewMissingOnOneRankIsAnErrorOnEveryRank) {
  const Folder folder;
  run_local(1, [&](Communicator world) { save_state(folder / "c", world, parts_of(values()), {}, kQuick); });
  expect_error(errors_on(2,
                         [&](const Communicator& world) {
                           const auto mesh = init_device_mesh(world, at::kCPU, {2});
                           auto f = fused(mesh, {Shard(0)}, false);
                           if (world.rank() == 1) f.targets.pop_back();
                           load_state(folder / "c", world, f.targets);
                         }),
               {"'v'", "rank 1 does not list it"});
}

}  // namespace
}  // namespace dtensor::test

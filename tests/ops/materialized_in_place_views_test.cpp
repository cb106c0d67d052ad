// In-place views (squeeze_, ...) of a tensor that must be redistributed: it still shares its values with views that
// were taken before, on every rank, whatever tensors a rank keeps alive.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "internal/materialized_views.h"
#include "pitfalls/all_placements.h"

namespace dtensor::test {
namespace {

// Rank 0 has all elements of the squeezed dimension; the other ranks have empty shards.
at::Tensor row(const DeviceMesh& mesh) { return distribute_tensor(at::arange(4.0), mesh, {Shard(0)}).unsqueeze(0); }
at::Tensor split_row(const DeviceMesh& mesh) {
  return distribute_tensor(at::arange(4.0).unsqueeze(0), mesh, {Shard(0)});
}

TEST(MovedInPlace, WriteIsAcceptedOnEveryRank) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = split_row(mesh);
    at::Tensor held;  // Kept by one rank only.
    if (mesh.coordinate()->at(0) == 0) held = DTensor(x).to_local().alias();
    x.squeeze_(0);
    EXPECT_FALSE(raises(mesh, [&] { x.add_(1); }));
    require_close(x, at::arange(4.0) + 1, "written");
    if (held.defined()) require_same(held, (at::arange(4.0) + 1).unsqueeze(0), "held");
  });
}

TEST(MovedInPlace, EarlierViewsShareWrites) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = split_row(mesh);
    const auto view = x.alias(), detached = x.detach();
    x.squeeze_(0);
    x.mul_(3);
    for (const auto& t : {view, detached}) require_close(t, at::arange(4.0).mul(3).unsqueeze(0), "view");
    view.add_(1);
    require_close(x, at::arange(4.0).mul(3).add(1), "after a write to a view");
    x.unsqueeze_(1);
    x.add_(1);
    require_close(view, at::arange(4.0).mul(3).add(2).unsqueeze(0), "after a second in-place view");
  });
}

TEST(MovedInPlace, UnmovedTensorKeepsItsMemory) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = row(mesh);
    const auto local = DTensor(x).to_local();
    x.squeeze_(0);
    EXPECT_FALSE(is_materialized_view(x));
    EXPECT_TRUE(DTensor(x).to_local().is_alias_of(local));
  });
}

TEST(MovedInPlace, RanksOutsideTheMeshDoNotParticipate) {
  run_local(3, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2});
    const auto x = split_row(mesh), view = x.alias();
    x.squeeze_(0);
    x.add_(1);
    EXPECT_EQ(x.sizes(), at::IntArrayRef({4}));
    if (mesh.is_member()) require_close(view, (at::arange(4.0) + 1).unsqueeze(0), "view");
  });
}

}  // namespace
}  // namespace dtensor::test

// In-place views (squeeze_, ...) of a tensor that has to be moved for it: it still shares its values with the views
// that were taken before, on every rank alike, whoever holds what memory.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "internal/materialized_views.h"
#include "pitfalls/all_placements.h"

namespace dtensor::test {
namespace {

// Rank 0 has all of the dimension that goes, the others parts without elements.
at::Tensor row(const DeviceMesh& mesh) { return distribute_tensor(at::arange(4.0), mesh, {Shard(0)}).unsqueeze(0); }
at::Tensor split_row(const DeviceMesh& mesh) {
  return distribute_tensor(at::arange(4.0).unsqueeze(0), mesh, {Shard(0)});
}

TEST(MovedInPlace, NoRankRefusesAWriteAlone) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = split_row(mesh);
    at::Tensor held;  // by one rank
    if (mesh.coordinate()->at(0) == 0) held = DTensor(x).to_local().alias();
    x.squeeze_(0);
    EXPECT_FALSE(raises(mesh, [&] { x.add_(1); }));
    require_close(x, at::arange(4.0) + 1, "written");
    if (held.defined()) require_same(held, (at::arange(4.0) + 1).unsqueeze(0), "held");
  });
}

TEST(MovedInPlace, ViewsTakenBeforeSeeWritesAndAreSeen) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = split_row(mesh);
    const auto view = x.alias(), detached = x.detach();
    x.squeeze_(0);
    x.mul_(3);
    for (const auto& t : {view, detached}) require_close(t, at::arange(4.0).mul(3).unsqueeze(0), "view");
    view.add_(1);
    require_close(x, at::arange(4.0).mul(3).add(1), "written through a view");
    x.unsqueeze_(1);
    x.add_(1);
    require_close(view, at::arange(4.0).mul(3).add(2).unsqueeze(0), "after a second one");
  });
}

TEST(MovedInPlace, WhatStaysKeepsItsMemory) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = row(mesh);
    const auto local = DTensor(x).to_local();
    x.squeeze_(0);
    EXPECT_FALSE(is_materialised_view(x));
    EXPECT_TRUE(DTensor(x).to_local().is_alias_of(local));
  });
}

TEST(MovedInPlace, OutsideTheMeshNothingIsAsked) {
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

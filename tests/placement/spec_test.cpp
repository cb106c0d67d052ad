// Interning of specs: pointer-equal if and only if equal, bounded, thread-safe. Also mesh layouts.
#include "placement/spec.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <thread>

#include "layouts.h"
#include "placement/shard_map.h"

namespace dtensor {
namespace {

using test::mesh_of;

SpecPtr spec_of(const MeshRef& mesh, Placements placements, at::IntArrayRef sizes = {6, 4},
                at::IntArrayRef strides = {4, 1}, c10::ScalarType dtype = c10::kFloat) {
  return intern_spec(mesh, std::move(placements), sizes, strides, dtype);
}

TEST(Spec, PointerEqualIffEqual) {
  const MeshRef mesh = mesh_of({2, 2});
  const std::vector<SpecPtr> distinct{
      spec_of(mesh, {Shard(0), Replicate()}),
      spec_of(mesh, {Shard(0).as_storage(), Replicate()}),
      spec_of(mesh, {Shard(1), Replicate()}),
      spec_of(mesh, {StridedShard(0, 1), Replicate()}),
      spec_of(mesh, {Shard(0), Partial()}),
      spec_of(mesh, {Shard(0), Partial(ReduceOp::avg)}),
      spec_of(mesh, {Shard(0), Replicate()}, {4, 6}, {6, 1}),
      spec_of(mesh, {Shard(0), Replicate()}, {6, 4}, {1, 6}),
      spec_of(mesh, {Shard(0), Replicate()}, {6, 4}, {4, 1}, c10::kDouble),
      spec_of(mesh_of({2, 2}), {Shard(0), Replicate()}),
  };
  for (std::size_t i = 0; i < distinct.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(distinct[i], distinct[j]) << i << ' ' << j;
  }
  EXPECT_EQ(spec_of(mesh, {Shard(-2), Replicate()}), distinct[0]);
  EXPECT_EQ(with_placements(*distinct[2], {Shard(0), Replicate()}), distinct[0]);
}

TEST(Spec, DerivesLocalProperties) {
  for (std::int64_t rank = 0; rank < 6; ++rank) {
    const MeshRef mesh = mesh_of({2, 3}, rank);
    const SpecPtr spec = spec_of(mesh, {Shard(0).as_storage(), StridedShard(1, 2)}, {5, 7}, {7, 1});
    EXPECT_EQ(spec->local_sizes, local_sizes({5, 7}, spec->placements, {2, 3}, mesh->coordinate));
    EXPECT_TRUE(spec->has_shard && spec->has_storage && !spec->has_partial);
  }
  EXPECT_TRUE(spec_of(mesh_of({2}), {Partial()})->has_partial);
  EXPECT_EQ(spec_of(mesh_of({2, 2}), {Shard(0), Replicate()})->str(), "f32[6, 4] on [2, 2] [S(0), R]");
}

TEST(Spec, RankOutsideTheMeshHasNoElements) {
  const MeshRef mesh = mesh_of({2}, 5);
  EXPECT_FALSE(mesh->is_member);
  EXPECT_TRUE(mesh->coordinate.empty());
  EXPECT_EQ(spec_of(mesh, {Replicate()})->local_sizes, (at::DimVector{0, 0}));
}

TEST(Spec, TableDropsUnusedSpecs) {
  const MeshRef mesh = mesh_of({2});
  const SpecPtr kept = spec_of(mesh, {Shard(0)}, {7, 7}, {7, 1});
  drop_unused_specs();
  const std::size_t before = interned_spec_count();
  for (std::int64_t n = 0; n < 100000; ++n) spec_of(mesh, {Shard(0)}, {n + 100, 4}, {4, 1});
  EXPECT_LE(interned_spec_count(), before + 16 * 256);
  EXPECT_EQ(spec_of(mesh, {Shard(0)}, {7, 7}, {7, 1}), kept);
  drop_unused_specs();
  EXPECT_EQ(interned_spec_count(), before);
}

TEST(Spec, ConcurrentThreadsGetTheSameSpec) {
  const MeshRef mesh = mesh_of({2});
  std::vector<std::vector<SpecPtr>> seen(4);
  std::vector<std::thread> threads;
  for (auto& mine : seen) {
    threads.emplace_back([&mesh, &mine] {
      for (std::int64_t n = 0; n < 2000; ++n) mine.push_back(spec_of(mesh, {Shard(0)}, {n, 3}, {3, 1}));
    });
  }
  for (std::thread& t : threads) t.join();
  for (const auto& other : seen) EXPECT_EQ(other, seen[0]);
}

TEST(MeshInfo, CoordinatesAreRowMajor) {
  const MeshLayout layout{{2, 3}, {10, 11, 12, 20, 21, 22}, {"a", "b"}};
  const MeshInfo mesh(layout, 21, c10::DeviceType::CPU);
  EXPECT_EQ(mesh.coordinate, (Coordinate{1, 1}));
  EXPECT_EQ(coordinate_of_index(layout, 2), (Coordinate{0, 2}));
  EXPECT_EQ(coordinate_of_rank(layout, 20), (Coordinate{1, 0}));
  EXPECT_EQ(coordinate_of_rank(layout, 13), std::nullopt);
  EXPECT_FALSE(MeshInfo(layout, 13, c10::DeviceType::CPU).is_member);
}

TEST(MeshInfo, RefusesInvalidLayouts) {
  const auto make = [](const MeshLayout& layout) { MeshInfo(layout, 0, c10::DeviceType::CPU); };
  EXPECT_THROW(make({{2, 2}, {0, 1, 2}, {}}), c10::Error);
  EXPECT_THROW(make({{2}, {0, 0}, {}}), c10::Error);
  EXPECT_THROW(make({{0}, {}, {}}), c10::Error);
  EXPECT_THROW(make({{1, 2}, {0, 1}, {"a"}}), c10::Error);
  EXPECT_THROW(make({{1, 2}, {0, 1}, {"a", "a"}}), c10::Error);
}

}  // namespace
}  // namespace dtensor

// An axis of one rank splits nothing, whatever its placement: local tensors are the same without the axis.
#include <gtest/gtest.h>

#include "layouts.h"
#include "placement/shard_map.h"

namespace dtensor {
namespace {

using test::Shape;

const std::vector<Placement> kAlongDim0{Replicate(),        Shard(0),       StridedShard(0, 2), StridedShard(0, 3),
                                        StridedShard(0, 4), ZigzagShard(0), ZigzagShard(0, 2)};

// The entries of axes with more than one rank.
template <class List>
List of_several(const List& list, const Shape& mesh) {
  List kept;
  for (std::size_t a = 0; a < mesh.size(); ++a) {
    if (mesh[a] > 1) kept.push_back(list[a]);
  }
  return kept;
}

void expect_same_without(const Shape& mesh, const Placements& placements, std::int64_t n) {
  for (const Coordinate& at : test::all_coordinates(mesh)) {
    const Segments here = shard_segments(n, 0, placements, mesh, at);
    const Segments without =
        shard_segments(n, 0, of_several(placements, mesh), of_several(mesh, mesh), of_several(at, mesh));
    ASSERT_TRUE(here == without) << n << " elements, " << to_string(placements) << " on " << at::IntArrayRef(mesh);
  }
}

TEST(SingleRankAxes, SplitNothing) {
  for (const Shape& mesh : {Shape{1}, Shape{1, 2}, Shape{2, 1}, Shape{2, 1, 2}, Shape{2, 1, 3}, Shape{1, 3, 2}}) {
    for (const Placements& placements : test::all_lists(kAlongDim0, mesh.size())) {
      for (std::int64_t n = 0; n < 14; ++n) expect_same_without(mesh, placements, n);
    }
  }
}

TEST(SingleRankAxes, RaggedShardsMustCoverTheDimension) {
  EXPECT_TRUE(shard_segments(5, 0, {RaggedShard(0, {5}), Shard(0)}, {1, 2}, {0, 1}) == (Segments{{3, 2}}));
  EXPECT_THROW(shard_segments(5, 0, {RaggedShard(0, {4}), Shard(0)}, {1, 2}, {0, 1}), c10::Error);
}

}  // namespace
}  // namespace dtensor

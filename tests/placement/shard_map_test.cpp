// Which elements a mesh coordinate has: partition, PyTorch's chunks, nested shards and StridedShard.
#include "placement/shard_map.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>

#include "layouts.h"

namespace dtensor {
namespace {

using test::all_coordinates;
using test::all_lists;
using test::Shape;

const std::vector<Placement> kAlongDim0{Replicate(),        Shard(0),           StridedShard(0, 1), StridedShard(0, 2),
                                        StridedShard(0, 3), StridedShard(0, 4), Shard(1),           Partial()};

std::vector<std::int64_t> indices(const Segments& segments) {
  std::vector<std::int64_t> all;
  for (const Segment& s : segments) {
    for (std::int64_t i = 0; i < s.length; ++i) all.push_back(s.offset + i);
  }
  return all;
}

std::vector<std::int64_t> iota(std::int64_t n) {
  std::vector<std::int64_t> all(n);
  for (std::int64_t i = 0; i < n; ++i) all[i] = i;
  return all;
}

// torch.chunk over a list, padded with empty chunks: PyTorch's Shard._custom_chunk.
std::vector<std::vector<std::int64_t>> torch_chunk(const std::vector<std::int64_t>& list, std::int64_t parts) {
  const auto n = static_cast<std::int64_t>(list.size());
  const std::int64_t full = (n + parts - 1) / parts;
  std::vector<std::vector<std::int64_t>> chunks(parts);
  for (std::int64_t i = 0; i < n; ++i) chunks[i / full].push_back(list[i]);
  return chunks;
}

// PyTorch's _StridedShard._split_tensor, which applies the placements from left to right.
std::vector<std::int64_t> torch_local(std::int64_t n, const Placements& placements, const Shape& mesh,
                                      const Coordinate& at) {
  std::vector<std::int64_t> held = iota(n);
  for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
    if (!placements[axis].is_shard(0)) continue;
    std::vector<std::int64_t> next;
    for (const auto& piece : torch_chunk(held, placements[axis].split_factor())) {
      const auto part = torch_chunk(piece, mesh[axis])[at[axis]];
      next.insert(next.end(), part.begin(), part.end());
    }
    held = next;
  }
  return held;
}

std::int64_t replicas(const Placements& placements, const Shape& mesh) {
  std::int64_t count = 1;
  for (std::size_t axis = 0; axis < mesh.size(); ++axis) count *= placements[axis].is_shard(0) ? 1 : mesh[axis];
  return count;
}

template <class Body>
void for_each_layout(Body body) {
  for (const Shape& mesh : test::mesh_shapes()) {
    for (const Placements& placements : all_lists(kAlongDim0, mesh.size())) {
      for (std::int64_t n = 0; n < 10; ++n) body(mesh, placements, n);
    }
  }
}

TEST(Chunk, MatchesTorchChunk) {
  for (std::int64_t n = 0; n < 20; ++n) {
    for (std::int64_t parts = 1; parts < 8; ++parts) {
      for (std::int64_t i = 0; i < parts; ++i) {
        EXPECT_EQ(indices({chunk(n, parts, i)}), torch_chunk(iota(n), parts)[i]);
        EXPECT_LE(chunk(n, parts, i).offset, n);
      }
    }
  }
}

TEST(ShardSegments, EveryElementIsOnOneRankPerReplica) {
  for_each_layout([](const Shape& mesh, const Placements& placements, std::int64_t n) {
    std::map<std::int64_t, std::int64_t> holders;
    for (const Coordinate& at : all_coordinates(mesh)) {
      for (const std::int64_t i : indices(shard_segments(n, 0, placements, mesh, at))) ++holders[i];
    }
    ASSERT_EQ(static_cast<std::int64_t>(holders.size()), n) << to_string(placements);
    for (const auto& [index, count] : holders) ASSERT_EQ(count, replicas(placements, mesh)) << to_string(placements);
  });
}

// Also under ragged and zigzag shards, nested in both orders and beside strided shards.
TEST(ShardSegments, RaggedShardsHaveTheirSizes) {
  std::mt19937 random(5);
  for_each_layout([&](const Shape& mesh, const Placements& chunks, std::int64_t n) {
    const Placements placements = test::replace_some_shards_of(chunks, Shape{n, n}, mesh, random);
    std::map<std::int64_t, std::int64_t> holders;
    for (const Coordinate& at : all_coordinates(mesh)) {
      for (const std::int64_t i : indices(shard_segments(n, 0, placements, mesh, at))) ++holders[i];
      for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
        const auto parts = placements[axis].is_shard(0) ? placements[axis].ragged_sizes() : at::IntArrayRef();
        if (parts.empty()) continue;
        const std::int64_t begin = std::accumulate(parts.begin(), parts.begin() + at[axis], std::int64_t{0});
        for (const std::int64_t i : indices(shard_segments(n, 0, placements, mesh, at))) {
          ASSERT_GE(i, begin) << to_string(placements);
          ASSERT_LT(i, begin + parts[at[axis]]) << to_string(placements);
        }
      }
    }
    ASSERT_EQ(static_cast<std::int64_t>(holders.size()), n) << to_string(placements);
    for (const auto& [index, count] : holders) ASSERT_EQ(count, replicas(placements, mesh)) << to_string(placements);
  });
}

TEST(ShardSegments, BlocksAreNeverSplit) {
  for (std::int64_t n = 0; n < 30; ++n) {
    for (std::int64_t block = 1; block < 6; ++block) {
      for (std::int64_t ranks = 1; ranks < 5; ++ranks) {
        const Placement placement = BlockShard(0, n, block, ranks);
        for (std::int64_t r = 0; r < ranks; ++r) {
          const Segment part = shard_segments(n, 0, {placement}, {ranks}, {r})[0];
          ASSERT_TRUE(part.offset % block == 0 || part.length == 0) << placement;
          ASSERT_EQ(chunk((n + block - 1) / block, ranks, r).length, (part.length + block - 1) / block) << placement;
        }
      }
    }
  }
}

TEST(ShardSegments, RaggedSizesThatDoNotMatchAreRefused) {
  EXPECT_THROW(shard_segments(9, 0, {RaggedShard(0, {3, 5})}, {2}, {0}), c10::Error);
  EXPECT_THROW(normalize_placements({RaggedShard(0, {3, 5})}, 1, {3}), c10::Error);
  EXPECT_THROW(normalize_placements({RaggedShard(0, {3, 5}), RaggedShard(-1, {1, 7})}, 1, {2, 2}), c10::Error);
  EXPECT_NO_THROW(normalize_placements({RaggedShard(0, {3, 5}), RaggedShard(1, {1, 7})}, 2, {2, 2}));
}

TEST(ShardSegments, AreAscendingAndMerged) {
  for_each_layout([](const Shape& mesh, const Placements& placements, std::int64_t n) {
    for (const Coordinate& at : all_coordinates(mesh)) {
      const Segments segments = shard_segments(n, 0, placements, mesh, at);
      ASSERT_FALSE(segments.empty());
      for (std::size_t i = 0; i + 1 < segments.size(); ++i) {
        ASSERT_GT(segments[i].length, 0);
        ASSERT_LT(segments[i].offset + segments[i].length, segments[i + 1].offset) << to_string(placements) << n;
      }
      ASSERT_GE(segments[0].offset, 0);
      ASSERT_LE(segments.back().offset + segments.back().length, n);
    }
  });
}

TEST(ShardSegments, ShardsAreTorchChunksFromLeftToRight) {
  for_each_layout([](const Shape& mesh, const Placements& placements, std::int64_t n) {
    for (const Placement& p : placements) {
      if (p.is_strided()) return;
    }
    for (const Coordinate& at : all_coordinates(mesh)) {
      ASSERT_EQ(indices(shard_segments(n, 0, placements, mesh, at)), torch_local(n, placements, mesh, at));
    }
  });
}

// numpy.array_split: the first parts have one element more.
std::vector<std::vector<std::int64_t>> array_split(const std::vector<std::int64_t>& list, std::size_t parts) {
  std::vector<std::vector<std::int64_t>> split(parts);
  std::size_t next = 0;
  for (std::size_t i = 0; i < parts; ++i) {
    for (std::size_t k = list.size() / parts + (i < list.size() % parts ? 1 : 0); k > 0; --k) {
      split[i].push_back(list[next++]);
    }
  }
  return split;
}

// Applies the placements from left to right.
std::vector<std::int64_t> zigzag_local(std::int64_t n, const Placements& placements, const Shape& mesh,
                                       const Coordinate& at) {
  std::vector<std::int64_t> held = iota(n);
  for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
    const Placement& p = placements[axis];
    if (!p.is_shard(0)) continue;
    std::vector<std::int64_t> next;
    for (const auto& piece : torch_chunk(held, p.split_factor())) {
      const auto rank = static_cast<std::size_t>(at[axis]), ranks = static_cast<std::size_t>(mesh[axis]);
      if (!p.is_zigzag()) {
        const auto part = torch_chunk(piece, mesh[axis])[rank];
        next.insert(next.end(), part.begin(), part.end());
        continue;
      }
      const auto chunks = array_split(piece, 2 * ranks);
      for (const auto& part : {chunks[rank], chunks[2 * ranks - 1 - rank]}) {
        next.insert(next.end(), part.begin(), part.end());
      }
    }
    held = next;
  }
  return held;
}

TEST(ShardSegments, ZigzagShardsAreHeadAndTailPairs) {
  const std::vector<Placement> choices{Replicate(), Shard(0), ZigzagShard(0), ZigzagShard(0, 2), ZigzagShard(0, 3)};
  for (const Shape& mesh : {Shape{2}, Shape{3}, Shape{4}, Shape{2, 2}, Shape{2, 3}, Shape{2, 2, 2}}) {
    for (const Placements& placements : all_lists(choices, mesh.size())) {
      for (std::int64_t n = 0; n < 26; ++n) {
        for (const Coordinate& at : all_coordinates(mesh)) {
          const auto segments = shard_segments(n, 0, placements, mesh, at);
          ASSERT_FALSE(segments.empty());
          ASSERT_EQ(indices(segments), zigzag_local(n, placements, mesh, at)) << to_string(placements) << n;
        }
      }
    }
  }
}

// The cost of a row is the number of columns up to the diagonal: zigzag shards have equal costs.
TEST(ShardSegments, ZigzagShardsAreBalancedForCausalRows) {
  for (const std::int64_t ranks : {2, 4, 8}) {
    std::int64_t most = 0, all = 0;
    for (std::int64_t r = 0; r < ranks; ++r) {
      std::int64_t cost = 0;
      for (const std::int64_t row : indices(shard_segments(4096, 0, {ZigzagShard(0)}, {ranks}, {r}))) cost += row + 1;
      most = std::max(most, cost);
      all += cost;
    }
    EXPECT_EQ(most * ranks, all);
  }
}

// A strided shard splits the zigzag shard of an axis to its right.
TEST(ShardSegments, StridedShardsNestInZigzagOnes) {
  for (std::int64_t n = 0; n < 30; ++n) {
    for (const Coordinate& at : all_coordinates({3, 2})) {
      const auto outer = zigzag_local(n, {ZigzagShard(0)}, {2}, {at[1]});
      EXPECT_EQ(indices(shard_segments(n, 0, {StridedShard(0, 2), ZigzagShard(0)}, {3, 2}, at)),
                torch_chunk(outer, 3)[at[0]]);
    }
  }
}

// If all sizes divide evenly, the library's order of splitting and PyTorch's give the same elements.
TEST(ShardSegments, EvenStridedShardsMatchPyTorch) {
  for (const Shape& mesh : test::mesh_shapes()) {
    for (const Placements& placements : all_lists(kAlongDim0, mesh.size())) {
      const std::int64_t n = 3 * 2 * 4 * 3 * 4 * 4 * 4 * 3 * 3;
      for (const Coordinate& at : all_coordinates(mesh)) {
        ASSERT_EQ(indices(shard_segments(n, 0, placements, mesh, at)), torch_local(n, placements, mesh, at))
            << to_string(placements);
      }
    }
  }
}

// Tensor parallelism splits first, and fully sharded data parallelism splits its shards, also if sizes do not divide.
TEST(ShardSegments, StridedShardSplitsAfterTheAxesToItsRight) {
  for (std::int64_t n = 0; n < 20; ++n) {
    for (const Coordinate& at : all_coordinates({2, 3})) {
      const Segment tp = chunk(n, 3, at[1]);
      const Segment fsdp = chunk(tp.length, 2, at[0]);
      const Segments got = shard_segments(n, 0, {StridedShard(0, 3), Shard(0)}, {2, 3}, at);
      ASSERT_EQ(got, (Segments{{tp.offset + fsdp.offset, fsdp.length}}));
    }
  }
}

TEST(ShardSegments, ThreeAxesNestByTheirFactors) {
  const Shape mesh{2, 3, 2};
  const auto order = [&](const Placements& placements) {
    std::vector<int> axes;
    for (const SplitStep& step : split_order(0, placements, mesh)) axes.push_back(step.pieces == 1 ? step.axis : -1);
    return axes;
  };
  EXPECT_EQ(order({Shard(0), Shard(0), Shard(0)}), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(order({StridedShard(0, 3), Shard(0), Shard(0)}), (std::vector<int>{1, 0, 2}));
  EXPECT_EQ(order({StridedShard(0, 6), Shard(0), Shard(0)}), (std::vector<int>{1, 2, 0}));
  EXPECT_EQ(order({StridedShard(0, 6), StridedShard(0, 2), Shard(0)}), (std::vector<int>{2, 1, 0}));
  EXPECT_EQ(order({StridedShard(0, 2), Replicate(), Shard(0)}), (std::vector<int>{2, 0}));
  EXPECT_EQ(order({StridedShard(0, 2), Shard(0), Shard(0)}), (std::vector<int>{-1, 1, 2}));
}

TEST(ShardSegments, UnmatchedStridedShardHasAPartOfEachPiece) {
  // 9 elements in 2 pieces (5, 4), each over 4 ranks: the example of PyTorch's documentation.
  const std::vector<std::vector<std::int64_t>> want{{0, 1, 5}, {2, 3, 6}, {4, 7}, {8}};
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(indices(shard_segments(9, 0, {StridedShard(0, 2)}, {4}, {rank})), want[rank]);
  }
}

// Pieces beyond the number of elements are empty. They must not take time: 2^31 iterations would take a minute.
TEST(ShardSegments, MorePiecesThanElements) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  for (const std::int64_t n : {0, 1, 5, 6}) {
    const std::int64_t pieces = std::max<std::int64_t>(n, 1);
    for (const Coordinate& at : all_coordinates({3})) {
      EXPECT_EQ(shard_segments(n, 0, {StridedShard(0, kMost)}, {3}, at),
                shard_segments(n, 0, {StridedShard(0, pieces)}, {3}, at));
      EXPECT_EQ(indices(shard_segments(n, 0, {ZigzagShard(0, kMost)}, {3}, at)),
                indices(shard_segments(n, 0, {ZigzagShard(0, pieces)}, {3}, at)));
    }
  }
}

TEST(LocalSizes, AreTheTotalsOfSegments) {
  for_each_layout([](const Shape& mesh, const Placements& placements, std::int64_t n) {
    for (const Coordinate& at : all_coordinates(mesh)) {
      const at::DimVector local = local_sizes({n, 4}, placements, mesh, at);
      ASSERT_EQ(local[0], static_cast<std::int64_t>(indices(shard_segments(n, 0, placements, mesh, at)).size()));
      ASSERT_EQ(local[1], static_cast<std::int64_t>(indices(shard_segments(4, 1, placements, mesh, at)).size()));
    }
  });
}

TEST(NormalizePlacements, NegativeDimensionsAndErrors) {
  EXPECT_EQ(normalize_placements({Shard(-1), Replicate()}, 2, {2, 2}), (Placements{Shard(1), Replicate()}));
  EXPECT_EQ(normalize_placements({StridedShard(-2, 3).as_storage()}, 2, {2}),
            (Placements{StridedShard(0, 3).as_storage()}));
  EXPECT_THROW(normalize_placements({Shard(0)}, 0, {2}), c10::Error);
  EXPECT_THROW(normalize_placements({Shard(2)}, 2, {2}), c10::Error);
  EXPECT_THROW(normalize_placements({Shard(-3)}, 2, {2}), c10::Error);
  EXPECT_THROW(normalize_placements({Replicate()}, 2, {2, 2}), c10::Error);
}

}  // namespace
}  // namespace dtensor

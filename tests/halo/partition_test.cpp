// Partitions by METIS, or the error of a build without it.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "cases.h"
#include "support/errors.h"

namespace dtensor::test::halo {
namespace {

// The edges of a grid of side x side nodes.
std::pair<at::Tensor, at::Tensor> grid(std::int64_t side) {
  const auto node = at::arange(side * side).view({side, side});
  const auto right = node.narrow(1, 0, side - 1), left = node.narrow(1, 1, side - 1);
  const auto down = node.narrow(0, 0, side - 1), up = node.narrow(0, 1, side - 1);
  return {at::cat({right.reshape(-1), down.reshape(-1)}), at::cat({left.reshape(-1), up.reshape(-1)})};
}

at::Tensor gathered(const Communicator& world, const at::Tensor& owner) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < world.size(); ++rank) all.push_back(at::empty_like(owner));
  world.all_gather(all, owner).wait();
  return at::stack(all);
}

TEST(PartitionGraph, GridsAreCutEvenlyAlongFewEdges) {
  if (!is_metis_available()) GTEST_SKIP() << "built without METIS";
  for (const int ranks : {1, 2, 3, 4}) {
    run_local(ranks, [&](Communicator world) {
      const auto [source, target] = grid(16);
      const auto owner = partition_graph(source, target, 256, world);
      EXPECT_TRUE(gathered(world, owner).eq(owner).all().item<bool>());
      const auto counts = at::bincount(owner, {}, ranks);
      EXPECT_EQ(counts.numel(), ranks);
      EXPECT_LE(counts.max().item<std::int64_t>(), 1.05 * 256 / ranks + 1);
      const auto cut = owner.index_select(0, source).ne(owner.index_select(0, target)).sum().item<std::int64_t>();
      EXPECT_LE(cut, 20 * (ranks - 1));  // a straight line cuts 16
    });
  }
}

RC_GTEST_PROP(PartitionGraph, AssignsEachNodeOfAnyGraph, (const std::uint32_t seed)) {
  if (!is_metis_available()) return;
  const int ranks = 1 + static_cast<int>(seed % 4);
  run_local(ranks, [&](Communicator world) {
    Draw draw(seed);
    const PartitionedGraph graph(draw, ranks);
    const auto source = as_tensor(graph.source), target = as_tensor(graph.target);
    const auto owner = partition_graph(source, target, graph.nodes, world);
    EXPECT_EQ(owner.sizes(), at::IntArrayRef({graph.nodes}));
    const auto part = graph_part(source, target, owner, world.rank(), ranks);  // checks the values
    const GraphHalo halo(world, part.nodes.numel(), part.send_lists);
    EXPECT_EQ(halo.ghosts(), part.ghosts.numel());
  });
}

// Rank 0 has the graph. The others do not use their arguments.
TEST(PartitionGraph, InvalidGraphsAreOneErrorOnEveryRank) {
  run_local(3, [](Communicator world) {
    const bool first = world.rank() == 0;
    const auto edges = first ? at::tensor({0, 5}, at::kLong) : at::Tensor();
    EXPECT_EQ(error_of([&] { partition_graph(edges, edges, 5, world); }),
              "partition_graph: expected nodes of source in [0, 5), got 5");
    EXPECT_EQ(error_of([&] { partition_graph(edges, edges, first ? -1 : 6, world); }),
              "partition_graph: expected a number of nodes of at least 0, got -1");
  });
}

TEST(PartitionGraph, BuildsWithoutMetisThrow) {
  if (is_metis_available()) GTEST_SKIP() << "built with METIS";
  run_local(2, [](Communicator world) {
    const auto [source, target] = grid(3);
    const auto error = error_of([&, s = source, t = target] { partition_graph(s, t, 9, world); });
    EXPECT_NE(error.find("partition_graph: expected a build with METIS, got one without"), std::string::npos) << error;
  });
}

}  // namespace
}  // namespace dtensor::test::halo

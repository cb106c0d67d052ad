// Parts of random graphs, against a partition node by node.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "cases.h"
#include "support/errors.h"

namespace dtensor::test::halo {
namespace {

RC_GTEST_PROP(GraphPart, RowsEdgesAndSendLists, (const std::uint32_t seed)) {
  const int ranks = 1 + static_cast<int>(seed % 4);
  Draw draw(seed);
  const PartitionedGraph graph(draw, ranks);
  for (int rank = 0; rank < ranks; ++rank) check_part(Part(graph, rank, ranks), graph, rank, ranks);
}

// The ghosts of a part are the rows that a halo of its send lists receives.
RC_GTEST_PROP(GraphPart, GhostsArriveInTheirOrder, (const std::uint32_t seed)) {
  const int ranks = 1 + static_cast<int>(seed % 4);
  run_local(ranks, [&](Communicator world) {
    Draw draw(seed);
    const PartitionedGraph graph(draw, ranks);
    const auto part =
        graph_part(as_tensor(graph.source), as_tensor(graph.target), as_tensor(graph.owner), world.rank(), ranks);
    const GraphHalo halo(world, part.nodes.numel(), part.send_lists);
    EXPECT_TRUE(at::equal(halo.exchange(part.nodes), at::cat({part.nodes, part.ghosts})));
  });
}

TEST(GraphPart, InvalidGraphsAreErrors) {
  const auto nodes = at::tensor({0, 1}, at::kLong), owner = at::tensor({0, 1, 1}, at::kLong);
  const auto error = [&](const at::Tensor& source, const at::Tensor& target, const at::Tensor& owners, int rank) {
    return error_of([&] { graph_part(source, target, owners, rank, 2); });
  };
  EXPECT_EQ(error(nodes, nodes, owner, 1), "no error");
  EXPECT_EQ(error(nodes, nodes, owner, 2), "graph_part: expected a rank in [0, 2), got 2");
  EXPECT_EQ(error(nodes + 2, nodes, owner, 0), "graph_part: expected nodes of source in [0, 3), got 3");
  EXPECT_EQ(error(nodes, nodes - 1, owner, 0), "graph_part: expected nodes of target in [0, 3), got -1");
  EXPECT_EQ(error(nodes, nodes, owner * 2, 0), "graph_part: expected ranks of owner in [0, 2), got 2");
  EXPECT_EQ(error(nodes, nodes.slice(0, 1), owner, 0),
            "graph_part: expected one target for each source, got 2 sources and 1 targets");
  EXPECT_EQ(error(nodes, nodes.to(at::kFloat), owner, 0),
            "graph_part: expected target int64 [edges] on the CPU, got Float [2] on cpu");
  EXPECT_EQ(error(nodes, nodes, {}, 0), "graph_part: expected owner int64 [nodes], got an undefined tensor");
}

}  // namespace
}  // namespace dtensor::test::halo

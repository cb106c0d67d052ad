// Random graphs, partitions and send lists, and a message-passing energy on them, on one part and on several.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <set>
#include <vector>

#include "dtensor/halo.h"
#include "support/ranks.h"

namespace dtensor::test::halo {

using Rows = std::vector<std::int64_t>;

inline at::Tensor as_tensor(const Rows& rows) { return at::tensor(rows, at::kLong); }

// Send lists without a graph: lists[from][to] are rows of `from`, in any order, with repetitions, also to itself.
struct RandomLists {
  Rows owned;
  std::vector<std::vector<Rows>> lists;

  RandomLists(Draw& draw, int ranks) : owned(ranks), lists(ranks, std::vector<Rows>(ranks)) {
    for (auto& n : owned) n = draw.coin() ? draw.integer(0, 5) : 0;
    for (int from = 0; from < ranks; ++from) {
      for (auto& list : lists[from]) {
        const auto length = owned[from] == 0 || draw.coin() ? 0 : draw.integer(1, 6);
        for (std::int64_t i = 0; i < length; ++i) list.push_back(draw.integer(0, owned[from] - 1));
      }
    }
  }
  std::vector<at::Tensor> of(int rank, at::ScalarType dtype = at::kLong) const {
    std::vector<at::Tensor> result;
    for (const auto& list : lists[rank]) result.push_back(as_tensor(list).to(dtype));
    return result;
  }
  // Rows that `rank` sends to, or receives from, other ranks.
  std::int64_t sent(int rank) const {
    return count(rank, [&](int peer) { return lists[rank][peer].size(); });
  }
  std::int64_t received(int rank) const {
    return count(rank, [&](int peer) { return lists[peer][rank].size(); });
  }
  bool remote() const {
    std::int64_t all = 0;
    for (int rank = 0; rank < static_cast<int>(owned.size()); ++rank) all += sent(rank);
    return all > 0;
  }

 private:
  std::int64_t count(int rank, const std::function<std::size_t(int)>& with) const {
    std::size_t sum = 0;
    for (int peer = 0; peer < static_cast<int>(owned.size()); ++peer) sum += peer == rank ? 0 : with(peer);
    return static_cast<std::int64_t>(sum);
  }
};

// A graph of which each rank owns some nodes. Edges go from `source` to `target`, by global node.
struct PartitionedGraph {
  std::int64_t nodes;
  Rows owner, source, target;

  PartitionedGraph(Draw& draw, int ranks) : nodes(draw.integer(0, 9)), owner(nodes) {
    const auto last = draw.integer(0, ranks - 1);  // later ranks own nothing
    for (auto& rank : owner) rank = draw.integer(0, last);
    for (std::int64_t edge = nodes == 0 ? 0 : draw.integer(0, 20); edge > 0; --edge) {
      source.push_back(draw.integer(0, nodes - 1));
      target.push_back(draw.integer(0, nodes - 1));
    }
  }
  Rows owned_by(int rank) const {
    Rows result;
    for (std::int64_t node = 0; node < nodes; ++node) {
      if (owner[node] == rank) result.push_back(node);
    }
    return result;
  }
  // Nodes of `from` that are sources of edges to nodes of `to`.
  Rows sent(int from, int to) const {
    std::set<std::int64_t> result;
    for (std::size_t e = 0; e < source.size(); ++e) {
      if (from != to && owner[source[e]] == from && owner[target[e]] == to) result.insert(source[e]);
    }
    return {result.begin(), result.end()};
  }
};

// The edges to the owned nodes of a part, as rows of its extended features.
struct Part {
  at::Tensor source, target;
  std::vector<at::Tensor> sends;
  Rows nodes;  // global nodes of the owned rows

  Part(const PartitionedGraph& graph, int rank, int ranks) : nodes(graph.owned_by(rank)) {
    std::vector<std::int64_t> row(graph.nodes, -1);
    std::int64_t next = 0;
    for (const auto node : nodes) row[node] = next++;
    const Rows owned_rows = row;
    for (int peer = 0; peer < ranks; ++peer) {
      for (const auto node : graph.sent(peer, rank)) row[node] = next++;
    }
    for (int peer = 0; peer < ranks; ++peer) {
      Rows list;
      for (const auto node : graph.sent(rank, peer)) list.push_back(owned_rows[node]);
      sends.push_back(as_tensor(list));
    }
    Rows from, to;
    for (std::size_t e = 0; e < graph.source.size(); ++e) {
      if (graph.owner[graph.target[e]] != rank) continue;
      from.push_back(row[graph.source[e]]);
      to.push_back(row[graph.target[e]]);
    }
    source = as_tensor(from), target = as_tensor(to);
  }
};

// graph_part() of the same graph.
inline void check_part(const Part& part, const PartitionedGraph& graph, int rank, int ranks) {
  const auto source = as_tensor(graph.source), target = as_tensor(graph.target), owner = as_tensor(graph.owner);
  const auto made = graph_part(source, target, owner, rank, ranks);
  EXPECT_TRUE(at::equal(made.nodes, as_tensor(part.nodes)));
  EXPECT_TRUE(at::equal(made.source, part.source));
  EXPECT_TRUE(at::equal(made.target, part.target));
  const auto rows = at::cat({made.nodes, made.ghosts});
  EXPECT_TRUE(at::equal(rows.index_select(0, made.source), source.index_select(0, made.edges)));
  EXPECT_TRUE(at::equal(rows.index_select(0, made.target), target.index_select(0, made.edges)));
  ASSERT_EQ(made.send_lists.size(), part.sends.size());
  for (std::size_t to = 0; to < part.sends.size(); ++to)
    EXPECT_TRUE(at::equal(made.send_lists[to], part.sends[to])) << to;
}

using Extend = std::function<at::Tensor(const at::Tensor&)>;

// Two layers of messages over edges; returns the energy of the nodes of x [n, 3].
inline at::Tensor energy(const at::Tensor& x, const at::Tensor& w, const at::Tensor& source, const at::Tensor& target,
                         const Extend& extend) {
  at::Tensor h = x;
  for (int layer = 0; layer < 2; ++layer) {
    const auto all = extend(h);
    const auto message = at::tanh(all.index_select(0, source).matmul(w)) * h.index_select(0, target);
    h = h + at::zeros_like(h).index_add(0, target, message);
  }
  return (h * h * at::sin(h)).sum();
}

// What an energy model gives: the energy, its gradient (forces), and the gradients of a loss of the forces.
struct Outcome {
  at::Tensor energy, forces, loss, grad_x, grad_w;
};

inline Outcome differentiate(const at::Tensor& x0, const at::Tensor& w0, const at::Tensor& wanted,
                             const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& energy_of) {
  const auto x = x0.clone().requires_grad_(), w = w0.clone().requires_grad_();
  const auto e = energy_of(x, w);
  const auto forces = torch::autograd::grad({e}, {x}, {}, true, /*create_graph=*/true)[0];
  const auto loss = (forces - wanted).square().sum();
  const auto grads = torch::autograd::grad({loss}, {x, w}, {}, true, false, /*allow_unused=*/true);
  const auto or_zeros = [](const at::Tensor& grad, const at::Tensor& like) {
    return grad.defined() ? grad : at::zeros_like(like);
  };
  return {e.detach(), forces.detach(), loss.detach(), or_zeros(grads[0], x), or_zeros(grads[1], w)};
}

// Compares this rank's part with one part. Collective.
inline void check_graph(const Communicator& world, std::uint64_t seed) {
  Draw draw(seed);
  const PartitionedGraph graph(draw, world.size());
  const auto x = draw.normal({graph.nodes, 3}), w = draw.normal({3, 3}), wanted = draw.normal({graph.nodes, 3});
  const auto source = as_tensor(graph.source), target = as_tensor(graph.target);
  const auto one = differentiate(x, w, wanted, [&](const at::Tensor& a, const at::Tensor& b) {
    return energy(a, b, source, target, [](const at::Tensor& h) { return h; });
  });
  const Part part(graph, world.rank(), world.size());
  const auto mine = as_tensor(part.nodes);
  const GraphHalo halo(world, mine.numel(), part.sends);
  const auto own = differentiate(
      x.index_select(0, mine), w, wanted.index_select(0, mine), [&](const at::Tensor& a, const at::Tensor& b) {
        return energy(a, b, part.source, part.target, [&](const at::Tensor& h) { return halo.exchange(h); });
      });
  const auto summed = at::cat({own.energy.reshape(1), own.loss.reshape(1), own.grad_w.reshape(-1)});
  world.all_reduce(summed, ReduceOp::sum).wait();
  const auto expected = at::cat({one.energy.reshape(1), one.loss.reshape(1), one.grad_w.reshape(-1)});
  const auto name = "seed " + std::to_string(seed) + ", rank " + std::to_string(world.rank());
  expect_close(summed, expected, "energy, loss and gradient of the weights: " + name, 1e-10);
  expect_close(own.forces, one.forces.index_select(0, mine), "forces: " + name, 1e-10);
  expect_close(own.grad_x, one.grad_x.index_select(0, mine), "gradient of the loss: " + name, 1e-10);
}

// The definition of exchange(): rows of all ranks are known.
inline at::Tensor expected_rows(const RandomLists& lists, const std::vector<at::Tensor>& rows, int rank) {
  std::vector<at::Tensor> parts{rows[rank]};
  for (std::size_t from = 0; from < rows.size(); ++from) {
    for (const auto row : lists.lists[from][rank]) parts.push_back(rows[from].narrow(0, row, 1));
  }
  return at::cat(parts);
}

// The definition of reduce(): `extended` are the rows with ghosts of all ranks.
inline at::Tensor expected_sum(const RandomLists& lists, const std::vector<at::Tensor>& extended, int rank) {
  auto sum = extended[rank].narrow(0, 0, lists.owned[rank]).clone();
  for (std::size_t to = 0; to < extended.size(); ++to) {
    std::int64_t at = lists.owned[to];
    for (int from = 0; from < rank; ++from) at += static_cast<std::int64_t>(lists.lists[from][to].size());
    for (const auto row : lists.lists[rank][to]) sum[row] += extended[to][at++];
  }
  return sum;
}

// Values and gradients for rows of any dtype and shape. Collective.
inline void check_rows(const Communicator& world, std::uint64_t seed, at::ScalarType dtype) {
  Draw draw(seed);
  const int me = world.rank();
  const RandomLists lists(draw, world.size());
  const Shape trailing = draw.sizes(draw.integer(0, 2), 0, 3);
  std::vector<at::Tensor> rows, extended;
  const auto values = [&](std::int64_t n) {  // small integers: exact sums in every dtype
    Shape sizes = trailing;
    sizes.insert(sizes.begin(), n);
    return draw.integers(sizes, 4).to(dtype);
  };
  for (const auto n : lists.owned) rows.push_back(values(n));
  for (int rank = 0; rank < world.size(); ++rank) extended.push_back(values(expected_rows(lists, rows, rank).size(0)));
  const GraphHalo halo(world, lists.owned[me], lists.of(me, draw.coin() ? at::kInt : at::kLong));
  const auto name = "seed " + std::to_string(seed) + ", rank " + std::to_string(me);
  EXPECT_EQ(halo.owned() + halo.ghosts(), extended[me].size(0)) << name;
  EXPECT_TRUE(at::equal(halo.exchange(rows[me]), expected_rows(lists, rows, me))) << name;
  EXPECT_TRUE(at::equal(halo.reduce(extended[me]), expected_sum(lists, extended, me))) << name;
}

}  // namespace dtensor::test::halo

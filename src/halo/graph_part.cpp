// Cuts a graph into parts by the owners of its nodes.
#include <ATen/ATen.h>

#include "dtensor/halo.h"
#include "halo/graph_checks.h"
#include "internal/aten_scopes.h"

namespace dtensor {
namespace {

constexpr const char* kName = "graph_part";

void check_graph(const at::Tensor& source, const at::Tensor& target, const at::Tensor& owner, int rank, int ranks) {
  halo::check_numbers(kName, "owner", owner, "[nodes]");
  halo::check_edges(kName, source, target, owner.numel());
  TORCH_CHECK(rank >= 0 && rank < ranks, kName, ": expected a rank in [0, ", ranks, "), got ", rank);
  halo::check_range(kName, "ranks of owner", owner, ranks);
}

at::Tensor selected(const at::Tensor& mask) { return mask.nonzero().view(-1); }

at::Tensor sorted_unique(const at::Tensor& values) { return std::get<0>(at::_unique(values, /*sorted=*/true)); }

}  // namespace

GraphPart graph_part(const at::Tensor& source, const at::Tensor& target, const at::Tensor& owner, int rank, int ranks) {
  const LocalBelowAutogradGuard local;
  check_graph(source, target, owner, rank, ranks);
  const at::Tensor from = owner.index_select(0, source), to = owner.index_select(0, target);
  const auto nodes = owner.numel();
  GraphPart part;
  part.nodes = selected(owner.eq(rank));
  part.edges = selected(to.eq(rank));
  // Ghosts are ordered by owner, then by node, as in the send lists of their owners.
  const at::Tensor remote = selected(to.eq(rank).logical_and(from.ne(rank)));
  const at::Tensor keys = sorted_unique(from.index_select(0, remote) * nodes + source.index_select(0, remote));
  part.ghosts = keys.remainder(nodes);
  const at::Tensor all = at::cat({part.nodes, part.ghosts});
  const at::Tensor row = at::full({nodes}, -1, at::kLong).index_copy_(0, all, at::arange(all.numel(), at::kLong));
  part.source = row.index_select(0, source.index_select(0, part.edges));
  part.target = row.index_select(0, target.index_select(0, part.edges));
  for (int peer = 0; peer < ranks; ++peer) {
    const at::Tensor sent = selected(from.eq(rank).logical_and(to.eq(peer)).logical_and(to.ne(rank)));
    part.send_lists.push_back(row.index_select(0, sorted_unique(source.index_select(0, sent))));
  }
  return part;
}

}  // namespace dtensor

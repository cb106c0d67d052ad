// One rank partitions, so that all ranks have the same owners.
#include <ATen/ATen.h>

#include "dtensor/halo.h"
#include "halo/graph_checks.h"
#include "halo/partition/metis.h"
#include "internal/aten_scopes.h"
#include "object_collectives/collective_errors.h"
#include "object_collectives/object_collectives.h"

namespace dtensor {
namespace {

// Both directions of each edge once, without loops.
at::Tensor partition_on_this_rank(const at::Tensor& source, const at::Tensor& target, std::int64_t nodes, int parts) {
  halo::check_edges("partition_graph", source, target, nodes);
  if (parts == 1) return at::zeros({nodes}, at::kLong);
  if (nodes <= parts) return at::arange(nodes, at::kLong);  // METIS requires more nodes than parts
  const at::Tensor kept = source.ne(target).nonzero().view(-1);
  const at::Tensor from = source.index_select(0, kept), to = target.index_select(0, kept);
  const at::Tensor keys = std::get<0>(at::_unique(at::cat({from * nodes + to, to * nodes + from}), /*sorted=*/true));
  const at::Tensor degrees = at::bincount(keys.div(nodes, "floor"), {}, nodes);
  return halo::metis_parts(at::cat({at::zeros({1}, at::kLong), degrees.cumsum(0)}), keys.remainder(nodes), parts);
}

}  // namespace

at::Tensor partition_graph(const at::Tensor& source, const at::Tensor& target, std::int64_t nodes,
                           const Communicator& ranks) {
  const LocalBelowAutogradGuard local;
  at::Tensor owner;
  const auto partition = [&] { owner = partition_on_this_rank(source, target, nodes, ranks.size()); };
  const std::string error = broadcast_string(ranks, ranks.rank() == 0 ? error_of(partition) : "", 0);
  TORCH_CHECK(error.empty(), error);
  const auto count = at::full({1}, owner.defined() ? owner.numel() : 0, at::kLong);
  ranks.broadcast(count, 0).wait();
  if (!owner.defined()) owner = at::empty({count.item<std::int64_t>()}, at::kLong);
  ranks.broadcast(owner, 0).wait();
  return owner;
}

}  // namespace dtensor

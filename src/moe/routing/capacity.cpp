// Capacity: drops entries beyond an expert's capacity. Decided over the batch, so the result does not depend on how
// tokens are distributed.
#include <ATen/ATen.h>

#include "dtensor/moe/dispatch.h"
#include "internal/aten_scopes.h"
#include "moe/dispatch/permute.h"
#include "moe/routing/router_parts.h"

namespace dtensor {
namespace {

bool several(const Communicator& ranks) { return ranks && ranks.size() > 1; }

// The index of each entry among those of its expert.
at::Tensor rank_in_bin(const SortedBins& sorted, const at::Tensor& experts) {
  const auto starts = at::constant_pad_nd(sorted.counts.cumsum(0), {1, 0});
  return sorted.position - starts.index_select(0, experts);
}

// By position, if tokens are in order of ranks: needs only the counts of the preceding ranks.
at::Tensor ranks_in_order(const Routing& routing, const at::Tensor& experts, const Communicator& ranks) {
  auto place = rank_in_bin(sort_by_bin(experts, routing.expert_count), experts);
  if (!several(ranks)) return place;
  const auto before = routing.counts->of_ranks(ranks).narrow(0, 0, ranks.rank()).sum(0).to(experts.device());
  return place + at::constant_pad_nd(before, {0, 1}).index_select(0, experts);
}

struct Entries {
  at::Tensor experts, weights, number;  // of each entry; number: index in the batch
};

Entries gather(const Entries& mine, const std::vector<std::int64_t>& rows, const Communicator& ranks) {
  return {all_gather_rows(mine.experts, rows, ranks), all_gather_rows(mine.weights, rows, ranks),
          all_gather_rows(mine.number, rows, ranks)};
}

// General case: gathers all entries on all ranks and sorts them in the same order.
at::Tensor ranks_by_key(const Routing& routing, const at::Tensor& experts, const TokenLayout& layout, bool by_weight) {
  const auto choices = routing.experts.size(1), here = experts.size(0);
  const auto longs = experts.options();
  const auto token =
      layout.index.defined() ? layout.index : at::arange(here / choices, longs) + token_range(routing, layout).first;
  const auto number = (token.unsqueeze(1) * choices + at::arange(choices, longs)).flatten();
  Entries all{experts, routing.weights.detach().flatten(), number};
  std::int64_t before = 0;
  if (several(layout.ranks)) {
    const auto rows = moe::rows_of_ranks(here, layout.ranks);
    before = rows.before;
    all = gather(all, rows.of_each, layout.ranks);
  }
  auto order = all.number.argsort();
  if (by_weight) {
    const auto weight = all.weights.index_select(0, order);
    order = order.index_select(0, std::get<1>(at::sort(weight, /*stable=*/true, 0, /*descending=*/true)));
  }
  const auto sorted_experts = all.experts.index_select(0, order);
  const auto place = rank_in_bin(sort_by_bin(sorted_experts, routing.expert_count), sorted_experts);
  return at::empty_like(place).index_copy_(0, order, place).narrow(0, before, here);
}

}  // namespace

std::int64_t drop_over_capacity(Routing& routing, const TokenLayout& layout, const CapacityOptions& options) {
  if (options.factor == 0) return 0;
  TORCH_CHECK(!routing.by_experts, "capacity: RouterChoice::experts has its own capacity; use expert_capacity_factor");
  TORCH_CHECK(options.factor > 0, "capacity: expected a factor >= 0, got ", options.factor);
  const at::NoGradGuard no_grad;
  const NoMeshScopeGuard regular;
  const auto choices = routing.experts.size(1);
  const auto tokens = token_range(routing, layout).total;
  const auto capacity = static_cast<std::int64_t>(options.factor * static_cast<double>(choices * tokens) /
                                                  static_cast<double>(routing.expert_count));
  const auto experts = routing.experts.flatten();
  const bool by_weight = options.drop == CapacityOptions::Drop::probability;
  const auto place = by_weight || layout.index.defined() ? ranks_by_key(routing, experts, layout, by_weight)
                                                         : ranks_in_order(routing, experts, layout.ranks);
  const auto over = (place >= capacity).logical_and_(experts < routing.expert_count);
  routing.experts = experts.masked_fill(over, routing.expert_count).view_as(routing.experts);
  routing.order.reset();
  routing.counts = std::make_shared<SharedCounts>(count_bins(routing.experts, routing.expert_count));
  const auto dropped = over.sum().item<std::int64_t>();
  routing.complete = false;  // other ranks may have dropped entries
  const auto none = [&] { return routing.experts.eq(routing.expert_count).sum().item<std::int64_t>(); };
  routing.empty = routing.empty < 0 ? none() : routing.empty + dropped;
  return dropped;
}

}  // namespace dtensor

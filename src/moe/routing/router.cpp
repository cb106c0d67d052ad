// The router: scores, choice and weights of this rank's tokens.
#include "dtensor/moe/router.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <numeric>

#include "dtensor/moe/dispatch.h"
#include "dtensor/tensor.h"
#include "internal/aten_scopes.h"
#include "moe/counting.h"
#include "moe/dispatch/permute.h"
#include "moe/routing/router_parts.h"
#include "moe/token_mapping.h"

namespace dtensor {

namespace moe {

std::vector<std::int64_t> indices_among(const Communicator& some, const Communicator& all) {
  std::vector<std::int64_t> positions;
  for (const auto rank : some.ranks()) {
    const auto found = std::find(all.ranks().begin(), all.ranks().end(), rank);
    if (found != all.ranks().end()) positions.push_back(found - all.ranks().begin());
  }
  return positions;
}

namespace {

RowCounts row_counts(std::vector<std::int64_t> rows, int me) {
  RowCounts all{std::move(rows)};
  all.before = std::accumulate(all.of_each.begin(), all.of_each.begin() + me, std::int64_t{0});
  all.total = std::accumulate(all.of_each.begin() + me, all.of_each.end(), all.before);
  return all;
}

}  // namespace

RowCounts rows_of_ranks(std::int64_t here, const Communicator& ranks) {
  if (!ranks || ranks.size() == 1) return {{here}, 0, here};
  const std::vector<std::int64_t> reported(static_cast<std::size_t>(ranks.size()), here);
  return row_counts(exchange_splits(reported, ranks), ranks.rank());
}

RowCounts tokens_of_ranks(const Routing& routing, const Communicator& ranks) {
  const bool counts_known = routing.complete && !routing.by_experts && ranks && ranks.size() > 1;
  if (!counts_known) return rows_of_ranks(routing.experts.size(0), ranks);
  const auto tokens = routing.counts->of_ranks(ranks).sum(1).div(routing.experts.size(1), "floor");
  const auto* count = tokens.const_data_ptr<std::int64_t>();
  return row_counts({count, count + ranks.size()}, ranks.rank());
}

}  // namespace moe

namespace {

using moe::indices_among;

bool serves(const Communicator& all, const Communicator& some) {
  if (all == some) return true;
  return all && some && indices_among(some, all).size() == some.ranks().size();
}

}  // namespace

// Counts gathered over a larger group are reused for its subgroups.
SharedCounts::Exchange& SharedCounts::exchange(const Communicator& ranks) {
  for (auto& done : exchanges_) {
    if (serves(done.ranks, ranks)) return done;
  }
  const at::NoGradGuard no_grad;
  const NoMeshScopeGuard regular;
  Exchange fresh{ranks, local_.unsqueeze(0), {}, {}};
  if (ranks && ranks.size() > 1) {
    fresh.counts = at::empty({ranks.size(), local_.size(0)}, local_.options());
    fresh.work = ranks.all_gather(fresh.counts.split(1), local_.unsqueeze(0));
  }
  return exchanges_.emplace_back(std::move(fresh));  // not reached if the collective fails
}

void SharedCounts::begin(const Communicator& ranks) { exchange(ranks); }

at::Tensor SharedCounts::rows_of(const at::Tensor& counts, const Exchange& done, const Communicator& ranks) {
  if (done.ranks == ranks || counts.size(0) == 1) return counts;
  const NoMeshScopeGuard regular;
  return counts.index_select(0, at::tensor(indices_among(ranks, done.ranks)).to(counts.device()));
}

at::Tensor SharedCounts::of_ranks(const Communicator& ranks) {
  auto& result = exchange(ranks);
  result.work.wait();
  if (!result.host.defined()) result.host = result.counts.cpu();
  return rows_of(result.host, result, ranks);
}

at::Tensor SharedCounts::on_device(const Communicator& ranks) {
  auto& result = exchange(ranks);
  result.work.wait();
  return rows_of(result.counts, result, ranks);
}

at::Tensor moe::gate_logits(const at::Tensor& x, const at::Tensor& gate) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::autocast_dispatch_keyset);  // which would reduce the precision
  if (at::isReducedFloatingType(x.scalar_type()) || at::isReducedFloatingType(gate.scalar_type())) {
    moe::count(&MoeCounters::rounded_scores);
  }
  const auto type = at::toOpMathType(at::promote_types(x.scalar_type(), gate.scalar_type()));
  return at::linear(x.to(type), gate.to(type));
}

namespace {

using namespace moe;

at::Tensor scores_of(const at::Tensor& scores, const at::Tensor& experts, bool complete, const RouterOptions& o) {
  if (complete) return scores.gather(1, experts);
  const auto none = experts == o.experts;
  return scores.gather(1, experts.masked_fill(none, 0)).masked_fill(none, 0);
}

at::Tensor apply_options(at::Tensor weights, const RouterOptions& o) {
  if (o.normalize) weights = weights / (weights.sum(1, /*keepdim=*/true) + 1e-20);
  return o.scale == 1 ? weights : weights * o.scale;
}

// The weights of this rank's tokens. Scores that are a DTensor (in a BitIdentical scope) are gathered from local rows,
// since that only moves them, and computed with by operators on DTensors.
at::Tensor weights_of(const at::Tensor& scores, const at::Tensor& experts, bool complete, const RouterOptions& o) {
  if (!is_dtensor(scores)) return apply_options(scores_of(scores, experts, complete, o), o);
  const DTensor all(scores);
  const auto& rows = all.placements();
  const auto chosen = scores_of(all.to_local(rows), experts, complete, o);
  const auto weights = DTensor::from_local(chosen, all.mesh(), rows, {all.size(0), chosen.size(1)});
  return DTensor(apply_options(weights, o)).redistribute(rows).to_local(rows);
}

void check_gate(const at::Tensor& x, const at::Tensor& gate, const RouterOptions& o) {
  TORCH_CHECK(x.dim() == 2 && gate.dim() == 2 && x.size(1) == gate.size(1), "route: tokens ", x.sizes(), " and gate ",
              gate.sizes(), " do not match");
  TORCH_CHECK(gate.size(0) == o.experts, "route: the gate has ", gate.size(0), " rows, expected ", o.experts,
              " (the number of experts)");
}

void check_options(const RouterOptions& o) {
  TORCH_CHECK(o.top_k >= 1 && o.top_k <= o.experts, "route: expected 1 <= top_k <= experts, got top_k ", o.top_k,
              " for ", o.experts, " experts");
  TORCH_CHECK(o.groups >= 1 && o.experts % o.groups == 0 && o.top_groups >= 1 && o.top_groups <= o.groups,
              "route: expected groups to divide experts and 1 <= top_groups <= groups, got top_groups ", o.top_groups,
              ", groups ", o.groups, " and ", o.experts, " experts");
  TORCH_CHECK(o.top_k <= o.top_groups * (o.experts / o.groups),
              "route: expected top_k <= top_groups * experts / groups, but ", o.top_groups, " groups of ",
              o.experts / o.groups, " experts are too few for ", o.top_k, " choices");
}

RoutingStrategy::Choice choose(const at::Tensor& scores, const RouterOptions& o, const TokenLayout& layout,
                               const at::Tensor& bias) {
  const at::NoGradGuard no_grad;
  const auto strategy = o.strategy ? o.strategy : make_strategy(o.choice);
  auto choice = strategy->choose(scores.detach(), o, layout, bias);
  const auto& experts = choice.experts;
  TORCH_CHECK(experts.defined() && experts.dim() == 2 && experts.size(0) == scores.size(0) &&
                  experts.scalar_type() == at::kLong && experts.device() == scores.device(),
              "route: ", strategy->name(), " must return int64 [tokens, choices] on ", scores.device(), " for ",
              scores.size(0), " tokens",
              experts.defined() ? c10::str(", got ", experts.toString(), " ", experts.sizes())
                                : std::string(", got an undefined tensor"));
  return choice;
}

}  // namespace

Routing route(const at::Tensor& x, const at::Tensor& gate, const RouterOptions& options, const TokenLayout& layout,
              const at::Tensor& bias) {
  check_gate(x, gate, options);
  const NoMeshScopeGuard regular;
  return route_logits(gate_logits(x, gate), options, layout, bias);
}

Routing route_logits(const at::Tensor& logits, const RouterOptions& options, const TokenLayout& layout,
                     const at::Tensor& bias) {
  check_options(options);
  const NoMeshScopeGuard regular;
  Routing routing;
  routing.expert_count = options.experts;
  routing.scores = options.score == RouterScore::softmax ? at::softmax(logits, 1) : at::sigmoid(logits);
  if (is_dtensor(logits)) routing.scores = DTensor(routing.scores).redistribute(DTensor(logits).placements());
  const auto choice = choose(moe::local_view(routing.scores), options, layout, bias);
  routing.experts = choice.experts;
  routing.weights = weights_of(routing.scores, routing.experts, choice.complete, options);
  routing.order = choice.order;
  routing.counts = std::make_shared<SharedCounts>(choice.order ? choice.order->counts
                                                               : count_bins(routing.experts, options.experts));
  routing.round_robin = choice.round_robin;
  routing.by_experts = !choice.same_width;
  routing.complete = choice.complete;
  routing.empty = choice.complete ? 0 : -1;
  routing.loss = router_loss(logits, routing, options, layout);
  return routing;
}

TokenRange token_range(const Routing& routing, const TokenLayout& layout) {
  const auto here = routing.experts.size(0);
  if (!layout.ranks || layout.ranks.size() == 1) return {here, 0};
  if (layout.total >= 0 && layout.first >= 0) return {layout.total, layout.first};
  const auto tokens = moe::tokens_of_ranks(routing, layout.ranks);
  return {tokens.total, tokens.before};
}

}  // namespace dtensor

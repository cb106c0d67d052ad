// The router: scores, choice and weights of this rank's tokens.
#include "dtensor/moe/router.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "dtensor/moe/exchange.h"
#include "moe/router_parts.h"

namespace dtensor {

namespace {

// Rows of the members of `some` among those of `all`; less where one is missing.
std::vector<std::int64_t> places_among(const Communicator& some, const Communicator& all) {
  std::vector<std::int64_t> places;
  for (const auto rank : some.ranks()) {
    const auto found = std::find(all.ranks().begin(), all.ranks().end(), rank);
    if (found != all.ranks().end()) places.push_back(found - all.ranks().begin());
  }
  return places;
}

bool serves(const Communicator& all, const Communicator& some) {
  if (all == some) return true;
  return all && some && places_among(some, all).size() == some.ranks().size();
}

}  // namespace

// What the ranks of a larger group told each other serves a smaller one, too.
SharedCounts::Exchange& SharedCounts::exchange(const Communicator& ranks) {
  for (auto& done : exchanges_) {
    if (serves(done.ranks, ranks)) return done;
  }
  const at::NoGradGuard no_grad;
  exchanges_.push_back({ranks, {}, {}});
  auto& fresh = exchanges_.back();
  const auto mine = local_.unsqueeze(0);
  if (!ranks || ranks.size() == 1) {
    fresh.counts = mine.cpu();
    return fresh;
  }
  fresh.counts = at::empty({ranks.size(), local_.size(0)}, local_.options());
  fresh.work = ranks.all_gather(fresh.counts.split(1), mine);
  return fresh;
}

void SharedCounts::begin(const Communicator& ranks) { exchange(ranks); }

at::Tensor SharedCounts::of_ranks(const Communicator& ranks) {
  auto& result = exchange(ranks);
  result.work.wait();
  result.counts = result.counts.cpu();
  if (result.ranks == ranks) return result.counts;
  return result.counts.index_select(0, at::tensor(places_among(ranks, result.ranks)));
}

namespace {

using namespace moe;

at::Tensor gate_logits(const at::Tensor& x, const at::Tensor& gate) {
  const auto type = at::toOpMathType(at::promote_types(x.scalar_type(), gate.scalar_type()));
  return at::linear(x.to(type), gate.to(type));
}

at::Tensor only_best_groups(const at::Tensor& choice, const RouterOptions& o) {
  const auto grouped = choice.view({choice.size(0), o.groups, o.experts / o.groups});
  const auto best = std::get<0>(grouped.topk(std::min<std::int64_t>(2, grouped.size(2)), 2)).sum(2);
  const auto chosen = std::get<1>(best.topk(o.top_groups, 1));
  const auto out = at::ones_like(best, at::kBool).scatter_(1, chosen, false);
  return grouped.masked_fill(out.unsqueeze(2), -std::numeric_limits<double>::infinity()).view_as(choice);
}

at::Tensor choose_by_token(const at::Tensor& scores, const RouterOptions& o, const at::Tensor& bias) {
  const at::NoGradGuard no_grad;
  auto choice = bias.defined() ? scores + bias : scores.detach();
  if (o.groups > 1) choice = only_best_groups(choice, o);
  return std::get<1>(choice.topk(o.top_k, 1));
}

at::Tensor choose_in_turn(std::int64_t tokens, const RouterOptions& o, const TokenLayout& layout, at::Device device) {
  const auto longs = at::TensorOptions(at::kLong).device(device);
  const auto first = layout.first >= 0 ? layout.first : (layout.ranks ? layout.ranks.rank() * tokens : 0);
  const auto token = layout.index.defined() ? layout.index : at::arange(first, first + tokens, longs);
  return (token.unsqueeze(1) * o.top_k + at::arange(o.top_k, longs)).remainder(o.experts);
}

at::Tensor choose(const at::Tensor& scores, const RouterOptions& o, const TokenLayout& layout, const at::Tensor& bias) {
  switch (o.choice) {
    case RouterChoice::tokens:
      return choose_by_token(scores, o, bias);
    case RouterChoice::experts:
      return choose_by_expert(scores, o, layout);
    case RouterChoice::round_robin:
      return choose_in_turn(scores.size(0), o, layout, scores.device());
  }
  TORCH_CHECK(false, "route: unknown choice");
}

at::Tensor weigh(const at::Tensor& scores, const at::Tensor& experts, const RouterOptions& o) {
  at::Tensor weights;
  if (o.choice == RouterChoice::experts) {  // some places are empty
    const auto none = experts == o.experts;
    weights = scores.gather(1, experts.masked_fill(none, 0)).masked_fill(none, 0);
  } else {
    weights = scores.gather(1, experts);
  }
  if (o.normalise) weights = weights / (weights.sum(1, /*keepdim=*/true) + 1e-20);
  return o.scale == 1 ? weights : weights * o.scale;
}

void check_options(const at::Tensor& x, const at::Tensor& gate, const RouterOptions& o) {
  TORCH_CHECK(x.dim() == 2 && gate.dim() == 2 && x.size(1) == gate.size(1), "route: tokens ", x.sizes(), " and gate ",
              gate.sizes(), " disagree");
  TORCH_CHECK(gate.size(0) == o.experts, "route: the gate has ", gate.size(0), " rows for ", o.experts, " experts");
  TORCH_CHECK(o.top_k >= 1 && o.top_k <= o.experts, "route: top_k ", o.top_k, " of ", o.experts, " experts");
  TORCH_CHECK(o.groups >= 1 && o.experts % o.groups == 0 && o.top_groups >= 1 && o.top_groups <= o.groups,
              "route: the best ", o.top_groups, " of ", o.groups, " groups of ", o.experts, " experts");
  TORCH_CHECK(o.top_k <= o.top_groups * (o.experts / o.groups), "route: ", o.top_groups, " groups of ",
              o.experts / o.groups, " experts hold no ", o.top_k, " choices");
}

}  // namespace

Routing route(const at::Tensor& x, const at::Tensor& gate, const RouterOptions& options, const TokenLayout& layout,
              const at::Tensor& bias) {
  check_options(x, gate, options);
  Routing routing;
  routing.expert_count = options.experts;
  const auto logits = gate_logits(x, gate);
  routing.scores = options.score == RouterScore::softmax ? at::softmax(logits, 1) : at::sigmoid(logits);
  routing.experts = choose(routing.scores, options, layout, bias);
  routing.weights = weigh(routing.scores, routing.experts, options);
  routing.counts = std::make_shared<SharedCounts>(count_bins(routing.experts, options.experts));
  routing.round_robin = options.choice == RouterChoice::round_robin;
  routing.by_experts = options.choice == RouterChoice::experts;
  routing.empty = routing.by_experts ? -1 : 0;
  routing.loss = router_loss(logits, routing, options, layout);
  return routing;
}

TokenRange token_range(const Routing& routing, const TokenLayout& layout) {
  const auto here = routing.experts.size(0);
  if (!layout.ranks || layout.ranks.size() == 1) return {here, 0};
  if (layout.total >= 0 && layout.first >= 0) return {layout.total, layout.first};
  const auto entries = routing.counts->of_ranks(layout.ranks).sum(1);  // top_k of each token
  const auto choices = routing.experts.size(1);
  return {entries.sum().item<std::int64_t>() / choices,
          entries.narrow(0, 0, layout.ranks.rank()).sum().item<std::int64_t>() / choices};
}

}  // namespace dtensor

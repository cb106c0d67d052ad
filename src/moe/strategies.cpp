// How experts are chosen: by tokens, by experts, or in turn.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <limits>
#include <map>
#include <mutex>
#include <tuple>

#include "moe/counting.h"
#include "moe/router_parts.h"

namespace dtensor {
namespace {

at::Tensor only_best_groups(const at::Tensor& choice, const RouterOptions& o) {
  const auto grouped = choice.view({choice.size(0), o.groups, o.experts / o.groups});
  const auto best = std::get<0>(grouped.topk(std::min<std::int64_t>(2, grouped.size(2)), 2)).sum(2);
  const auto chosen = std::get<1>(best.topk(o.top_groups, 1));
  const auto out = at::ones_like(best, at::kBool).scatter_(1, chosen, false);
  return grouped.masked_fill(out.unsqueeze(2), -std::numeric_limits<double>::infinity()).view_as(choice);
}

class TokenChoice final : public RoutingStrategy {
 public:
  Choice choose(const at::Tensor& scores, const RouterOptions& o, const TokenLayout&,
                const at::Tensor& bias) const override {
    auto choice = bias.defined() ? scores + bias : scores;
    if (o.groups > 1) choice = only_best_groups(choice, o);
    return {.experts = std::get<1>(choice.topk(o.top_k, 1))};
  }
  const char* name() const override { return "TokenChoice"; }
};

class ExpertChoice final : public RoutingStrategy {
 public:
  Choice choose(const at::Tensor& scores, const RouterOptions& o, const TokenLayout& layout,
                const at::Tensor&) const override {
    return {.experts = moe::choose_by_expert(scores, o, layout), .complete = false, .same_width = false};
  }
  const char* name() const override { return "ExpertChoice"; }
};

class ForceLoadBalance final : public RoutingStrategy {
 public:
  Choice choose(const at::Tensor& scores, const RouterOptions& o, const TokenLayout& layout,
                const at::Tensor&) const override {
    if (layout.index.defined()) return {.experts = in_turn(scores, o, layout), .in_turn = true};
    const Key key{
        scores.size(0),         first_token(scores, layout) % o.experts, o.experts, o.top_k, scores.device().type(),
        scores.device().index()};
    const std::lock_guard lock(mutex_);  // layers and thread ranks may share it
    if (const auto found = kept_.find(key); found != kept_.end()) {
      moe::count(&MoeCounters::kept_choices);
      return found->second;
    }
    if (kept_.size() >= kMost) kept_.clear();
    return kept_.emplace(key, make(scores, o, layout)).first->second;
  }
  const char* name() const override { return "ForceLoadBalance"; }

 private:
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, c10::DeviceType, c10::DeviceIndex>;
  static constexpr std::size_t kMost = 64;  // sizes of inputs kept

  static std::int64_t first_token(const at::Tensor& scores, const TokenLayout& layout) {
    return layout.first >= 0 ? layout.first : (layout.ranks ? layout.ranks.rank() * scores.size(0) : 0);
  }

  static at::Tensor in_turn(const at::Tensor& scores, const RouterOptions& o, const TokenLayout& layout) {
    const auto longs = scores.options().dtype(at::kLong);
    const auto first = first_token(scores, layout);
    const auto token = layout.index.defined() ? layout.index : at::arange(first, first + scores.size(0), longs);
    return (token.unsqueeze(1) * o.top_k + at::arange(o.top_k, longs)).remainder(o.experts);
  }

  static Choice make(const at::Tensor& scores, const RouterOptions& o, const TokenLayout& layout) {
    const c10::InferenceMode off(false);  // what is kept serves passes with gradients, too
    const auto experts = in_turn(scores, o, layout);
    auto order = std::make_shared<const SortedBins>(
        sort_by_bin(experts, o.experts, count_bins(experts, o.experts), experts.numel()));
    return {.experts = experts, .order = std::move(order), .in_turn = true};
  }

  mutable std::mutex mutex_;
  mutable std::map<Key, Choice> kept_;
};

}  // namespace

RoutingStrategyPtr token_choice() { return std::make_shared<TokenChoice>(); }
RoutingStrategyPtr expert_choice() { return std::make_shared<ExpertChoice>(); }
RoutingStrategyPtr force_load_balance() { return std::make_shared<ForceLoadBalance>(); }

RoutingStrategyPtr make_strategy(RouterChoice choice) {
  switch (choice) {
    case RouterChoice::tokens:
      return token_choice();
    case RouterChoice::experts:
      return expert_choice();
    case RouterChoice::round_robin:
      return force_load_balance();
  }
  TORCH_CHECK(false, "route: unknown choice");
}

}  // namespace dtensor

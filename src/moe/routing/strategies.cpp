// Routing strategies: token choice, expert choice and round robin.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>

#include "internal/scoped_value.h"
#include "internal/simulated.h"
#include "internal/simulated_load.h"
#include "moe/counting.h"
#include "moe/dispatch/permute.h"
#include "moe/routing/router_parts.h"

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
    if (is_simulated(scores)) return {.experts = balanced(scores.size(0), o)};
    auto choice = bias.defined() ? scores + bias : scores;
    if (o.groups > 1) choice = only_best_groups(choice, o);
    return {.experts = std::get<1>(choice.topk(o.top_k, 1))};
  }
  const char* name() const override { return "TokenChoice"; }

 private:
  // The choices of a dry run, which has no scores: the first expert gets DryRunOptions::expert_load times the mean
  // load, the others get the rest in turn.
  static at::Tensor balanced(std::int64_t tokens, const RouterOptions& o) {
    const auto* load = ScopedValue<SimulatedExpertLoad>::current();
    const auto in_turn = [](std::int64_t entries, std::int64_t experts) {
      return at::arange(entries, at::kLong).remainder_(experts);
    };
    if (load == nullptr || load->heaviest == 1 || o.experts == 1) {
      return in_turn(tokens * o.top_k, o.experts).view({tokens, o.top_k});
    }
    const double mean = static_cast<double>(tokens * o.top_k) / static_cast<double>(o.experts);
    const auto heavy = std::min(tokens, static_cast<std::int64_t>(std::llround(load->heaviest * mean)));
    const auto others = in_turn(tokens * o.top_k - heavy, o.experts - 1) + 1;
    const auto beside = heavy * (o.top_k - 1);
    const auto first =
        at::cat({at::zeros({heavy, 1}, at::kLong), others.slice(0, 0, beside).view({heavy, o.top_k - 1})}, 1);
    return at::cat({first, others.slice(0, beside).view({tokens - heavy, o.top_k})});
  }
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
    if (layout.index.defined()) return {.experts = round_robin(scores, o, layout.index), .round_robin = true};
    const TokenPosition place = position_of(scores.size(0), layout);
    auto choice = kept_for(scores, o, place.first % o.experts);
    choice.round_robin = place.equal;
    return choice;
  }
  const char* name() const override { return "ForceLoadBalance"; }

 private:
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, c10::DeviceType, c10::DeviceIndex>;
  static constexpr std::size_t kMost = 64;  // cached input sizes

  struct TokenPosition {
    std::int64_t first = 0;  // index in the batch
    bool equal = true;       // whether all ranks have the same number of tokens; true if unknown
  };

  // For regular tokens the number of preceding tokens is unknown, so ranks exchange it.
  static TokenPosition position_of(std::int64_t here, const TokenLayout& layout) {
    if (layout.first >= 0) return {layout.first};
    const auto tokens = moe::rows_of_ranks(here, layout.ranks);
    const auto as_here = [&](auto count) { return count == here; };
    return {tokens.before, std::all_of(tokens.of_each.begin(), tokens.of_each.end(), as_here)};
  }

  Choice kept_for(const at::Tensor& scores, const RouterOptions& o, std::int64_t first) const {
    const auto device = scores.device();
    const Key key{scores.size(0), first, o.experts, o.top_k, device.type(), device.index()};
    const std::lock_guard lock(mutex_);  // layers and thread ranks may share the strategy
    if (const auto found = kept_.find(key); found != kept_.end()) {
      moe::count(&MoeCounters::cached_routings);
      return found->second;
    }
    if (kept_.size() >= kMost) kept_.clear();
    return kept_.emplace(key, make(scores, o, first)).first->second;
  }

  static at::Tensor round_robin(const at::Tensor& scores, const RouterOptions& o, const at::Tensor& token) {
    const auto longs = scores.options().dtype(at::kLong);
    return (token.unsqueeze(1) * o.top_k + at::arange(o.top_k, longs)).remainder(o.experts);
  }

  static Choice make(const at::Tensor& scores, const RouterOptions& o, std::int64_t first) {
    const c10::InferenceMode off(false);  // the cached choice also serves passes with gradients
    const auto longs = scores.options().dtype(at::kLong);
    const auto experts = round_robin(scores, o, at::arange(first, first + scores.size(0), longs));
    auto order = std::make_shared<const SortedBins>(
        sort_by_bin(experts, o.experts, count_bins(experts, o.experts), experts.numel()));
    return {.experts = experts, .order = std::move(order), .round_robin = true};
  }

  mutable std::mutex mutex_;
  mutable std::map<Key, Choice> kept_;
};

}  // namespace

std::shared_ptr<const RoutingStrategy> make_strategy(RouterChoice choice) {
  switch (choice) {
    case RouterChoice::tokens:
      return std::make_shared<TokenChoice>();
    case RouterChoice::experts:
      return std::make_shared<ExpertChoice>();
    case RouterChoice::round_robin:
      return std::make_shared<ForceLoadBalance>();
  }
  TORCH_CHECK(false, "route: unknown choice");
}

}  // namespace dtensor

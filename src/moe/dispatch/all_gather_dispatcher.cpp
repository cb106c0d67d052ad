// Dispatcher for small numbers of tokens: each rank gathers all tokens and computes its experts for them; a
// reduce-scatter sums the results.
#include <ATen/ATen.h>

#include "dtensor/moe/dispatch.h"
#include "internal/aten_scopes.h"
#include "moe/dispatch/dispatch_details.h"
#include "moe/dispatch/permute.h"
#include "moe/dispatch/weighted_rows.h"
#include "moe/routing/router_parts.h"

namespace dtensor {
namespace {

struct TokensOfRanks {
  explicit TokensOfRanks(std::vector<std::int64_t> of_each) : count(std::move(of_each)) {}
  const std::vector<std::int64_t> count;
};

const std::vector<std::int64_t>& tokens_of(const DispatchPlan& plan) {
  return moe::details_of<TokensOfRanks>(plan, "AllGather").count;
}

class AllGather final : public Dispatcher {
 public:
  explicit AllGather(Communicator ranks) : Dispatcher(std::move(ranks)) {}

  DispatchPlan prepare(const Routing& routing, const TokenLayout&) const override {
    const NoMeshScopeGuard regular;
    const auto local = routing.expert_count / size();
    TORCH_CHECK(local * size() == routing.expert_count, "AllGather: ", routing.expert_count,
                " experts are not divisible by ", size(), " ranks");
    DispatchPlan plan;
    TORCH_CHECK(size() == 1 || !routing.by_experts,
                "AllGather does not support RouterChoice::experts; use DispatchKind::all_to_all");
    plan.details = std::make_shared<TokensOfRanks>(moe::tokens_of_ranks(routing, ranks_).of_each);
    auto experts = routing.experts;
    plan.weights = routing.weights;
    if (size() > 1) {
      experts = all_gather_rows(experts, tokens_of(plan), ranks_) - ranks_.rank() * local;
      experts = at::where(experts < 0, local, experts);
      plan.weights = all_gather_rows(plan.weights, tokens_of(plan), ranks_);
    }
    const auto sorted = sort_by_bin(experts, local);
    plan.position = sorted.position.view(experts.sizes());
    plan.sent = sorted.order.size(0);
    plan.counts = sorted.counts;
    if (plan.counts.is_cpu()) plan.host_rows();
    return plan;
  }

  at::Tensor dispatch(const at::Tensor& x, DispatchPlan& plan, const std::function<void()>& overlap_fn) const override {
    if (overlap_fn) overlap_fn();
    const auto all = size() > 1 ? all_gather_rows(x, tokens_of(plan), ranks_) : x;
    return moe::sent_rows(all, plan);
  }

  at::Tensor combine(const at::Tensor& rows, const DispatchPlan& plan, const at::Tensor& base,
                     at::TensorList) const override {
    auto sum = unpermute_tokens(rows, plan.position, plan.apply_probs_before_experts ? at::Tensor() : plan.weights);
    if (size() > 1) sum = reduce_scatter_rows(sum, tokens_of(plan), ranks_);
    return base.defined() ? base + sum : sum;
  }

  const char* name() const override { return "AllGather"; }

 private:
  int size() const { return ranks_ ? ranks_.size() : 1; }
};

}  // namespace

std::shared_ptr<const Dispatcher> moe::all_gather_dispatcher(const Communicator& ranks) {
  return std::make_shared<AllGather>(ranks);
}

}  // namespace dtensor

// For token i with target y, p = softmax(l), weights w, smoothing e over C classes:
//   loss = (1 - e) w_y (lse - l_y) + e / C sum_c w_c (lse - l_c),   z = lse^2
//   dloss / dl_c = ((1 - e) w_y + e / C sum w) p_c - (1 - e) w_y [c = y] - e / C w_c,   dz / dl_c = 2 lse p_c
// Only lse, l_y, w_y and sum_c w_c l_c cross ranks.
#include "parallel/loss/token_loss.h"

#include <ATen/ATen.h>

#include "internal/simulated.h"

namespace dtensor {
namespace {

// Index of the target among this rank's classes, and whether it is there.
struct Local {
  at::Tensor index, here;
};

Local local_target(const ClassShard& shard, const at::Tensor& targets) {
  const at::Tensor here = targets.ge(shard.first).logical_and_(targets.lt(shard.first + shard.own));
  return {(targets - shard.first).masked_fill_(here.logical_not(), 0), here};
}

at::Tensor picked(const at::Tensor& rows, const Local& target) {
  if (rows.size(1) == 0) return rows.new_zeros({rows.size(0)});
  return rows.gather(1, target.index.unsqueeze(1)).squeeze(1).masked_fill_(target.here.logical_not(), 0);
}

at::Tensor weighted_sum(const LossTerms& terms, const at::Tensor& rows) {
  return terms.weight.defined() ? rows.mv(terms.weight) : rows.sum(1);
}

at::Tensor largest(const ClassShard& shard, const at::Tensor& logits) {
  const at::Tensor top =
      logits.size(1) > 0 ? logits.amax(1) : logits.new_full({logits.size(0)}, -std::numeric_limits<double>::infinity());
  shard.reduce_classes(top, ReduceOp::max);
  return top;
}

at::Tensor check_targets(const LossTerms& terms, const at::Tensor& targets) {
  const at::Tensor valid = targets.ne(terms.options.ignore_index);
  const at::Tensor wrong = targets.lt(0).logical_or_(targets.ge(terms.shard.count)).logical_and_(valid);
  TORCH_CHECK_INDEX(!item_or(wrong.any(), false), "cross_entropy: expected a class index in [0, ", terms.shard.count,
                    ") or ignore_index ", terms.options.ignore_index, ", got ",
                    targets.masked_select(wrong)[0].item<std::int64_t>());
  return valid;
}

}  // namespace

TokenLoss token_loss(const LossTerms& terms, const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor valid = check_targets(terms, targets);
  const Local target = local_target(terms.shard, targets);
  const at::Tensor top = largest(terms.shard, logits);
  const at::Tensor shifted = logits - top.unsqueeze(1);
  at::Tensor own_weight;
  if (terms.weight.defined()) {
    own_weight = terms.shard.own > 0 ? terms.weight.index_select(0, target.index) : at::zeros_like(top);
    own_weight.masked_fill_(target.here.logical_not(), 0);
  } else {
    own_weight = target.here.to(top.scalar_type());
  }
  std::vector<at::Tensor> sums = {shifted.exp().sum(1), picked(shifted, target), own_weight};
  if (terms.smooths()) sums.push_back(weighted_sum(terms, shifted));
  const at::Tensor all = at::stack(sums);
  terms.shard.reduce_classes(all, ReduceOp::sum);
  const at::Tensor log_sum = all[0].log();
  const double keep = 1 - terms.options.label_smoothing;
  at::Tensor loss = (log_sum - all[1]) * all[2] * keep;
  if (terms.smooths()) {
    const double share = terms.options.label_smoothing / static_cast<double>(terms.shard.count);
    loss += (log_sum * terms.weight_sum - all[3]) * share;
  }
  const at::Tensor ignored = valid.logical_not();
  const at::Tensor lse = log_sum + top;
  const at::Tensor z = terms.options.z_loss > 0 ? lse.square().masked_fill_(ignored, 0) : at::Tensor();
  return {loss.masked_fill_(ignored, 0), z, {lse, valid.to(lse.scalar_type()), all[2].masked_fill(ignored, 0)}};
}

at::Tensor token_gradient(const LossTerms& terms, const at::Tensor& logits, const at::Tensor& targets,
                          const TokenState& state, const at::Tensor& scale_in, const at::Tensor& z_scale) {
  const double keep = 1 - terms.options.label_smoothing;
  const double share = terms.options.label_smoothing / static_cast<double>(terms.shard.count);
  // Selected, not multiplied: without a valid token the mean's scale is NaN, but the gradient is zero.
  const at::Tensor ignored = state.valid.eq(0), none = at::zeros_like(state.lse);
  const at::Tensor scale = at::where(ignored, none, scale_in);
  const at::Tensor smooth = scale * share;  // per class, before its weight
  const at::Tensor peak = scale * state.target_weight * keep;
  at::Tensor of_softmax = peak + smooth * terms.weight_sum;
  if (z_scale.defined()) of_softmax = of_softmax + at::where(ignored, none, z_scale) * state.lse * 2;
  at::Tensor grad = (logits - state.lse.unsqueeze(1)).exp_().mul_(of_softmax.unsqueeze(1));
  if (terms.smooths()) {
    grad.sub_(terms.weight.defined() ? smooth.unsqueeze(1) * terms.weight : smooth.unsqueeze(1));
  }
  if (grad.size(1) == 0) return grad;
  const Local target = local_target(terms.shard, targets);
  return grad.scatter_add_(1, target.index.unsqueeze(1),
                           peak.neg().masked_fill_(target.here.logical_not(), 0).unsqueeze(1));
}

}  // namespace dtensor

// For token i with target y, p = softmax(l), weights w, smoothing e over C classes:
//   loss = (1 - e) w_y (lse - l_y) + e / C sum_c w_c (lse - l_c),   z = lse^2
//   dloss / dl_c = ((1 - e) w_y + e / C sum w) p_c - (1 - e) w_y [c = y] - e / C w_c,   dz / dl_c = 2 lse p_c
// Only lse, l_y, w_y and sum_c w_c l_c cross ranks.
#include "parallel/loss/token_loss.h"

#include <ATen/ATen.h>

#include "internal/simulated.h"
#include "parallel/loss/row_kernels.h"

namespace dtensor {
namespace {

loss_rows::Rows rows_of(const LossTerms& terms, const at::Tensor& logits, const at::Tensor& targets) {
  return {.values = logits.stride(1) == 1 || logits.size(1) < 2 ? logits : logits.contiguous(),
          .targets = targets.contiguous(),
          .weight = terms.weight.defined() ? terms.weight.contiguous() : terms.weight,
          .first = terms.shard.first,
          .classes = terms.shard.own,
          .count = terms.shard.count,
          .ignore_index = terms.options.ignore_index,
          .smooths = terms.smooths()};
}

// The largest logit of each token over all ranks, and the sums relative to it.
std::pair<at::Tensor, at::Tensor> reduced_sums(const LossTerms& terms, const loss_rows::Rows& rows) {
  at::Tensor top;
  if (!terms.shard.class_axes.empty()) {
    top = loss_rows::largest(rows);
    terms.shard.reduce_classes(top, ReduceOp::max);
  }
  auto result = loss_rows::sums(rows, std::move(top));
  const auto needed = terms.smooths() ? loss_rows::kSums : loss_rows::kSmoothing;
  terms.shard.reduce_classes(result.second.narrow(0, 0, needed), ReduceOp::sum);
  return result;
}

// Whether each target is a class; throws if a target is invalid, unless the kernels check that.
at::Tensor valid_targets(const LossTerms& terms, const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor valid = targets.ne(terms.options.ignore_index);
  if (loss_rows::checks_targets_on_device(logits)) return valid;
  const at::Tensor wrong = targets.lt(0).logical_or_(targets.ge(terms.shard.count)).logical_and_(valid);
  TORCH_CHECK_INDEX(!item_or(wrong.any(), false), "cross_entropy: expected a class index in [0, ", terms.shard.count,
                    ") or ignore_index ", terms.options.ignore_index, ", got ",
                    targets.masked_select(wrong)[0].item<std::int64_t>());
  return valid;
}

}  // namespace

TokenLoss token_loss(const LossTerms& terms, const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor valid = valid_targets(terms, logits, targets);
  const auto [top, sums] = reduced_sums(terms, rows_of(terms, logits, targets));
  const at::Tensor log_sum = sums[loss_rows::kExponentials].log(), own_weight = sums[loss_rows::kTargetWeight];
  const double keep = 1 - terms.options.label_smoothing;
  at::Tensor loss = (log_sum - sums[loss_rows::kTarget]) * own_weight * keep;
  if (terms.smooths()) {
    const double share = terms.options.label_smoothing / static_cast<double>(terms.shard.count);
    loss += (log_sum * terms.weight_sum - sums[loss_rows::kSmoothing]) * share;
  }
  const at::Tensor ignored = valid.logical_not();
  const at::Tensor lse = log_sum + top;
  const at::Tensor z = terms.options.z_loss > 0 ? lse.square().masked_fill_(ignored, 0) : at::Tensor();
  return {loss.masked_fill_(ignored, 0), z, {lse, valid.to(lse.scalar_type()), own_weight.masked_fill(ignored, 0)}};
}

void token_gradient(const LossTerms& terms, const at::Tensor& logits, const at::Tensor& targets,
                    const TokenState& state, const at::Tensor& scale_in, const at::Tensor& z_scale,
                    const at::Tensor& out) {
  const double keep = 1 - terms.options.label_smoothing;
  const double share = terms.options.label_smoothing / static_cast<double>(terms.shard.count);
  // Selected, not multiplied: without a valid token the mean's scale is NaN, but the gradient is zero.
  const at::Tensor ignored = state.valid.eq(0), none = at::zeros_like(state.lse);
  const at::Tensor scale = at::where(ignored, none, scale_in);
  const at::Tensor smooth = scale * share;  // per class, before its weight
  const at::Tensor peak = scale * state.target_weight * keep;
  at::Tensor of_softmax = peak + smooth * terms.weight_sum;
  if (z_scale.defined()) of_softmax = of_softmax + at::where(ignored, none, z_scale) * state.lse * 2;
  loss_rows::gradient(rows_of(terms, logits, targets), at::stack({state.lse, of_softmax, smooth, peak}), out);
}

}  // namespace dtensor

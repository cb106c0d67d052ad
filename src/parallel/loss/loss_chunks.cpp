// Computes logits, losses and gradients of some tokens at a time.
#include "parallel/loss/loss_chunks.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <algorithm>
#include <utility>

namespace dtensor {
namespace {

// [t, classes, then those of aligned rows].
at::Tensor logits_of(const LossCall& call, const at::Tensor& rows, const at::Tensor& head) {
  return call.linear ? at::mm(rows, head.t()) : rows;
}

std::int64_t step_of(const LossCall& call, std::int64_t tokens) {
  return call.chunk > 0 ? call.chunk : std::max<std::int64_t>(tokens, 1);
}

at::Tensor narrowed(const at::Tensor& scale, std::int64_t begin, std::int64_t count) {
  return scale.defined() && scale.dim() > 0 ? scale.narrow(0, begin, count) : scale;
}

// Sums over several chunks in float at least: in a half type, later summands would be lost to rounding.
void add_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool only_one) {
  if (!sum.defined()) {
    sum = at::mm(a, b);
    if (!only_one) sum = sum.to(at::toOpMathType(a.scalar_type()));
  } else if (sum.scalar_type() == a.scalar_type()) {
    sum.addmm_(a, b);
  } else {
    sum.add_(at::mm(a, b));
  }
}

}  // namespace

TokenLoss forward_chunks(LossCall& call, const at::Tensor& rows, const at::Tensor& head) {
  const std::int64_t tokens = rows.size(0), step = step_of(call, tokens);
  std::vector<at::Tensor> loss, z, lse, valid, weight;
  // At least one chunk: ranks with the same tokens make the same reductions, including those without tokens.
  for (std::int64_t begin = 0; begin == 0 || begin < tokens; begin += step) {
    const std::int64_t count = std::min(step, tokens - begin);
    const at::Tensor logits = logits_of(call, rows.narrow(0, begin, count), head);
    if (call.keeps_logits) call.logits = logits;
    const TokenLoss part = token_loss(call.terms(), logits, call.targets.narrow(0, begin, count));
    loss.push_back(part.loss);
    if (part.z.defined()) z.push_back(part.z);
    lse.push_back(part.state.lse);
    valid.push_back(part.state.valid);
    weight.push_back(part.state.target_weight);
  }
  return {at::cat(loss), z.empty() ? at::Tensor() : at::cat(z), {at::cat(lse), at::cat(valid), at::cat(weight)}};
}

LossGradients backward_chunks(LossCall& call, const at::Tensor& rows, const at::Tensor& head, const Scales& scales) {
  const std::int64_t tokens = rows.size(0), step = step_of(call, tokens);
  LossGradients result;
  if (call.linear) result.rows = at::zeros_like(rows);
  for (std::int64_t begin = 0; begin == 0 || begin < tokens; begin += step) {
    const std::int64_t count = std::min(step, tokens - begin);
    const auto cut = [&](const at::Tensor& t) { return t.narrow(0, begin, count); };
    const TokenState state{cut(call.state.lse), cut(call.state.valid), cut(call.state.target_weight)};
    at::Tensor logits = std::exchange(call.logits, {});
    if (!logits.defined()) logits = logits_of(call, cut(rows), head);
    const at::Tensor grad = call.linear ? logits : at::empty(logits.sizes(), logits.options());
    token_gradient(call.terms(), logits, cut(call.targets), state, narrowed(scales.loss, begin, count),
                   narrowed(scales.z, begin, count), grad);
    if (!call.linear) return {grad, {}};
    at::Tensor piece = cut(result.rows);
    at::mm_out(piece, grad, head);
    add_product(result.head, grad.t(), cut(rows), /*only_one=*/step >= tokens);
  }
  if (call.linear) result.head = result.head.narrow(0, 0, call.shard.own).to(head.scalar_type());
  return result;
}

}  // namespace dtensor

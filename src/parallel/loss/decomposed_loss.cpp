// Differentiable any number of times, because ATen's operators are.
#include "parallel/loss/decomposed_loss.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "dtensor/hooks.h"
#include "internal/gradient_hooks.h"

namespace dtensor {
namespace {

std::int64_t reduction_of(LossReduction reduction) {
  return reduction == LossReduction::none   ? at::Reduction::None
         : reduction == LossReduction::mean ? at::Reduction::Mean
                                            : at::Reduction::Sum;
}

// logsumexp^2 of valid tokens, reduced.
at::Tensor z_loss(const at::Tensor& logits, const at::Tensor& targets, const CrossEntropyOptions& options) {
  const at::Tensor valid = targets.ne(options.ignore_index).to(logits.scalar_type());
  const at::Tensor z = at::logsumexp(logits, -1).square() * valid * options.z_loss;
  if (options.reduction == LossReduction::none) return z;
  return options.reduction == LossReduction::sum ? z.sum() : z.sum() / valid.sum();
}

}  // namespace

at::Tensor DecomposedLoss::value() const {
  at::Tensor logits = head.defined() ? at::matmul(values, head.t()) : values;
  const auto type = logits.scalar_type();
  if (type == at::kHalf || type == at::kBFloat16) logits = logits.to(at::kFloat);
  logits = logits.reshape({-1, logits.size(-1)});
  const at::Tensor flat = targets.reshape({-1}).to(at::kLong);
  at::Tensor weight = options.weight;
  if (weight.defined()) weight = weight.detach().to(logits.scalar_type());
  at::Tensor loss = at::cross_entropy_loss(logits, flat, weight, reduction_of(options.reduction), options.ignore_index,
                                           options.label_smoothing);
  if (options.z_loss > 0) loss = loss + z_loss(logits, flat, options);
  return options.reduction == LossReduction::none ? loss.reshape(targets.sizes()) : loss;
}

// Each tensor is replaced by an alias, because logits may depend on the head's weight (tied embeddings): that
// part of the gradient is computed by the outer graph.
std::vector<at::Tensor> gradient_with_graph(const DecomposedLoss& loss, const at::Tensor& grad) {
  DecomposedLoss own = loss;
  std::vector<at::Tensor> wanted, result(3);
  for (at::Tensor* t : {&own.values, &own.head}) {
    if (t->defined() && t->requires_grad()) wanted.push_back(*t = at::alias(*t));
  }
  if (wanted.empty()) return result;
  const NestedBackwardGuard part;
  auto found = torch::autograd::grad({own.value()}, wanted, {grad}, /*retain_graph=*/true, /*create_graph=*/true);
  auto next = found.begin();
  if (own.values.requires_grad()) result[0] = *next++;
  if (own.head.defined() && own.head.requires_grad()) result[1] = *next;
  return result;
}

}  // namespace dtensor

// Negative log-likelihood (1-d and 2-d) over a split class dimension, a split batch, or both. A rank counts a target
// only if it holds that class; other targets are ignored locally. The mean divides by the total weight of the whole
// batch, so ranks with few or no valid targets weigh as they should; a batch without any valid target is NaN as on one
// device.
#include <ATen/core/Reduction.h>

#include "ops/handlers/local_args.h"

namespace dtensor {
namespace {

constexpr std::int64_t kIgnored = -100;  // of local targets, once classes are local

struct Targets {
  at::Tensor target;  // local class numbers
  at::Tensor weight;  // of the local classes; may be undefined
  std::int64_t ignore_index;
  AxisMask class_axes, batch_axes;
};

std::int64_t class_dim(const at::Tensor& self) { return self.dim() == 1 ? 0 : 1; }

at::Tensor own_weight(const LocalArgs& args, const Segments& classes, AxisMask class_axes) {
  const auto weight = args.tensor("weight");
  if (!weight.defined() || shard_axes(args.spec("weight"), 0) == class_axes) return weight;
  TORCH_CHECK(shard_axes(args.spec("weight")) == 0, "nll_loss: weight is split on other mesh axes than the classes");
  return take(weight, 0, classes).contiguous();
}

void check_targets(const at::Tensor& target, const at::Tensor& valid, std::int64_t classes) {
  check_indices(target.masked_fill(valid.logical_not(), 0), std::max<std::int64_t>(classes, 1), "nll_loss: target");
}

Targets targets_of(const LocalArgs& args) {
  const auto self = args.tensor("self");
  const auto type = args.tensor("target").scalar_type();
  TORCH_CHECK(type == at::kLong || type == at::kByte, "expected target dtype to be Long or Byte, but got ", type);
  const std::int64_t dim = class_dim(self), classes = args.global_sizes("self")[dim];
  Targets t{args.tensor("target").to(at::kLong), args.tensor("weight"), args.integer("ignore_index"), 0, 0};
  t.class_axes = shard_axes(args.spec("self"), dim);
  t.batch_axes = shard_axes(args.spec("self")) & ~t.class_axes;
  if (t.class_axes == 0) return t;
  const auto segments = own_segments(args.spec("self"), dim, classes);
  const auto index = to_own(t.target, segments);
  const auto valid = t.target.ne(t.ignore_index);
  check_targets(t.target, valid, classes);
  t.target = index.local.masked_fill(index.own.logical_and(valid).logical_not_(), kIgnored);
  t.ignore_index = kIgnored;
  t.weight = own_weight(args, segments, t.class_axes);
  return t;
}

at::Tensor each_loss(const at::Tensor& self, const Targets& t) {
  const bool spatial = self.dim() > 2;
  const auto result = spatial ? at::nll_loss2d_forward(self, t.target, t.weight, at::Reduction::None, t.ignore_index)
                              : at::nll_loss_forward(self, t.target, t.weight, at::Reduction::None, t.ignore_index);
  return std::get<0>(result);
}

// Sum of the weights of this rank's valid targets.
at::Tensor own_total_weight(const Targets& t, at::ScalarType type) {
  const auto valid = t.target.ne(t.ignore_index);
  if (!t.weight.defined() || t.weight.numel() == 0) return valid.sum(type);
  const auto index = t.target.masked_fill(valid.logical_not(), 0);
  return t.weight.to(type).take(index).masked_fill_(valid.logical_not(), 0).sum();
}

void nll_loss_forward(LocalCall& call) {
  const LocalArgs args(call);
  const auto self = args.tensor("self");
  const Targets t = targets_of(args);
  const auto reduction = args.integer("reduction");
  const auto type = accumulate_type(self.scalar_type());
  auto loss = each_loss(self, t);
  if (reduction == at::Reduction::None && self.dim() > 1) {  // ATen sums a single sample
    loss = reduce_contribution(call, loss, ReduceOp::sum, t.class_axes);
    return give(call, {loss, at::zeros({}, self.options())});
  }
  const AxisMask axes = t.class_axes | t.batch_axes;
  const auto total = all_reduce(call.mesh, own_total_weight(t, type), ReduceOp::sum, axes);
  auto sum = loss.sum(type);
  if (reduction == at::Reduction::Mean) sum = sum / total;
  sum = reduce_contribution(call, sum, ReduceOp::sum, axes);
  give(call, {sum.to(self.scalar_type()), total.to(self.scalar_type())});
}

// total_weight is the global one, so ATen's gradient of the local classes is already right.
void nll_loss_backward(LocalCall& call) {
  const LocalArgs args(call);
  const auto self = args.tensor("self"), grad = args.tensor("grad_output"), total = args.tensor("total_weight");
  const auto reduction = args.integer("reduction");
  const Targets t = targets_of(args);
  const bool spatial = self.dim() > 2;
  give(call, {spatial ? at::nll_loss2d_backward(grad, self, t.target, t.weight, reduction, t.ignore_index, total)
                      : at::nll_loss_backward(grad, self, t.target, t.weight, reduction, t.ignore_index, total)});
}

}  // namespace

void register_nll_loss_kernels() {
  register_local_kernel("nll_loss_forward", nll_loss_forward);
  register_local_kernel("nll_loss_backward", nll_loss_backward);
}

}  // namespace dtensor

// Moments over sharded dimensions: variances, layer norm.
#include "ops/local_kernels/reductions/moments.h"
#include "redistribute/regions/part_views.h"
#include "row_norm/kernels.h"

namespace dtensor {
namespace {

// var, std, var_mean and std_mean over sharded dimensions. The means and sums of squared deviations of all ranks are
// combined in double by the pairwise update of Chan, Golub and LeVeque ("Updating formulae and a pairwise algorithm for
// computing sample variances", 1979), which is exact for uneven and empty shards. This takes two all_reduces of one
// value per output element.

double count_of(at::IntArrayRef sizes, at::IntArrayRef dims) {
  double count = 1;
  for (const auto d : dims) count *= static_cast<double>(sizes[d]);
  return count;
}

VarianceAccumulator local_moments(const at::Tensor& self, at::IntArrayRef dims, double count, bool keepdim) {
  // Computed in double: the rounding error of a float mean, times the difference of the ranks' means, would enter
  // `squares`.
  const auto x = self.to(self.is_complex() ? at::kComplexDouble : at::kDouble);
  if (count == 0 || x.numel() == 0) {
    const auto zero = at::sum(x, dims, keepdim);
    return {zero, zero.abs()};
  }
  const auto [variance, mean] = at::var_mean(x, dims, at::Scalar(0), keepdim);
  return {mean, variance * count};
}

}  // namespace

VarianceAccumulator global_variance(const LocalCall& call, const at::Tensor& self, at::IntArrayRef dims, double count,
                                    bool keepdim, AxisMask axes) {
  const double own_count = count_of(self.sizes(), dims);
  const auto own = local_moments(self, dims, own_count, keepdim);
  auto mean = all_reduce(call.mesh, own.mean * (own_count / count), ReduceOp::sum, axes);
  const auto shift = (own.mean - mean).abs().square();
  return {mean, all_reduce(call.mesh, own.squares + shift * own_count, ReduceOp::sum, axes)};
}

namespace {

template <bool root>
void variance(LocalCall& call) {
  const LocalArgs args(call);
  const auto self = args.tensor("self");
  TORCH_CHECK(self.is_floating_point() || self.is_complex(),
              "std and var only support floating point and complex dtypes");
  const auto dims = args.reduced_dims();
  const double count = count_of(args.global_sizes("self"), dims);
  const auto given = args.value("correction");
  const double correction = given.isNone() ? 1 : given.toScalar().toDouble();
  const AxisMask axes = shard_axes(args.spec("self"), dims);
  const auto [mean, squares] = global_variance(call, self, dims, count, args.flag("keepdim"), axes);
  auto result = squares / std::max(count - correction, 0.0);
  if (root) result = result.sqrt();
  std::vector<at::Tensor> results{result.to(call.outputs[0]->dtype)};
  if (call.outputs.size() > 1) results.push_back(mean.to(call.outputs[1]->dtype));
  set_results(call, std::move(results));
}

// Layer norm with sharded normalized dimensions. The moments of a row are combined over the ranks that share it, with
// two small all_reduces in forward and one in backward. Weight and bias may be sharded like the row, or replicated.

struct Shape {
  std::vector<std::int64_t> outer, inner;  // dimensions of the input
  double count;                            // elements of a global row
  AxisMask axes;                           // axes that shard a row
  at::ScalarType type;                     // computation dtype

  // Whether the kernels of row_norm compute this: a half type and full rows.
  bool takes_rows(const LocalArgs& args) const { return axes == 0 && args.tensor("input").scalar_type() != type; }
};

Shape shape_of(const LocalArgs& args) {
  Shape s{{}, {}, 1, 0, accumulate_type(args.tensor("input").scalar_type())};
  const auto sizes = args.global_sizes("input");
  const auto ndim = static_cast<std::int64_t>(sizes.size());
  const auto first = ndim - static_cast<std::int64_t>(args.value("normalized_shape").toListRef().size());
  for (std::int64_t d = 0; d < ndim; ++d) {
    (d < first ? s.outer : s.inner).push_back(d);
    if (d >= first) s.count *= static_cast<double>(sizes[d]);
  }
  s.axes = shard_axes(args.spec("input"), s.inner);
  return s;
}

// This rank's shard of a weight or bias, in the computation dtype; undefined if absent.
at::Tensor own_parameter(const LocalArgs& args, const char* name, const Shape& s) {
  auto parameter = args.tensor(name);
  if (!parameter.defined()) return parameter;
  if (shard_axes(args.spec(name)) == 0) {
    for (std::size_t d = 0; d < s.inner.size(); ++d) {
      const auto n = parameter.size(static_cast<std::int64_t>(d));
      parameter =
          select_segments(parameter, static_cast<std::int64_t>(d), own_segments(args.spec("input"), s.inner[d], n));
    }
  }
  return parameter.to(s.type);
}

// Rows [rows, n] of the input or its gradient, and a parameter [n] in float.
at::Tensor as_rows(const at::Tensor& t, const Shape& s) {
  const auto n = static_cast<std::int64_t>(s.count);
  return t.contiguous().view({n > 0 ? t.numel() / n : 0, n});
}
at::Tensor as_floats(const at::Tensor& t) { return t.defined() ? t.to(at::kFloat).contiguous().view({-1}) : t; }

// Half-precision input with float parameters, unsharded rows. Returns false if the device has no kernels.
bool layer_norm_of_rows(LocalCall& call, const LocalArgs& args, const Shape& s) {
  const auto x = args.tensor("input");
  if (!row_norm::has_kernels(x)) return false;
  const auto [y, mean, rstd] =
      row_norm::forward(as_rows(x, s), as_floats(args.tensor("weight")), as_floats(args.tensor("bias")),
                        args.value("eps").toDouble(), /*centers=*/true);
  const auto as_stats = [&](const at::Tensor& t) {
    return t.view(call.outputs[1]->local_sizes).to(call.outputs[1]->dtype);
  };
  set_results(call, {y.view(x.sizes()), as_stats(mean), as_stats(rstd)});
  return true;
}

void layer_norm(LocalCall& call) {
  const LocalArgs args(call);
  const Shape s = shape_of(args);
  if (s.takes_rows(args) && layer_norm_of_rows(call, args, s)) return;
  const auto x = args.tensor("input").to(s.type);
  const auto [mean, squares] = global_variance(call, x, s.inner, s.count, true, s.axes);
  const auto rstd = (squares / s.count).add_(args.value("eps").toDouble()).rsqrt_();
  auto y = (x - mean.to(s.type)).mul_(rstd.to(s.type));
  if (const auto weight = own_parameter(args, "weight", s); weight.defined()) y.mul_(weight);
  if (const auto bias = own_parameter(args, "bias", s); bias.defined()) y.add_(bias);
  set_results(call, {y.to(call.outputs[0]->dtype), mean.to(call.outputs[1]->dtype), rstd.to(call.outputs[2]->dtype)});
}

// Sum over this rank's rows, Partial on the axes that shard the rows.
at::Tensor sum_of_rows(const LocalCall& call, const LocalArgs& args, const at::Tensor& x, const Shape& s, int output) {
  const auto sum = s.outer.empty() ? x : x.sum(s.outer);
  return reduce_contribution(call, sum, ReduceOp::sum, shard_axes(args.spec("input"), s.outer), output)
      .to(call.outputs[output]->dtype);
}

// d/dx of (x - mean) rstd: rstd (g - mean(g) - xhat mean(g xhat)), with means over global rows.
at::Tensor grad_input(const LocalCall& call, const at::Tensor& g, const at::Tensor& xhat, const at::Tensor& rstd,
                      const Shape& s) {
  const auto own = at::stack({g.sum(s.inner, true), (g * xhat).sum(s.inner, true)}).div_(s.count);
  const auto means = all_reduce(call.mesh, own, ReduceOp::sum, s.axes);
  return (g - means[0]).sub_(xhat * means[1]).mul_(rstd).to(call.outputs[0]->dtype);
}

bool layer_norm_backward_of_rows(LocalCall& call, const LocalArgs& args, const Shape& s) {
  const auto x = args.tensor("input");
  if (!row_norm::has_kernels(x)) return false;
  const auto mask = args.value("output_mask").toBoolList();
  const row_norm::Saved saved{as_rows(x, s), as_floats(args.tensor("mean")), as_floats(args.tensor("rstd")),
                              as_floats(args.tensor("weight"))};
  const auto grad = as_rows(args.tensor("grad_out"), s);
  std::vector<at::Tensor> grads(3);
  if (mask[0]) grads[0] = row_norm::input_gradient(saved, grad).view(x.sizes());
  if (mask[1] || mask[2]) {
    const auto sums = row_norm::parameter_gradients(saved, grad);
    for (int i = 1; i < 3; ++i) {
      if (!mask[i]) continue;
      const auto sum = sums[i - 1].view(call.outputs[i]->local_sizes);
      grads[i] = reduce_contribution(call, sum, ReduceOp::sum, shard_axes(args.spec("input"), s.outer), i)
                     .to(call.outputs[i]->dtype);
    }
  }
  set_results(call, std::move(grads));
  return true;
}

void layer_norm_backward(LocalCall& call) {
  const LocalArgs args(call);
  const Shape s = shape_of(args);
  if (s.takes_rows(args) && layer_norm_backward_of_rows(call, args, s)) return;
  const auto mask = args.value("output_mask").toBoolList();
  const auto grad = args.tensor("grad_out").to(s.type);
  const auto rstd = args.tensor("rstd").to(s.type);
  const auto xhat = (args.tensor("input").to(s.type) - args.tensor("mean").to(s.type)).mul_(rstd);
  const auto weight = own_parameter(args, "weight", s);
  std::vector<at::Tensor> grads(3);
  if (mask[0]) grads[0] = grad_input(call, weight.defined() ? grad * weight : grad, xhat, rstd, s);
  if (mask[1]) grads[1] = sum_of_rows(call, args, grad * xhat, s, 1);
  if (mask[2]) grads[2] = sum_of_rows(call, args, grad, s, 2);
  set_results(call, std::move(grads));
}

}  // namespace

void add_variance_kernels(LocalKernels& kernels) {
  kernels.emplace("var_sharded", variance<false>);
  kernels.emplace("std_sharded", variance<true>);
  kernels.emplace("layer_norm_sharded", layer_norm);
  kernels.emplace("layer_norm_backward_sharded", layer_norm_backward);
}

}  // namespace dtensor

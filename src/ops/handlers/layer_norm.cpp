// Layer norm whose normalised dimensions are split: the moments of a row are combined over the ranks that hold it,
// forward (two small all_reduces) and backward (one). Weight and bias may be split like the row or whole.
#include "ops/handlers/local_args.h"
#include "ops/handlers/moments.h"

namespace dtensor {
namespace {

struct Shape {
  std::vector<std::int64_t> outer, inner;  // dimensions of the input
  double count;                            // elements of a whole row
  AxisMask axes;                           // that split a row
  at::ScalarType type;                     // of the computation
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

// This rank's part of a weight or bias, in the type of the computation; undefined where absent.
at::Tensor own_parameter(const LocalArgs& args, const char* name, const Shape& s) {
  auto parameter = args.tensor(name);
  if (!parameter.defined()) return parameter;
  if (shard_axes(args.spec(name)) == 0) {
    for (std::size_t d = 0; d < s.inner.size(); ++d) {
      const auto n = parameter.size(static_cast<std::int64_t>(d));
      parameter = take(parameter, static_cast<std::int64_t>(d), own_segments(args.spec("input"), s.inner[d], n));
    }
  }
  return parameter.to(s.type);
}

void layer_norm(LocalCall& call) {
  const LocalArgs args(call);
  const Shape s = shape_of(args);
  const auto x = args.tensor("input").to(s.type);
  const auto [mean, squares] = global_moments(call, x, s.inner, s.count, true, s.axes);
  const auto rstd = (squares / s.count).add_(args.value("eps").toDouble()).rsqrt_();
  auto y = (x - mean.to(s.type)).mul_(rstd.to(s.type));
  if (const auto weight = own_parameter(args, "weight", s); weight.defined()) y.mul_(weight);
  if (const auto bias = own_parameter(args, "bias", s); bias.defined()) y.add_(bias);
  give(call, {y.to(call.outputs[0]->dtype), mean.to(call.outputs[1]->dtype), rstd.to(call.outputs[2]->dtype)});
}

// Sum over the rows of this rank, Partial on the axes that split the rows.
at::Tensor sum_of_rows(const LocalCall& call, const LocalArgs& args, const at::Tensor& x, const Shape& s, int output) {
  const auto sum = s.outer.empty() ? x : x.sum(s.outer);
  return reduce_contribution(call, sum, ReduceOp::sum, shard_axes(args.spec("input"), s.outer), output)
      .to(call.outputs[output]->dtype);
}

// d/dx of (x - mean) rstd: rstd (g - mean(g) - xhat mean(g xhat)), the means over whole rows.
at::Tensor grad_input(const LocalCall& call, const at::Tensor& g, const at::Tensor& xhat, const at::Tensor& rstd,
                      const Shape& s) {
  const auto own = at::stack({g.sum(s.inner, true), (g * xhat).sum(s.inner, true)}).div_(s.count);
  const auto means = all_reduce(call.mesh, own, ReduceOp::sum, s.axes);
  return (g - means[0]).sub_(xhat * means[1]).mul_(rstd).to(call.outputs[0]->dtype);
}

void layer_norm_backward(LocalCall& call) {
  const LocalArgs args(call);
  const Shape s = shape_of(args);
  const auto mask = args.value("output_mask").toBoolList();
  const auto grad = args.tensor("grad_out").to(s.type);
  const auto rstd = args.tensor("rstd").to(s.type);
  const auto xhat = (args.tensor("input").to(s.type) - args.tensor("mean").to(s.type)).mul_(rstd);
  const auto weight = own_parameter(args, "weight", s);
  std::vector<at::Tensor> grads(3);
  if (mask[0]) grads[0] = grad_input(call, weight.defined() ? grad * weight : grad, xhat, rstd, s);
  if (mask[1]) grads[1] = sum_of_rows(call, args, grad * xhat, s, 1);
  if (mask[2]) grads[2] = sum_of_rows(call, args, grad, s, 2);
  give(call, std::move(grads));
}

}  // namespace

void register_layer_norm_kernels() {
  register_local_kernel("layer_norm_sharded", layer_norm);
  register_local_kernel("layer_norm_backward_sharded", layer_norm_backward);
}

}  // namespace dtensor

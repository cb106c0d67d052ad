// Softmax, log-softmax, their gradients and logsumexp along a sharded dimension. Each rank reduces its shard, then one
// small all_reduce combines the maxima and one the sums. Shards are not gathered. An empty shard contributes -inf and
// 0. A row of -inf gives NaN, as on one device.
#include "ops/local_kernels/local_args.h"

#include <limits>

namespace dtensor {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool empty_along(const at::Tensor& x, at::IntArrayRef dims) {
  return std::any_of(dims.begin(), dims.end(), [&](std::int64_t d) { return x.size(d) == 0; });
}

// The maxima over `dims` on all ranks; of the real parts for complex numbers.
at::Tensor row_max(const LocalCall& call, const at::Tensor& values, at::IntArrayRef dims, AxisMask axes) {
  const auto x = values.is_complex() ? at::real(values) : values;
  auto largest = empty_along(x, dims) ? at::sum(x, dims, true).fill_(-kInfinity) : at::amax(x, dims, true);
  return all_reduce(call.mesh, std::move(largest), ReduceOp::max, axes);
}

struct Row {
  at::Tensor x;  // this rank's shard in the accumulation dtype
  std::int64_t dim;
  AxisMask axes;
};

Row row_of(const LocalArgs& args) {
  const auto self = args.tensor("self");
  return {self.to(accumulate_type(self.scalar_type())), args.dim(), shard_axes(args.spec("self"), args.dim())};
}

at::Tensor row_sum(const LocalCall& call, const at::Tensor& x, const Row& row) {
  return all_reduce(call.mesh, x.sum(row.dim, true), ReduceOp::sum, row.axes);
}

void softmax(LocalCall& call) {
  const Row row = row_of(LocalArgs(call));
  auto e = (row.x - row_max(call, row.x, row.dim, row.axes)).exp_();
  const auto sum = row_sum(call, e, row);
  set_results(call, {e.div_(sum).to(call.outputs[0]->dtype)});
}

void log_softmax(LocalCall& call) {
  const Row row = row_of(LocalArgs(call));
  auto shifted = row.x - row_max(call, row.x, row.dim, row.axes);
  const auto sum = row_sum(call, shifted.exp(), row);
  set_results(call, {shifted.sub_(sum.log()).to(call.outputs[0]->dtype)});
}

// _safe_softmax: a row that contains only -inf gives 0.
void safe_softmax(LocalCall& call) {
  const LocalArgs args(call);
  Row row = row_of(args);
  const auto out = call.outputs[0]->dtype;
  if (args.dtype()) row.x = args.tensor("self").to(accumulate_type(*args.dtype()));
  const auto largest = row_max(call, row.x, row.dim, row.axes);
  auto e = (row.x - largest).exp_();
  const auto sum = row_sum(call, e, row);
  e.div_(sum).masked_fill_(largest.eq(-kInfinity), 0);
  set_results(call, {e.to(out)});
}

struct Backward {
  at::Tensor grad, y;
  Row row;  // layout of y
};

Backward backward_of(const LocalArgs& args) {
  const auto grad = args.tensor("grad_output"), y = args.tensor("output");
  const std::int64_t dim = c10::maybe_wrap_dim(args.integer("dim"), y.dim());
  const auto type = accumulate_type(y.scalar_type());
  return {grad.to(type), y.to(type), Row{y, dim, shard_axes(args.spec("output"), dim)}};
}

void softmax_backward(LocalCall& call) {
  const Backward b = backward_of(LocalArgs(call));
  auto product = b.grad * b.y;
  const auto sum = row_sum(call, product, b.row);
  set_results(call, {product.addcmul_(b.y, sum, -1).to(call.outputs[0]->dtype)});
}

void log_softmax_backward(LocalCall& call) {
  const Backward b = backward_of(LocalArgs(call));
  const auto sum = row_sum(call, b.grad, b.row);
  set_results(call, {(b.grad - b.y.exp().mul_(sum)).to(call.outputs[0]->dtype)});
}

// As in ATen, an infinite maximum is not subtracted, so rows of -inf give -inf and rows with inf give inf.
void logsumexp(LocalCall& call) {
  const LocalArgs args(call);
  const auto dims = args.reduced_dims();
  const AxisMask axes = shard_axes(args.spec("self"), dims);
  const auto type = call.outputs[0]->dtype;
  const auto x = args.tensor("self").to(accumulate_type(type));
  auto largest = row_max(call, x, dims, axes);
  largest.masked_fill_(largest.abs().eq(kInfinity), 0);
  auto sum = all_reduce(call.mesh, (x - largest).exp_().sum(dims, true), ReduceOp::sum, axes);
  auto result = sum.log_().add_(largest);
  if (!args.flag("keepdim")) result = result.sum(dims);  // removes these dimensions, which have size 1
  set_results(call, {result.to(type)});
}

}  // namespace

void add_softmax_kernels(LocalKernels& kernels) {
  kernels.emplace("softmax_sharded", softmax);
  kernels.emplace("log_softmax_sharded", log_softmax);
  kernels.emplace("safe_softmax_sharded", safe_softmax);
  kernels.emplace("softmax_backward_sharded", softmax_backward);
  kernels.emplace("log_softmax_backward_sharded", log_softmax_backward);
  kernels.emplace("logsumexp_sharded", logsumexp);
}

}  // namespace dtensor

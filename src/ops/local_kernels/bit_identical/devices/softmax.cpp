// Softmax in a BitIdentical scope on devices other than the CPU: elementwise operators, maxima and sums by the tree.
// ATen's kernels of a GPU may take another order for a row at another address.
#include <c10/core/WrapDimMinimal.h>

#include <limits>

#include "ops/local_kernels/bit_identical/tree.h"
#include "ops/local_kernels/local_args.h"

namespace dtensor {
namespace {

using bit_identical::sum_over;
using bit_identical::sum_type;

enum class Softmax { ordinary, safe, log };

// The largest element of a row is subtracted, unless all are minus infinity.
template <Softmax kind>
void softmax(LocalCall& call) {
  const LocalArgs args(call);
  const auto type = call.outputs[0]->dtype;
  const auto x = args.tensor("self").to(sum_type(type));
  if (x.dim() == 0 || x.numel() == 0) return set_results(call, run_aten_operator(call));
  const auto dim = c10::maybe_wrap_dim(args.integer("dim"), x.dim());
  const auto largest = at::amax(x, dim, /*keepdim=*/true);
  const auto shifted = at::sub(x, largest.masked_fill(largest.eq(-std::numeric_limits<double>::infinity()), 0));
  const auto exponentials = at::exp(shifted);
  const auto sum =
      sum_over(call.mesh, args.spec("self"), args.global_sizes("self"), exponentials, {dim}).unsqueeze(dim);
  auto result = kind == Softmax::log ? at::sub(shifted, at::log(sum)) : at::div(exponentials, sum);
  if (kind == Softmax::safe) result = result.masked_fill(sum.eq(0), 0);
  set_results(call, {result.to(type)});
}

void log_softmax_backward(LocalCall& call) {
  const LocalArgs args(call);
  const auto given = args.tensor("grad_output");
  const auto type = sum_type(given.scalar_type());
  const auto grad = given.to(type), output = args.tensor("output").to(type);
  if (grad.dim() == 0 || grad.numel() == 0) return set_results(call, run_aten_operator(call));
  const auto dim = c10::maybe_wrap_dim(args.integer("dim"), grad.dim());
  const auto sum = sum_over(call.mesh, args.spec("output"), args.global_sizes("output"), grad, {dim}).unsqueeze(dim);
  set_results(call, {at::sub(grad, at::mul(at::exp(output), sum)).to(call.outputs[0]->dtype)});
}

}  // namespace

void add_device_softmax_kernels(LocalKernels& kernels) {
  kernels.emplace("tree_softmax", softmax<Softmax::ordinary>);
  kernels.emplace("tree_safe_softmax", softmax<Softmax::safe>);
  kernels.emplace("tree_log_softmax", softmax<Softmax::log>);
  kernels.emplace("tree_log_softmax_backward", log_softmax_backward);
}

}  // namespace dtensor

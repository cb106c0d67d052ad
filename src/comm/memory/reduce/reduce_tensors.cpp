// Reduces in the type in which ATen accumulates, in the order of the sources, and rounds once.
#include "comm/memory/reduce/reduce_tensors.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "internal/aten_scopes.h"

namespace dtensor {
namespace {

void combine_into(const at::Tensor& result, const at::Tensor& next, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      result.add_(next);
      return;
    case ReduceOp::product:
      result.mul_(next);
      return;
    case ReduceOp::max:
      result.copy_(at::maximum(result, next));
      return;
    case ReduceOp::min:
      result.copy_(at::minimum(result, next));
      return;
  }
}

}  // namespace

at::Tensor reduce_tensors(c10::Device device, at::TensorList sources, ReduceOp op) {
  const LocalBelowAutogradGuard regular;
  const auto dtype = sources[0].scalar_type();
  const auto wide = at::TensorOptions(at::toOpMathType(dtype)).device(device);
  const at::Tensor result = at::empty(sources[0].sizes(), wide).copy_(sources[0]);
  for (const at::Tensor& next : sources.slice(1)) combine_into(result, next.to(wide), op);
  // Divides by a device tensor, since GPUs multiply by the rounded inverse of a number.
  if (op == ReduceOp::avg) result.div_(at::full({}, static_cast<double>(sources.size()), wide));
  return result.to(dtype);
}

}  // namespace dtensor

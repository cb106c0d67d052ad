// Operators on images that run for each plane alone in a BitIdentical scope. ATen's kernels compute what is left beyond
// the last full vector of all planes together by other code.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "ops/local_kernels/local_args.h"

namespace dtensor {
namespace {

// [planes, one batch entry, one channel, ...]
at::Tensor as_planes(const at::Tensor& images) {
  auto sizes = images.sizes().vec();
  const std::int64_t planes = sizes[0] * sizes[1];
  sizes[0] = sizes[1] = 1;
  sizes.insert(sizes.begin(), planes);
  return images.view(sizes);
}

void each_plane(LocalCall& call) {
  if (return_zeros_if_empty(call)) return;
  const auto arguments = torch::jit::last(call.stack, call.info.args.size());
  const torch::jit::Stack given(arguments.begin(), arguments.end());
  const auto planes = as_planes(given[0].toTensor().contiguous());
  const TensorSpec& result = *call.outputs[0];
  const auto out = at::empty(result.local_sizes, at::TensorOptions(result.dtype)), results = as_planes(out);
  at::parallel_for(0, planes.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
    const at::NoGradGuard no_grad;
    for (std::int64_t i = begin; i < end; ++i) {
      torch::jit::Stack stack = given;
      stack[0] = planes[i];
      call.info.op.callBoxed(stack);
      results[i].copy_(stack[0].toTensor());
    }
  });
  set_results(call, {out});
}

}  // namespace

void add_plane_kernels(LocalKernels& kernels) { kernels.emplace("each_plane", each_plane); }

}  // namespace dtensor

// det, slogdet and solve factor the transpose of A if A is contiguous, otherwise A. Their derivative formulas test the
// contiguity of the global A again. A local shard must therefore have the contiguity of the global A, not its own.
#include <ATen/ATen.h>
#include <c10/core/Contiguity.h>

#include "ops/local_kernels/local_args.h"

namespace dtensor {
namespace {

at::Tensor laid_out(const at::Tensor& local, bool contiguous) {
  if (local.dim() < 2 || local.is_contiguous() == contiguous) return local;
  return contiguous ? local.contiguous() : local.mT().contiguous().mT();
}

void factor_full_matrix(LocalCall& call) {
  if (return_zeros_if_empty(call)) return;
  const LocalArgs args(call);
  if (const auto* full = args.spec("A"); full != nullptr) {
    c10::IValue& matrices = torch::jit::peek(call.stack, 0, call.info.args.size());
    const auto numel = c10::multiply_integers(full->sizes);
    matrices = laid_out(matrices.toTensor(), c10::_compute_contiguous<std::int64_t>(full->sizes, full->strides, numel));
  }
  call.info.op.callBoxed(call.stack);
}

}  // namespace

void add_linalg_kernels(LocalKernels& kernels) { kernels.emplace("factor_full_matrix", factor_full_matrix); }

}  // namespace dtensor

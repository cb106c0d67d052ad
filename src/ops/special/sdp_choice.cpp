// Which attention kernel to take: asked about the global sizes, so that every rank gets one answer and nothing moves.
#include <ATen/ops/empty_strided.h>

#include "ops/special/special.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {
namespace {

// Never read: on the CPU its pages are never touched. On a GPU the part stands for the whole; what the choice reads
// (types, features, lengths) does not depend on the rank.
at::Tensor stand_in(const at::Tensor& tensor) {
  auto* impl = dtensor_or_null(tensor);
  if (impl == nullptr) return tensor;
  const auto& spec = *impl->spec();
  if (spec.mesh->device != at::kCPU) return impl->local();
  return at::empty_strided(spec.sizes, spec.strides, at::TensorOptions(spec.dtype));
}

}  // namespace

void sdp_choice_special(const OpEntry& entry, torch::jit::Stack& stack) {
  for (std::size_t i = stack.size() - entry.args.size(); i < stack.size(); ++i) {
    if (stack[i].isTensor()) stack[i] = stand_in(stack[i].toTensor());
  }
  entry.op.callBoxed(stack);
}

}  // namespace dtensor

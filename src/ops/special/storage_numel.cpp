// Whether two tensors' memory has the same length, which forward-mode derivatives ask before they keep a tangent: of a
// DTensor, the length that its global sizes and strides span.
#include <ATen/EmptyTensor.h>

#include "ops/special/special.h"

namespace dtensor {
namespace {

std::size_t spanned(const at::Tensor& tensor) {
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), 1);
}

}  // namespace

void storage_numel_special(const OpEntry&, torch::jit::Stack& stack) {
  const at::Tensor other = torch::jit::pop(stack).toTensor(), self = torch::jit::pop(stack).toTensor();
  stack.emplace_back(spanned(self) == spanned(other));
}

}  // namespace dtensor

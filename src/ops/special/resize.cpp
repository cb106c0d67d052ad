// resize_ and resize_as_ speak of memory too: the elements in row-major order, cut or followed by whatever. Where the
// sizes change the tensor becomes Replicate, since its shards have nothing to do with the new shape.
#include "autograd/moved_view.h"
#include "ops/special/special.h"
#include "redistribute/execute.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

void resize_global(const at::Tensor& tensor, at::IntArrayRef sizes) {
  if (tensor.sizes() == sizes) return;
  auto* impl = as_dtensor(tensor.unsafeGetTensorImpl());
  const auto& spec = *impl->spec();
  const Placements replicate(spec.placements.size());
  report_gather("resize_", spec, replicate);
  at::Tensor whole = redistribute_local(fresh_local(*impl), spec, replicate);
  if (whole.defined()) whole = whole.clone(at::MemoryFormat::Contiguous).resize_(sizes);
  const at::DimVector strides = c10::contiguous_strides(sizes);
  impl->reset(intern_spec(spec.mesh, replicate, sizes, strides, spec.dtype), whole);
}

void resize_special(const OpEntry& entry, torch::jit::Stack& stack) {
  const std::size_t count = entry.args.size();
  const auto tensor = torch::jit::peek(stack, 0, count).toTensor();
  TORCH_CHECK(dtensor_or_null(tensor) != nullptr, entry.name(),
              ": a plain tensor does not take a DTensor's shape this way; call resize_ with its sizes");
  const auto& shape = torch::jit::peek(stack, 1, count);
  const auto sizes = shape.isTensor() ? shape.toTensor().sizes().vec() : shape.toIntVector();
  resize_global(tensor, sizes);
  torch::jit::drop(stack, count);
  stack.emplace_back(tensor);
}

}  // namespace dtensor

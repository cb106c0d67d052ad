// resize_ and resize_as_, which keep the elements in memory order. If the sizes change, the tensor becomes Replicate,
// since its shards do not correspond to the new shape.
#include <ATen/ATen.h>

#include <optional>

#include "autograd/materialized_view.h"
#include "ops/local_kernels/special/special_kernel.h"
#include "placement/stride_order.h"
#include "redistribute/execute.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {
namespace {

// Gathers a copy with the memory order of the global tensor (row-major if the tensor is expanded), which `change` may
// change. The tensor becomes Replicate, with these sizes and strides.
template <class Change>
void replace_memory(DTensorImpl& impl, at::IntArrayRef sizes, at::IntArrayRef strides, Change change) {
  const auto spec = impl.spec();
  const Placements replicate(spec->placements.size());
  report_gather("resize_", *spec, replicate);
  at::Tensor full = redistribute_local(up_to_date_local(impl), *spec, replicate);
  if (full.defined()) {
    full = change(has_dense_order(*spec) ? at::empty_strided(spec->sizes, spec->strides, full.options()).copy_(full)
                                         : full.clone(at::MemoryFormat::Contiguous));
  }
  impl.reset(intern_spec(spec->mesh, replicate, sizes, strides, spec->dtype), full);
}

std::optional<at::MemoryFormat> asked_format(const c10::IValue& format, const c10::IValue& shape) {
  if (format.isNone()) return std::nullopt;
  const auto asked = format.toMemoryFormat();
  const bool preserved = asked == at::MemoryFormat::Preserve;
  TORCH_CHECK(!preserved || shape.isTensor(), "resize_: unsupported memory format ", asked);
  return preserved ? shape.toTensor().suggest_memory_format() : asked;
}

// Changes the strides to those of `format`. The elements keep their order in memory.
void restride_global(const at::Tensor& tensor, at::MemoryFormat format) {
  auto* impl = as_dtensor(tensor.unsafeGetTensorImpl());
  const auto& spec = *impl->spec();
  const auto wanted = at::empty({0}, at::kMeta).resize_(spec.sizes, format).strides().vec();
  if (wanted == at::IntArrayRef(spec.strides)) return;
  const at::DimVector sizes(spec.sizes);
  replace_memory(*impl, sizes, wanted, [&](const at::Tensor& full) { return full.as_strided(sizes, wanted); });
}

}  // namespace

void resize_global(const at::Tensor& tensor, at::IntArrayRef sizes) {
  if (tensor.sizes() == sizes) return;
  replace_memory(*as_dtensor(tensor.unsafeGetTensorImpl()), sizes, c10::contiguous_strides(sizes),
                 [&](const at::Tensor& full) { return full.resize_(sizes); });
}

void resize_special(const OpEntry& entry, torch::jit::Stack& stack) {
  const std::size_t count = entry.args.size();
  const auto tensor = torch::jit::peek(stack, 0, count).toTensor();
  TORCH_CHECK(dtensor_or_null(tensor) != nullptr, entry.name(),
              ": expected a DTensor to resize, got a regular tensor; call resize_ with the DTensor's sizes");
  const auto& shape = torch::jit::peek(stack, 1, count);
  const auto sizes = shape.isTensor() ? shape.toTensor().sizes().vec() : shape.toIntVector();
  const auto format = asked_format(torch::jit::peek(stack, 2, count), shape);
  resize_global(tensor, sizes);
  if (format) restride_global(tensor, *format);
  torch::jit::drop(stack, count);
  stack.emplace_back(tensor);
}

}  // namespace dtensor

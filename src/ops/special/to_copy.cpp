// A DTensor on the meta device is a plain meta tensor of the global sizes: ATen asks for one to learn sizes and types
// (products with zero tensors in second derivatives, for instance).
#include <ATen/ops/empty_strided.h>

#include "ops/kernel.h"
#include "ops/special/special.h"

namespace dtensor {

void to_copy_special(const OpEntry& entry, torch::jit::Stack& stack) {
  const std::size_t count = entry.args.size();
  const auto& device = torch::jit::peek(stack, 3, count);  // self, dtype, layout, device
  if (!device.isDevice() || !device.toDevice().is_meta()) return run_by_rule(entry, stack);
  const at::Tensor self = torch::jit::peek(stack, 0, count).toTensor();
  const auto& dtype = torch::jit::peek(stack, 1, count);
  const auto type = dtype.isNone() ? self.scalar_type() : dtype.toScalarType();
  torch::jit::drop(stack, count);
  stack.emplace_back(at::empty_strided(self.sizes(), self.strides(), at::TensorOptions(type).device(at::kMeta)));
}

}  // namespace dtensor

// The product of gated feed-forward layers (SwiGLU, GeGLU). It saves its two operands for backward, as Megatron's fused
// kernels do; ATen's operators would also save the activation.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor {

enum class GateKind { silu, gelu, gelu_tanh };

// activation(gate) * up, of DTensors or regular tensors. Twice differentiable.
at::Tensor gated_product(GateKind kind, const at::Tensor& gate, const at::Tensor& up);

}  // namespace dtensor

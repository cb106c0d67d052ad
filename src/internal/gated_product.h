// The product of gated feed-forward layers (SwiGLU, GeGLU): the operator dtensor::gated_product. It saves its two
// operands for backward, as Megatron's fused kernels do; ATen's operators would also save the activation.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <tuple>

#include "dtensor/export.h"

namespace dtensor {

enum class GateKind { silu, gelu, gelu_tanh };

// activation(gate) * up, of DTensors or regular tensors. Twice differentiable.
DTENSOR_API at::Tensor gated_product(GateKind kind, const at::Tensor& gate, const at::Tensor& up);

// The composite kernels of the operator and of its derivative, for devices without kernels and for operands that these
// do not take. `activation` is the name of a GateKind.
DTENSOR_API at::Tensor gated_product_of_aten(const at::Tensor& gate, const at::Tensor& up, std::string_view activation);
DTENSOR_API std::tuple<at::Tensor, at::Tensor> gated_product_gradients_of_aten(const at::Tensor& grad,
                                                                               const at::Tensor& gate,
                                                                               const at::Tensor& up,
                                                                               std::string_view activation);

}  // namespace dtensor

// Activation functions of MLPs and experts. Both throw for a number that is no value of Activation.
#pragma once

#include "dtensor/nn.h"

namespace dtensor {

// activation(x), where a gated one is the function of its gate: silu for swiglu, gelu for geglu, sigmoid for glu.
at::Tensor activate(const at::Tensor& x, nn::Activation activation);

// activate(gate) * up, without the activation saved for backward where the operator gated_product has it.
at::Tensor activate_gated(const at::Tensor& gate, const at::Tensor& up, nn::Activation activation);

}  // namespace dtensor

// Activation functions of MLPs and experts.
#include "internal/activations.h"

#include <ATen/ATen.h>

#include "internal/gated_product.h"

namespace dtensor {

bool nn::is_gated(Activation activation) {
  return activation == Activation::swiglu || activation == Activation::geglu || activation == Activation::glu;
}

at::Tensor activate(const at::Tensor& x, nn::Activation activation) {
  switch (activation) {
    case nn::Activation::swiglu:
    case nn::Activation::silu:
      return at::silu(x);
    case nn::Activation::geglu:
    case nn::Activation::gelu:
      return at::gelu(x);
    case nn::Activation::glu:
      return at::sigmoid(x);
    case nn::Activation::relu:
      return at::relu(x);
    case nn::Activation::gelu_tanh:
      return at::gelu(x, "tanh");
  }
  TORCH_CHECK_VALUE(false, "expected a value of Activation, got number ", static_cast<int>(activation));
}

at::Tensor activate_gated(const at::Tensor& gate, const at::Tensor& up, nn::Activation activation) {
  switch (activation) {
    case nn::Activation::swiglu:
    case nn::Activation::silu:
      return gated_product(GateKind::silu, gate, up);
    case nn::Activation::geglu:
    case nn::Activation::gelu:
      return gated_product(GateKind::gelu, gate, up);
    case nn::Activation::gelu_tanh:
      return gated_product(GateKind::gelu_tanh, gate, up);
    default:  // relu saves its result, which the product saves too
      return activate(gate, activation) * up;
  }
}

}  // namespace dtensor

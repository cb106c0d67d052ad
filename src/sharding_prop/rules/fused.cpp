// The operators of the library "dtensor" (docs/design/local_kernels.md): fused computations that ATen does not have.
// Their kernels are registered by dispatch key in the modules that compute them.
#include <torch/library.h>

#include "sharding_prop/rules/rules.h"

namespace dtensor {

TORCH_LIBRARY(dtensor, m) {
  // activation(gate) * up, and its derivatives. `activation`: silu, gelu or gelu_tanh. (nn/gated_product.cpp)
  m.def("gated_product(Tensor gate, Tensor up, str activation) -> Tensor", {at::Tag::pointwise});
  m.def("gated_product_backward(Tensor grad, Tensor gate, Tensor up, str activation) -> (Tensor, Tensor)",
        {at::Tag::pointwise});
}

void add_fused_rules(RuleBook& book) {
  book.rule("dtensor::gated_product", "..., ... -> ...").linear({1});
  book.rule("dtensor::gated_product_backward", "..., ..., ... -> ..., ...").linear({0});
}

}  // namespace dtensor

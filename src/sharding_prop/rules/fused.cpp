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

  // Norms of half-precision rows, for which the local kernels of ATen's norms call them. (row_norm/kernels.h)
  m.def("norm_rows(Tensor x, Tensor? weight, Tensor? bias, float eps, bool centers) -> (Tensor, Tensor, Tensor)");
  m.def("norm_rows_input_gradient(Tensor grad, Tensor x, Tensor? mean, Tensor rstd, Tensor? weight) -> Tensor");
  m.def("norm_rows_parameter_gradients(Tensor grad, Tensor x, Tensor? mean, Tensor rstd) -> (Tensor, Tensor)");
}

void add_fused_rules(RuleBook& book) {
  book.rule("dtensor::gated_product", "..., ... -> ...").linear({1});
  book.rule("dtensor::gated_product_backward", "..., ..., ... -> ..., ...").linear({0});
  book.rule("dtensor::norm_rows", "rn!, n, n -> rn, r, r");
  book.rule("dtensor::norm_rows_input_gradient", "rn!, rn, r, r, n -> rn").linear({0});
  book.rule("dtensor::norm_rows_parameter_gradients", "r!n, rn, r, r -> t!n, tc!n").linear({0});
}

}  // namespace dtensor

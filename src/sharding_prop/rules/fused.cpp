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

  // Rows of tokens and of experts. position [tokens, choices]: the row of each entry, or -1. (moe/row_kernels.h)
  m.def("permute_rows(Tensor x, Tensor position, int kept) -> Tensor");
  m.def("unpermute_rows(Tensor rows, Tensor position, Tensor? weight) -> Tensor");
  m.def("add_unpermuted_rows_(Tensor(a!) base, Tensor rows, Tensor position, Tensor? weight) -> Tensor(a!)");
  m.def("unpermute_rows_backward(Tensor grad, Tensor rows, Tensor position, Tensor weight) -> (Tensor, Tensor)");
  m.def("count_bins(Tensor ids, int bins) -> Tensor");
  m.def("has_grouped_mm(Tensor x) -> bool");

  // Cross entropy of rows of logits. (parallel/loss/row_kernels.h)
  m.def("cross_entropy_largest(Tensor values, int classes) -> Tensor");
  m.def(
      "cross_entropy_sums(Tensor values, Tensor targets, Tensor? weight, Tensor? top, int first, int classes, "
      "int count, int ignore_index, bool smooths) -> (Tensor, Tensor)");
  m.def(
      "cross_entropy_gradient(Tensor values, Tensor targets, Tensor? weight, Tensor factors, int first, int classes, "
      "int count, int ignore_index, Tensor(a!) out) -> ()");

  // a [batch, m, k] b [batch, k, n], for the BitIdentical scope: the contracted indices are summed in leaves of
  // `lengths`. After leaf i, the merges[i] sums before it are added to it, from right to left. Returns the sums that
  // remain: [sums, batch, m, n]. (ops/local_kernels/bit_identical/tiles.cpp)
  m.def("multiply_leaves(Tensor a, Tensor b, int[] lengths, int[] merges) -> Tensor");
}

void add_fused_rules(RuleBook& book) {
  book.rule("dtensor::gated_product", "..., ... -> ...").linear({1});
  book.rule("dtensor::gated_product_backward", "..., ..., ... -> ..., ...").linear({0});
  book.rule("dtensor::norm_rows", "rn!, n, n -> rn, r, r");
  book.rule("dtensor::norm_rows_input_gradient", "rn!, rn, r, r, n -> rn").linear({0});
  book.rule("dtensor::norm_rows_parameter_gradients", "r!n, rn, r, r -> t!n, tc!n").linear({0});
  // Tokens and rows are unsharded: which row an entry has depends on data.
  book.rule("dtensor::permute_rows", "t!d, tk! -> r!d").linear({0});
  book.rule("dtensor::unpermute_rows", "r!d, t!k!, tk -> td").linear({0}, {2});
  book.rule("dtensor::add_unpermuted_rows_", "t!d, r!d, tk!, tk -> td").linear({0, 1}, {0, 3});
  book.rule("dtensor::unpermute_rows_backward", "t!d, r!d, tk!, tk -> rd, tk").linear({0});
  book.rule("dtensor::count_bins", "... -> b!");
  book.replicate("dtensor::has_grouped_mm", "a property of the device");
  // Classes are those of this rank: cross_entropy() splits them and reduces the sums.
  book.rule("dtensor::cross_entropy_largest", "tc! -> t");
  book.rule("dtensor::cross_entropy_sums", "tc!, t, c, t -> t, s!t");
  book.rule("dtensor::cross_entropy_gradient", "tc!, t, c, f!t, tc -> tc");
  book.rule("dtensor::multiply_leaves", "bmk!, bkn -> s!bmn");
}

}  // namespace dtensor

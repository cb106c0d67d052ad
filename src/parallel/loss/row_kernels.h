// The operators dtensor::cross_entropy_largest, cross_entropy_sums and cross_entropy_gradient on the logits of a rank,
// in the dtype of the logits. No autograd, no communication.
#pragma once

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <utility>

#include "dtensor/export.h"
#include "parallel/loss/row_arithmetic.h"

namespace dtensor::loss_rows {

// Operands of all kernels. `values` may have more columns than the rank has classes; these are padding.
struct Rows {
  at::Tensor values;                         // [t, columns >= classes], consecutive in a row
  at::Tensor targets;                        // int64 [t], global classes
  at::Tensor weight;                         // [classes] in the accumulation type, or undefined: ones
  std::int64_t first = 0, classes = 0;       // this rank's classes
  std::int64_t count = 0, ignore_index = 0;  // number of classes of all ranks; the target that is none
  bool smooths = false;                      // whether kSmoothing is needed
};

inline at::TensorOptions sum_options(const at::Tensor& values) {
  return values.options().dtype(at::toOpMathType(values.scalar_type()));
}

// The operators have the fields of `Rows` as arguments. Their kernels take it, and memory for the results, which have
// the accumulation type: double for double, else float.
// largest(rows, top): the largest logit of each row, -inf without classes.
// sums(rows, top, finds_top, sums): `sums` [kSums, t]; kSmoothing is only written if `smooths`. Also computes `top` if
// `finds_top`. A target that is neither a class nor ignore_index is a device assertion.
//
// gradient(rows, factors, out): `out` has the layout of `values` and may be the same memory; zero in the padding.
// `factors` is [kFactors, t].
template <auto kLargest, auto kSums, auto kGradient>
void register_kernels(torch::Library& m) {
  using at::Tensor;
  using Int = std::int64_t;
  using Optional = std::optional<Tensor>;
  m.impl("cross_entropy_largest", [](const Tensor& values, Int classes) {
    Tensor top = at::empty({values.size(0)}, sum_options(values));
    kLargest(Rows{values, {}, {}, 0, classes}, top);
    return top;
  });
  m.impl("cross_entropy_sums",
         [](const Tensor& values, const Tensor& targets, const Optional& weight, const Optional& top, Int first,
            Int classes, Int count, Int ignore_index, bool smooths) {
           const Rows rows{values, targets, weight.value_or(Tensor()), first, classes, count, ignore_index, smooths};
           Tensor found = top ? Tensor() : at::empty({values.size(0)}, sum_options(values));
           Tensor sums = at::zeros({Sum::kSums, values.size(0)}, sum_options(values));
           kSums(rows, top ? *top : found, !top, sums);
           return std::tuple(found, sums);
         });
  m.impl("cross_entropy_gradient",
         [](const Tensor& values, const Tensor& targets, const Optional& weight, const Tensor& factors, Int first,
            Int classes, Int count, Int ignore_index, Tensor& out) {
           const Rows rows{values, targets, weight.value_or(Tensor()), first, classes, count, ignore_index};
           kGradient(rows, factors, out);
         });
}

// The compositions of ATen operators.
DTENSOR_API void largest_of_aten(const Rows& rows, const at::Tensor& top);
DTENSOR_API void sums_of_aten(const Rows& rows, const at::Tensor& top, bool finds_top, const at::Tensor& sums);
DTENSOR_API void gradient_of_aten(const Rows& rows, const at::Tensor& factors, const at::Tensor& out);

// The loops of the CPU.
void largest_loop(const Rows& rows, const at::Tensor& top);
void sums_loop(const Rows& rows, const at::Tensor& top, bool finds_top, const at::Tensor& sums);
void gradient_loop(const Rows& rows, const at::Tensor& factors, const at::Tensor& out);

// Whether the kernels check targets, without a wait for the host.
bool checks_targets_on_device(const at::Tensor& values);

// Calls of the operators.
at::Tensor largest(const Rows& rows);
// The largest logits and the sums, or the sums relative to the given `top`.
std::pair<at::Tensor, at::Tensor> sums(const Rows& rows, at::Tensor top = {});
void gradient(const Rows& rows, const at::Tensor& factors, const at::Tensor& out);

}  // namespace dtensor::loss_rows

// Kernels of cross entropy on the logits of a rank, in the dtype of the logits: loops on the CPU, registered kernels or
// ATen operators on other devices. No autograd, no communication.
#pragma once

#include <ATen/core/Tensor.h>

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

// Kernels of another device, registered by its library. Results have the accumulation type: double for double, else
// float.
struct LossKernels {
  // The largest logit of each row, -inf without classes.
  void (*largest)(const Rows& rows, const at::Tensor& top) = nullptr;
  // `sums` [kSums, t]; kSmoothing is only written if `smooths`. Also computes `top` if `finds_top`. A target that is
  // neither a class nor ignore_index is a device assertion.
  void (*sums)(const Rows& rows, const at::Tensor& top, bool finds_top, const at::Tensor& sums) = nullptr;
  // `out` has the layout of `values` and may be the same memory; zero in the padding. `factors` is [kFactors, t].
  void (*gradient)(const Rows& rows, const at::Tensor& factors, const at::Tensor& out) = nullptr;
};
DTENSOR_API void register_loss_kernels(c10::DeviceType device, const LossKernels& kernels);
const LossKernels& cpu_loops();

// Whether the kernels check targets, without a wait for the host.
bool checks_targets_on_device(const at::Tensor& values);

at::Tensor largest(const Rows& rows);
// The largest logits and the sums, or the sums relative to the given `top`.
std::pair<at::Tensor, at::Tensor> sums(const Rows& rows, at::Tensor top = {});
void gradient(const Rows& rows, const at::Tensor& factors, const at::Tensor& out);

}  // namespace dtensor::loss_rows

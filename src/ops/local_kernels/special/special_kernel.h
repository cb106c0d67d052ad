// Special kernels: operators that run without a sharding rule, because their arguments describe memory (strides and
// offsets) or the tensor object itself.
#pragma once

#include "ops/dispatch/operator_entry.h"
#include "placement/spec.h"

namespace dtensor {

// The special kernel of an operator, or null if it runs by its rule.
SpecialKernel find_special(const OpInfo& op);

void as_strided_special(const OpEntry& entry, torch::jit::Stack& stack);
void resize_special(const OpEntry& entry, torch::jit::Stack& stack);
void factory_out_special(const OpEntry& entry, torch::jit::Stack& stack);
void fourier_special(const OpEntry& entry, torch::jit::Stack& stack);
void amp_unscale_special(const OpEntry& entry, torch::jit::Stack& stack);

// Runs an out= overload by its functional overload, and copies the result to `out`, which is resized if necessary.
void run_functional_and_copy(const c10::OperatorHandle& op, torch::jit::Stack& stack);

// Kernels for composite operators, which autograd would otherwise decompose. They are registered at the autograd key.
at::Tensor linear_special(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias);
at::Tensor rms_norm_special(const at::Tensor& x, at::IntArrayRef shape, const std::optional<at::Tensor>& given,
                            std::optional<double> given_eps);
std::vector<at::Tensor> tensor_split_special(const at::Tensor& self, const at::Tensor& where, std::int64_t dim);
std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_double_backward_special(
    const std::optional<at::Tensor>& of_input, const std::optional<at::Tensor>& of_weight,
    const std::optional<at::Tensor>& of_bias, const at::Tensor& grad, const at::Tensor& weight, const at::Tensor& input,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, std::int64_t groups, std::array<bool, 3> mask);
at::Tensor pad_circular_special(const at::Tensor& self, at::IntArrayRef pad);
at::Tensor attention_special(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const std::optional<at::Tensor>& mask, double dropout, bool causal,
                             std::optional<double> scale, bool gqa);

// aten::linear_backward on regular tensors. ATen implements it for some backends only.
std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_backward_kernel(const at::Tensor& x, const at::Tensor& grad,
                                                                      const at::Tensor& weight,
                                                                      std::array<bool, 3> mask);

// Throws if a generator is passed, on every rank and before the random operator is counted. Random values of a DTensor
// depend only on the random state of its mesh's world.
void check_no_generator(const OpInfo& op, c10::ArrayRef<c10::IValue> args);
// Fills `out` by global index with the values of the random factory `op` (rand, randint, ...) for `args`.
void draw_as(const OpInfo& op, c10::ArrayRef<c10::IValue> args, const at::Tensor& out);

// Reports the gather of an operand to ImplicitRedistributionScope and explain().
void report_gather(const char* name, const TensorSpec& from, const Placements& to);

// Resizes a DTensor and makes it Replicate. Elements keep their order in memory; added elements are uninitialized.
void resize_global(const at::Tensor& tensor, at::IntArrayRef sizes);

}  // namespace dtensor

// Operators that the engine handles as a whole, because their arguments speak of memory (strides and offsets) or of the
// tensor object itself.
#pragma once

#include "ops/dispatch/operator_entry.h"
#include "placement/spec.h"

namespace dtensor {

// Null for most.
SpecialKernel find_special(const OpInfo& op);

void as_strided_special(const OpEntry& entry, torch::jit::Stack& stack);
void resize_special(const OpEntry& entry, torch::jit::Stack& stack);
void factory_out_special(const OpEntry& entry, torch::jit::Stack& stack);
void amp_unscale_special(const OpEntry& entry, torch::jit::Stack& stack);

// Of an overload with out=: what the overload without it returns, copied to `out`, which is resized to it.
void run_functional_and_copy(const c10::OperatorHandle& op, torch::jit::Stack& stack);

// Of operators that autograd decomposes before the engine sees them (registered beside the others).
at::Tensor linear_special(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias);
std::vector<at::Tensor> tensor_split_special(const at::Tensor& self, const at::Tensor& where, std::int64_t dim);
at::Tensor attention_special(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const std::optional<at::Tensor>& mask, double dropout, bool causal,
                             std::optional<double> scale, bool gqa);

// Of plain tensors: ATen has this operator for some backends only.
std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_backward_kernel(const at::Tensor& x, const at::Tensor& grad,
                                                                      const at::Tensor& weight,
                                                                      std::array<bool, 3> mask);

// Refuses a generator, on every rank and before a random operator is counted: what a DTensor holds depends on the
// random state of its mesh's world alone.
void check_no_generator(const OpInfo& op, c10::ArrayRef<c10::IValue> args);
// Fills `out` by global index with what the random factory `op` would make, called with `args` (rand, randint, ...).
void draw_as(const OpInfo& op, c10::ArrayRef<c10::IValue> args, const at::Tensor& out);

// An operand that is gathered for an operator which speaks of memory: what ImplicitRedistributionScope says to that.
void report_gather(const char* name, const TensorSpec& from, const Placements& to);

// Gives a DTensor other sizes: the elements in row-major order, cut or followed by whatever, Replicate.
void resize_global(const at::Tensor& tensor, at::IntArrayRef sizes);

}  // namespace dtensor

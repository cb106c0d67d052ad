// The table of special kernels by operator name with overload, and the short kernels.
#include "ops/local_kernels/special/special_kernel.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/any.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/diagonal.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/item.h>
#include <ATen/ops/select.h>
#include <ATen/ops/tensor_split.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "autograd/materialized_view.h"
#include "ops/checks/explain.h"
#include "ops/checks/inspect_state.h"
#include "ops/dispatch/boxed_kernel.h"
#include "ops/dispatch/functional_overload.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {
namespace {

using torch::jit::Stack;

// Runs LibTorch's decomposition. Its operators have rules and dispatch to the operator kernel.
void decompose(const OpEntry& entry, Stack& stack) {
  entry.op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, stack);
}

// Converts a DTensor to the meta device: the result is a regular meta tensor of the global sizes. ATen does this to
// infer sizes and dtypes (for products with zero tensors in second derivatives, for instance).
void to_copy(const OpEntry& entry, Stack& stack) {
  const std::size_t count = entry.args.size();
  const auto& device = torch::jit::peek(stack, entry.device_arg, count);
  if (!device.isDevice() || !device.toDevice().is_meta()) return run_cached_or_compile(entry, stack);
  const at::Tensor self = torch::jit::peek(stack, 0, count).toTensor();
  const auto& dtype = torch::jit::peek(stack, entry.dtype_arg, count);
  const auto type = dtype.isNone() ? self.scalar_type() : dtype.toScalarType();
  torch::jit::drop(stack, count);
  stack.emplace_back(at::empty_strided(self.sizes(), self.strides(), at::TensorOptions(type).device(at::kMeta)));
}

// Whether two tensors have storage of the same length. Forward-mode autograd requires this of a tangent. The storage of
// a DTensor counts as the length that its global sizes and strides span.
void has_same_storage_numel(const OpEntry&, Stack& stack) {
  const auto spanned = [](const at::Tensor& t) { return at::detail::computeStorageNbytes(t.sizes(), t.strides(), 1); };
  const at::Tensor other = torch::jit::pop(stack).toTensor(), self = torch::jit::pop(stack).toTensor();
  stack.emplace_back(spanned(self) == spanned(other));
}

// Whether the local tensor is pinned; false outside the mesh.
void is_pinned(const OpEntry& entry, Stack& stack) {
  c10::IValue& operand = torch::jit::peek(stack, 0, entry.args.size());
  const at::Tensor tensor = operand.toTensor();
  const auto* impl = dtensor_or_null(tensor);
  if (impl != nullptr && !impl->spec()->mesh->is_member) {
    torch::jit::drop(stack, entry.args.size());
    return stack.emplace_back(false), void();
  }
  if (impl != nullptr) operand = impl->local();
  entry.op.callBoxed(stack);
}

// A tensor with the global shape, whose data is not read; on the CPU its pages stay untouched. On a GPU it is the local
// tensor: what the choice of a kernel reads (dtypes, features, lengths) is equal on all ranks.
at::Tensor shape_of(const at::Tensor& tensor) {
  auto* impl = dtensor_or_null(tensor);
  if (impl == nullptr) return tensor;
  const auto& spec = *impl->spec();
  if (spec.mesh->device != at::kCPU) return impl->local();
  return at::empty_strided(spec.sizes, spec.strides, at::TensorOptions(spec.dtype));
}

// Selects the attention kernel by the global sizes, so that all ranks select the same one without communication.
void choose_attention(const OpEntry& entry, Stack& stack) {
  for (std::size_t i = stack.size() - entry.args.size(); i < stack.size(); ++i) {
    if (stack[i].isTensor()) stack[i] = shape_of(stack[i].toTensor());
  }
  entry.op.callBoxed(stack);
}

c10::List<at::Tensor> copies_of(const c10::IValue& list) {
  c10::List<at::Tensor> copies;
  for (const at::Tensor& tensor : list.toTensorVector()) copies.push_back(tensor.clone());
  return copies;
}

// Functional optimizer steps (_fused_adam and others): the in-place step on copies. Their lists differ in length, which
// rules for list positions do not support.
void step_on_copies(const OpEntry& entry, Stack& stack) {
  const auto& step = entry_of(c10::Dispatcher::singleton().findSchemaOrThrow((entry.name().name + "_").c_str(), ""));
  Stack call = torch::jit::pop(stack, entry.args.size());
  std::vector<c10::List<at::Tensor>> results;
  for (std::size_t i = 0; i < call.size(); ++i) {
    if (!step.args[i].mutated) continue;
    results.push_back(copies_of(call[i]));
    call[i] = results.back().copy();
  }
  step.op.callBoxed(call);
  for (auto& list : results) stack.emplace_back(std::move(list));
}

// Runs an out= overload of a list operator by its functional overload, because local kernels for lists do not support
// out=.
void list_to_out(const OpEntry& entry, Stack& stack) {
  const auto out = torch::jit::pop(stack).toTensorVector();
  functional_overload(entry.op).callBoxed(stack);
  at::_foreach_copy_(out, torch::jit::pop(stack).toTensorVector());
}

// Throws if an element of the first operand is not zero. ATen's kernel reads the element's index from memory, so it
// gets the full tensor.
void check_linalg_errors(const OpEntry& entry, Stack& stack) {
  c10::IValue& operand = torch::jit::peek(stack, 0, entry.args.size());
  const at::Tensor info = operand.toTensor();
  const auto* impl = dtensor_or_null(info);
  const bool outside = impl != nullptr && !impl->spec()->mesh->is_member;  // members of the mesh raise the error
  if (outside || !info.any().item<bool>()) return torch::jit::drop(stack, entry.args.size());
  operand = full_value(info);
  entry.op.callBoxed(stack);
}

// Throws for a matrix with a zero on its diagonal, with its global batch index. The local kernel has only a shard of
// the batch.
void cholesky_inverse(const OpEntry& entry, Stack& stack) {
  const at::Tensor factor = torch::jit::peek(stack, 0, entry.args.size()).toTensor();
  if (factor.dim() > 2 && factor.numel() > 0) {
    const auto zeros = at::diagonal(factor, 0, -2, -1).eq(0);
    const auto first = zeros.to(at::kInt).argmax(-1).add(1).mul(zeros.any(-1));
    at::_linalg_check_errors(first.to(at::kInt), "cholesky_inverse", /*is_matrix=*/false);
  }
  run_cached_or_compile(entry, stack);
}

// The operator libraries of torch.distributed. Their operators are refused: they do not support meshes, and their
// schemas do not declare writes. They would send the local or the gathered tensor, and received data would be lost.
constexpr std::string_view kTorchDistributed[] = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem"};

bool is_torch_distributed_op(const OpInfo& op) {
  const auto library = op.name().getNamespace();
  return library &&
         std::find(std::begin(kTorchDistributed), std::end(kTorchDistributed), *library) != std::end(kTorchDistributed);
}

void refuse_communication(const OpEntry& entry, Stack&) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, entry.text(),
      ": expected regular tensors for an operator of torch.distributed, got a DTensor. Use item() or ",
      "full_tensor() for its value, redistribute() to move or reduce it, and to_local() to ",
      "communicate the local tensor as a regular tensor");
}

using Table = std::unordered_map<std::string, SpecialKernel>;

void add_decomposed(Table& table) {
  for (const char* name :
       {"aten::_unsafe_masked_index", "aten::_unsafe_masked_index_put_accumulate", "aten::allclose", "aten::dist",
        "aten::rot90", "aten::_assert_tensor_metadata", "aten::_functional_assert_scalar",
        "aten::_functional_sym_constrain_range", "aten::_functional_sym_constrain_range_for_size", "aten::resize",
        "aten::resize_as", "aten::is_same_size", "aten::_amp_foreach_non_finite_check_and_unscale",
        "aten::_amp_update_scale", "aten::softmax.int_out", "aten::log_softmax.int_out",
        "aten::_native_batch_norm_legit_functional", "aten::_batch_norm_with_update_functional"}) {
    table.emplace(name, decompose);
    table.emplace(std::string(name) + ".out", decompose);
  }
}

Table make_table() {
  Table table = {
      {"aten::as_strided", as_strided_special},
      {"aten::resize_", resize_special},
      {"aten::resize_as_", resize_special},
      {"aten::_fused_adam", step_on_copies},
      {"aten::_fused_adamw", step_on_copies},
      {"aten::_fused_sgd", step_on_copies},
      {"aten::_fused_adagrad", step_on_copies},
      {"aten::_amp_foreach_non_finite_check_and_unscale_", amp_unscale_special},
      {"aten::_fused_sdp_choice", choose_attention},
      {"aten::_to_copy", to_copy},
      {"aten::_has_same_storage_numel", has_same_storage_numel},
      {"aten::is_pinned", is_pinned},
      {"aten::_fft_c2c", fourier_special},
      {"aten::_fft_r2c", fourier_special},
      {"aten::_fft_c2r", fourier_special},
      {"aten::_linalg_check_errors", check_linalg_errors},
      {"aten::cholesky_inverse", cholesky_inverse},
      {"aten::cholesky_inverse.out", cholesky_inverse},
      {"aten::_foreach_norm.Scalar_out", list_to_out},
      {"aten::linalg_eigvals.out",
       [](const OpEntry& entry, Stack& stack) { run_functional_and_copy(entry.op, stack); }},
  };
  add_decomposed(table);
  return table;
}

// Whether the operator creates a tensor from numbers only and writes it to out=.
bool is_factory_out(const OpInfo& op) {
  return op.has_out && op.args.back().out && op.returns.size() == 1 &&
         std::none_of(op.args.begin(), op.args.end() - 1, [](const ArgInfo& arg) { return arg.holds_tensors(); });
}

}  // namespace

// ATen's composite kernel reads the memory of the indices, which a DTensor does not have.
std::vector<at::Tensor> tensor_split_special(const at::Tensor& self, const at::Tensor& where, std::int64_t dim) {
  TORCH_CHECK(where.scalar_type() == at::kLong && where.dim() <= 1,
              "tensor_split expected tensor_indices_or_sections to be a zero-dimensional or one-dimensional tensor of ",
              "int64, but got ", where.sizes(), " of ", where.scalar_type());
  if (where.dim() == 0) return at::tensor_split(self, where.item<std::int64_t>(), dim);
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < where.size(0); ++i) indices.push_back(where.select(0, i).item<std::int64_t>());
  return at::tensor_split(self, indices, dim);
}

void report_gather(const char* name, const TensorSpec& from, const Placements& to) {
  const auto bytes = find_plan(from, to)->bytes_moved;
  if (bytes == 0) return;
  record_redistribution("operand 0", from.str(), to);
  report_implicit_redistributions(*from.mesh, [&] {
    return c10::str(name, " moves ", bytes, " bytes to the rank that receives most: operand 0 ", from.str(), " -> ",
                    to_string(to), ";");
  });
}

SpecialKernel find_special(const OpInfo& op) {
  static const Table table = make_table();
  const auto it = table.find(c10::toString(op.name()));
  if (it != table.end()) return it->second;
  if (is_torch_distributed_op(op)) return refuse_communication;
  return is_factory_out(op) && op.rule().entry->source != RuleSource::refuse ? factory_out_special : nullptr;
}

}  // namespace dtensor

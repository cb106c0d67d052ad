// Calls the ATen operator on tensors of the global sizes, once per decision. It always runs on the CPU: a GPU kernel
// that fails on an invalid index disables the device for the process.
#include "ops/checks/global_call_check.h"

#include <ATen/ops/full.h>

#include "internal/shard_segments.h"

namespace dtensor {
namespace {

constexpr std::int64_t kMaxCheckedElements = 1 << 16;  // of operands and results together

// Whether the tensor is not divided evenly, so that local sizes differ between ranks.
bool parts_differ(const TensorSpec& spec) {
  at::DimVector parts(spec.sizes.size(), 1);
  for (std::size_t a = 0; a < spec.placements.size(); ++a) {
    const auto& p = spec.placements[a];
    if (lists_sizes(p)) return true;
    if (p.is_shard()) parts[static_cast<std::size_t>(p.dim())] *= chunk_count(p, spec.mesh->layout.shape[a]);
  }
  for (std::size_t d = 0; d < parts.size(); ++d) {
    if (spec.sizes[d] % parts[d] != 0) return true;
  }
  return false;
}

bool has_other_parts(const CachedCall& call) {
  return std::any_of(call.inputs.begin(), call.inputs.end(),
                     [](const InputAction& input) { return input.to && !input.out && parts_differ(*input.to); });
}

// Whether all operands are float, or all are double; operands after the first may also be int64.
bool has_common_types(const CachedCall& call) {
  auto floating = c10::ScalarType::Undefined;
  for (const auto& input : call.inputs) {
    const bool first = &input == &call.inputs.front();
    if (!input.to || (input.to->dtype == c10::ScalarType::Long && !first)) continue;
    if (input.to->dtype != c10::ScalarType::Float && input.to->dtype != c10::ScalarType::Double) return false;
    if (floating != c10::ScalarType::Undefined && floating != input.to->dtype) return false;
    floating = input.to->dtype;
  }
  return floating != c10::ScalarType::Undefined;
}

bool is_small(const CachedCall& call) {
  std::int64_t elements = 0;
  for (const auto& input : call.inputs) elements += input.to ? c10::multiply_integers(input.to->sizes) : 0;
  for (const auto& output : call.decision.outputs) elements += c10::multiply_integers(output.meta.sizes);
  return elements <= kMaxCheckedElements;
}

// Whether all operands can be replaced by copies. Lists may hold regular tensors, which an in-place call would change,
// and tensors of other meshes.
bool are_all_replaceable(const CachedCall& call) {
  return std::all_of(call.inputs.begin(), call.inputs.end(), [](const InputAction& input) { return bool(input.to); });
}

bool requires_check(const OpEntry& entry, const CachedCall& call) {
  if (entry.is_random || entry.gives_view || entry.inplace_view) return false;
  const auto& rule = entry.rule().data();
  if (rule.sizes_from_factors && rule.outputs) return false;  // the rule checks the call instead of the operator
  if (rule.restricts_values || (rule.takes_saved_results && call.mesh->device != c10::kCPU)) return false;
  if (entry.foreach_op() && !are_all_replaceable(call)) return false;
  const bool replaced = call.local_kernel != nullptr && !has_common_types(call);
  return (replaced || has_other_parts(call)) && is_small(call);
}

class FilledArguments {
 public:
  FilledArguments(const CachedCall& call, int value) : call_(call), value_(value) {}

  c10::IValue replace(const c10::IValue& value, ArgKind kind) {
    if (value.isDevice()) return c10::Device(c10::kCPU);
    if (kind == ArgKind::tensor) return next(value);
    if (kind != ArgKind::tensor_list || !value.isList()) return value;
    const auto items = value.toListRef();
    if (value.isTensorList()) return fill(items, c10::List<at::Tensor>());
    return fill(items, c10::List<std::optional<at::Tensor>>());
  }

 private:
  c10::IValue next(const c10::IValue& value) {
    const auto& input = call_.inputs[next_++];
    if (!input.to) return value.isTensor() && value.toTensor().defined() ? value.toTensor().cpu() : value;
    return at::full(input.to->sizes, value_, at::TensorOptions(input.to->dtype));
  }
  template <class List>
  c10::IValue fill(at::ArrayRef<c10::IValue> items, List list) {
    for (const auto& item : items) {
      const auto value = next(item);
      list.push_back(value.isTensor() ? value.toTensor() : at::Tensor());
    }
    return list;
  }

  const CachedCall& call_;
  int value_;
  std::size_t next_ = 0;
};

std::exception_ptr error_with(int value, const OpEntry& entry, c10::ArrayRef<c10::IValue> args,
                              const CachedCall& call) {
  FilledArguments filled(call, value);
  torch::jit::Stack stack;
  for (std::size_t i = 0; i < args.size(); ++i) stack.push_back(filled.replace(args[i], entry.args[i].kind));
  const torch::jit::Stack kept = stack;  // as for meta kernels (infer_outputs.cpp)
  try {
    entry.op.callBoxed(stack);
  } catch (const c10::LinAlgError&) {          // depends on the values of matrices
  } catch (const c10::NotImplementedError&) {  // the kernel may exist for the mesh's device only
    if (call.mesh->device == c10::kCPU) return std::current_exception();
  } catch (const c10::Error&) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace

void validate_full_call(const OpEntry& entry, c10::ArrayRef<c10::IValue> args, const CachedCall& call) {
  if (!requires_check(entry, call)) return;
  const auto error = error_with(0, entry, args, call);
  // An error for both 0 and 1 does not depend on the values: 0 is an invalid divisor or pivot, 1 may be an invalid
  // index.
  if (error && error_with(1, entry, args, call)) std::rethrow_exception(error);
}

}  // namespace dtensor

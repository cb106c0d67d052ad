// Executes a cached call: unwraps operands (ops/execute/unwrap_operands.cpp), runs the local call, writes operands back
// and wraps the results.
#include "ops/execute/execute_call.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include "autograd/gradients/leaf_gradient.h"
#include "autograd/gradients/parameter_views.h"
#include "autograd/materialized_view.h"
#include "internal/host_work.h"
#include "internal/simulated.h"
#include "internal/wrapper_subclass.h"
#include "ops/checks/index_bounds.h"
#include "ops/checks/inspect_state.h"
#include "ops/dispatch/for_each_tensor.h"
#include "ops/execute/call_frame.h"
#include "ops/plan/list_dependencies.h"
#include "random/state.h"
#include "redistribute/execute.h"

namespace dtensor {
namespace {

using torch::jit::Stack;

// Reduces the list arguments of the local call to the positions whose mesh contains this rank.
void keep_positions(const OpEntry& entry, const std::vector<std::int64_t>& present, std::size_t length, Stack& stack,
                    std::size_t first) {
  for (auto i = first; i < stack.size(); ++i) {
    if (has_value_per_position(entry, i - first, stack[i], length)) {
      const auto numbers = stack[i].toTensor();
      stack[i] = numbers.index_select(0, at::tensor(present, numbers.options().dtype(at::kLong)));
    }
    if (!stack[i].isList()) continue;
    const auto items = stack[i].toList();
    auto kept = c10::impl::GenericList(items.elementType());
    for (const auto k : present) {
      if (static_cast<std::size_t>(k) < items.size()) kept.push_back(items.get(static_cast<std::size_t>(k)));
    }
    stack[i] = kept;
  }
}

// Returns the results of the local call to their original list positions.
void restore_positions(const std::vector<std::int64_t>& present, std::size_t length, Stack& stack, std::size_t first) {
  for (auto i = first; i < stack.size(); ++i) {
    if (!stack[i].isTensorList()) continue;
    auto next = stack[i].toTensorVector();
    if (next.empty()) continue;
    std::vector<at::Tensor> all(length);
    auto from = next.begin();
    for (const auto k : present) all[static_cast<std::size_t>(k)] = std::move(*from++);
    stack[i] = std::move(all);
  }
}

void run_present_positions(const ExecutionFrame& frame, Stack& stack, std::size_t first) {
  const auto length = list_argument_length(torch::jit::last(stack, stack.size() - first));
  const auto& absent = frame.call.absent_positions;
  std::vector<std::int64_t> present;
  for (std::size_t k = 0; k < length; ++k) {
    if (k >= absent.size() || !absent[k]) present.push_back(static_cast<std::int64_t>(k));
  }
  keep_positions(frame.entry, present, length, stack, first);
  frame.entry.op.callBoxed(stack);
  restore_positions(present, length, stack, first);
}

// Local kernels read memory. Those of random operators fill memory of their own.
void check_have_memory(const ExecutionFrame& frame) {
  for (const at::Tensor& local : frame.locals) {
    if (local.defined()) check_is_no_wrapper(local, frame.entry.text());
  }
}

void run_kernel(const ExecutionFrame& frame, Stack& stack, const std::vector<SpecPtr>& inputs,
                const std::vector<SpecPtr>& outputs) {
  if (frame.call.local_kernel == nullptr) return frame.entry.op.callBoxed(stack);
  if (!frame.entry.is_random) check_have_memory(frame);
  LocalCall call{frame.entry, stack, frame.call.decision, inputs, outputs, as_mesh_impl(*frame.call.mesh)};
  frame.call.local_kernel(call);
}

void run_local_call(const ExecutionFrame& frame, Stack& stack, std::size_t first) {
  if (!frame.call.absent_positions.empty() && frame.call.local_kernel == nullptr) {
    return run_present_positions(frame, stack, first);
  }
  run_kernel(frame, stack, frame.call.input_specs, frame.call.output_specs);
}

// Whether the operator resized the operand: known from the decision, or from the local result of a replicated call.
bool was_resized(const InputAction& action, const at::Tensor& local) {
  return action.resized || (action.out && !local.sizes().equals(action.result->local_sizes));
}

// Replaces the data of an operand. A regular tensor counts as Replicate, so each rank writes all of it.
void overwrite(c10::TensorImpl& operand, SpecPtr spec, const at::Tensor& local) {
  if (has_dtensor_key(&operand)) return as_dtensor(&operand)->reset(std::move(spec), local);
  const at::Tensor regular(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(&operand));
  regular.resize_(local.sizes()).copy_(local);
}

// Resizes an out= operand on a rank outside its mesh, as on its members. There is no data to write.
void resize_operand_outside(c10::TensorImpl* operand, const InputAction& action) {
  if (action.resized && has_dtensor_key(operand)) as_dtensor(operand)->reset(action.resized, at::Tensor());
}

void resize_operand(c10::TensorImpl& operand, const InputAction& action, const at::Tensor& local) {
  const TensorSpec& spec = *action.result;
  if (action.resized) {
    return overwrite(operand, action.resized, execute_plan(action.write_back_plan, local, spec));
  }
  TORCH_CHECK(!spec.has_shard && !spec.has_partial, "expected an out= tensor without Shard and Partial, got ",
              spec.str(), " with a local result of sizes ", local.sizes());
  overwrite(operand, intern_spec(spec.mesh, spec.placements, local.sizes(), local.strides(), spec.dtype), local);
}

void write_back_operands(const ExecutionFrame& frame) {
  for (std::size_t i = 0; i < frame.call.inputs.size(); ++i) {
    const auto& action = frame.call.inputs[i];
    if (!action.write_back) continue;
    auto* impl = frame.operands.tensors[i];
    if (!action.from->mesh->is_member) {
      resize_operand_outside(impl, action);
      continue;
    }
    if (was_resized(action, frame.locals[i])) {
      resize_operand(*impl, action, frame.locals[i]);
      continue;
    }
    const auto from = with_placements(*action.from, action.result->placements);
    const auto result = execute_plan(action.write_back_plan, frame.locals[i], *from);
    (has_dtensor_key(impl) ? as_dtensor(impl)->local() : frame.owned[i]).copy_(result);
  }
}

void write_materialized_views(const ExecutionFrame& frame) {
  for (const auto i : frame.call.written) {
    auto* impl = frame.operands.tensors[i];
    if (!has_dtensor_key(impl)) continue;
    if (C10_UNLIKELY(as_dtensor(impl)->is_materialized_view())) write_to_base(*as_dtensor(impl));
  }
}

void after_writes(const ExecutionFrame& frame) {
  bump_versions(frame.call, frame.operands.tensors);
  write_materialized_views(frame);
}

// Wraps a result whose sizes only the replicated local result shows. A result that no placement describes (a sparse
// layout, host memory on a device mesh) stays a regular tensor, equal on all ranks.
at::Tensor wrap_with_local_sizes(const ExecutionFrame& frame, const OutputAction& action, const at::Tensor& local) {
  const TensorSpec& spec = *action.spec;
  TORCH_CHECK(local.defined(), frame.entry.name(),
              ": the sizes of the result depend on data, which are not available on world rank ", spec.mesh->world_rank,
              ", which is outside the mesh");
  if (local.layout() != at::kStrided || local.device().type() != spec.mesh->device) return local;
  return make_dtensor(
      intern_spec(action.spec->mesh, spec.placements, local.sizes(), local.strides(), local.scalar_type()), local);
}

at::Tensor wrap(const ExecutionFrame& frame, const OutputAction& action, const at::Tensor& local) {
  if (action.alias >= 0) return frame.owned[action.alias];
  if (action.undefined) return {};
  if (!action.spec || (!local.defined() && action.spec->mesh->is_member)) return local;
  if (action.dynamic) return wrap_with_local_sizes(frame, action, local);
  std::int64_t offset = 0;
  if (local.defined()) check_local_sizes(frame.entry, frame.call, *action.spec, local);
  if (action.base >= 0) offset = frame.owned[action.base].storage_offset() + action.offset_delta;
  auto ordered =
      local.defined() && has_wrong_stride_order(action, local) ? to_stride_order(local, *action.spec) : local;
  auto impl = c10::make_intrusive<DTensorImpl>(*action.prototype, std::move(ordered), offset);
  auto* base = action.base < 0 ? nullptr : frame.operands.tensors[action.base];
  if (base != nullptr && has_dtensor_key(base)) {
    action.materialized ? impl->materialize_view_of(*as_dtensor(base)) : impl->set_view_base(*as_dtensor(base));
  }
  if (action.source >= 0) inherit_source(*impl, *as_dtensor(frame.operands.tensors[action.source]));
  return at::Tensor(std::move(impl));
}

void wrap_results(const ExecutionFrame& frame, Stack& stack, std::size_t first) {
  std::size_t next = 0;
  const auto& outputs = frame.call.outputs;
  for (std::size_t r = first; r < stack.size(); ++r) {
    auto& value = stack[r];
    if (value.isTensor()) {
      value = wrap(frame, outputs[next++], value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      const bool dynamic = next < outputs.size() && outputs[next].dynamic;  // one entry for the entire list
      for (const auto& item : value.toListRef()) {
        list.push_back(wrap(frame, outputs[dynamic ? next : next++], item.toTensor()));
      }
      if (dynamic) ++next;
      value = std::move(list);
    } else {
      ++next;
    }
  }
}

bool is_result(const Stack& stack, std::size_t first, const at::Tensor& local) {
  bool found = false;
  for (std::size_t r = first; r < stack.size(); ++r) {
    for_each_tensor(stack[r], [&](const at::Tensor& result) { found = found || shares_storage(result, local); });
  }
  return found;
}

// Caches the reduced value of a Partial operand for later readers, unless it is a result that the caller may write.
void cache_reduced(const ExecutionFrame& frame, const Stack& stack, std::size_t first) {
  for (std::size_t i = 0; i < frame.call.inputs.size(); ++i) {
    const auto& action = frame.call.inputs[i];
    if (!action.reduces || !has_dtensor_key(frame.operands.tensors[i])) continue;
    if (is_device_copy(*as_dtensor(frame.operands.tensors[i])) || !action.from->mesh->is_member) continue;
    if (is_result(stack, first, frame.locals[i])) continue;
    as_dtensor(frame.operands.tensors[i])->cache_reduced(action.to, frame.locals[i]);
  }
}

// Pushes results without data, for ranks outside the mesh.
void push_results_outside(const ExecutionFrame& frame, Stack& stack) {
  std::size_t next = 0;
  for (const ReturnInfo& ret : frame.entry.returns) {
    TORCH_CHECK(ret.is_tensor, frame.entry.name(), ": the result is a number, which is not available on world rank ",
                frame.call.mesh->world_rank, ", which is outside the mesh");
    if (!ret.is_list) {
      stack.emplace_back(wrap(frame, frame.call.outputs[next++], at::Tensor()));
      continue;
    }
    c10::List<at::Tensor> list;
    while (next < frame.call.outputs.size()) list.push_back(wrap(frame, frame.call.outputs[next++], at::Tensor()));
    stack.emplace_back(std::move(list));
  }
}

// The new local tensor of an in-place view. The operator runs on an alias, since to_local() may have returned the local
// tensor. Undefined outside the mesh.
at::Tensor view_in_place(const ExecutionFrame& frame, Stack& stack, std::size_t first, const at::Tensor& previous) {
  const auto& input = frame.call.inputs[0];
  if (!previous.defined()) return previous;
  auto local =
      input.plan.empty() ? previous : to_stride_order(execute_plan(input.plan, previous, *input.from), *input.to);
  local = local.alias();
  stack[first] = local;
  for (const auto& patch : frame.call.decision.patches) stack[first + patch.arg] = patch.value;
  run_local_call(frame, stack, first);
  return local;
}

// A tensor that keeps the current local memory of `self`, which an in-place redistribution replaces.
c10::intrusive_ptr<DTensorImpl> keep_current_data(const DTensorImpl& self) {
  return c10::make_intrusive<DTensorImpl>(self.spec(), self.local(), self.storage_offset());
}

// Executes t_, squeeze_, ...: the local operator changes the operand's metadata. An operand that had to be
// redistributed becomes a view of its former self, so that other aliases of the former memory see later writes. It does
// so on all ranks, since ranks may differ in whether such aliases exist.
void execute_inplace_view(ExecutionFrame& frame, Stack& stack, std::size_t first) {
  auto* self = as_dtensor(frame.operands.tensors[0]);
  up_to_date_local(*self);
  frame.owned.push_back(stack[first].toTensor());
  const bool moves = !frame.call.inputs[0].plan.empty(), was_materialized = self->is_materialized_view();
  const at::Tensor previous = self->local();
  auto local = view_in_place(frame, stack, first, previous);
  auto base = c10::intrusive_ptr<DTensorImpl>::reclaim_copy(self->base());
  if (moves && !was_materialized) base = keep_current_data(*self);
  const auto& output = frame.call.decision.outputs[0];
  self->reset(intern_spec(output.mesh, output.placements, output.meta.sizes, output.meta.strides, output.meta.dtype),
              std::move(local));
  if (!moves) share_version_counter(self->local(), previous);
  if (base) {
    self->materialize_view_of(*base);
  } else if (was_materialized) {
    self->keep_former_data(previous);
  }
  stack.resize(first);
  stack.emplace_back(frame.owned[0]);
}

// On ranks outside the mesh.
void execute_outside(ExecutionFrame& frame, Stack& stack, std::size_t first) {
  for (auto* impl : frame.operands.tensors) {
    frame.owned.push_back(impl == nullptr ? at::Tensor()
                                          : at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(impl)));
  }
  if (frame.call.reshards) register_gradient_resharding(frame);
  for (std::size_t i = 0; i < frame.call.inputs.size(); ++i) {
    resize_operand_outside(frame.operands.tensors[i], frame.call.inputs[i]);
  }
  if (frame.entry.mutates) bump_versions(frame.call, frame.operands.tensors);
  stack.resize(first);
  // Advances the world's count of random operators, as the local kernel does on members of the mesh.
  if (frame.entry.is_random && frame.call.local_kernel != nullptr)
    (void)next_random_key(as_mesh_impl(*frame.call.mesh));
  push_results_outside(frame, stack);
}

void execute_simple(ExecutionFrame& frame, Stack& stack, std::size_t first) {
  unwrap_arguments(frame, stack, first);
  frame.entry.op.callBoxed(stack);
  if (frame.entry.mutates) after_writes(frame);
  wrap_results(frame, stack, first);
}

}  // namespace

void execute_call(const OpEntry& entry, const CachedCall& call, const CallOperands& operands, Stack& stack) {
  ExecutionFrame frame{entry, call, operands, {}, {}, {}};
  const auto first = stack.size() - entry.args.size();
  std::optional<HostWorkScope> host;
  if (C10_UNLIKELY(call.mesh && call.mesh->compute_mesh() != nullptr)) host.emplace(HostWork::compute);
  if (call.executor == Executor::simple) return execute_simple(frame, stack, first);
  if (call.executor == Executor::inplace_view) return execute_inplace_view(frame, stack, first);
  if (call.executor == Executor::outside) return execute_outside(frame, stack, first);
  if (!call.bounds.empty()) check_index_bounds(frame, /*before=*/true);
  unwrap_arguments(frame, stack, first);
  if (!call.bounds.empty()) check_index_bounds(frame, /*before=*/false);
  run_local_call(frame, stack, first);
  write_back_operands(frame);
  if (entry.mutates) after_writes(frame);
  if (call.reduces) cache_reduced(frame, stack, first);
  wrap_results(frame, stack, first);
}

}  // namespace dtensor

// Determines the local tensor of each operand: unchanged, redistributed alone or in a bucket with its list, gathered
// ahead of time by a schedule, or copied from host memory.
#include <ATen/core/List.h>
#include <ATen/ops/empty.h>

#include "autograd/gradients/gradient_resharding.h"
#include "autograd/gradients/parameter_views.h"
#include "autograd/materialized_view.h"
#include "dtensor/events.h"
#include "internal/host_work.h"
#include "internal/simulated.h"
#include "ops/execute/call_frame.h"
#include "redistribute/batched.h"
#include "redistribute/execute.h"

namespace dtensor {
namespace {

using torch::jit::Stack;

const at::Tensor& local_of(c10::TensorImpl* impl) { return up_to_date_local(*as_dtensor(impl)); }

at::Tensor empty_like_spec(const TensorSpec& spec) {
  return at::empty(spec.local_sizes, at::TensorOptions(spec.dtype).device(at::Device(spec.mesh->device)));
}

// The parameter as gathered ahead of time by a schedule, or undefined.
at::Tensor find_prefetched(const DTensorImpl& impl, const InputAction& action) {
  return has_source(impl) ? find_gathered_by_schedule(impl, *action.to) : at::Tensor();
}

at::Tensor moved_input(const ExecutionFrame& frame, std::size_t index, const at::Tensor& local) {
  const auto& action = frame.call.inputs[index];
  auto* impl = frame.operands.tensors[index];
  if (!frame.moved.empty() && frame.moved[index].defined()) return frame.moved[index];
  const auto* tensor = has_dtensor_key(impl) ? as_dtensor(impl) : nullptr;
  if (tensor != nullptr) {
    if (auto ready = find_prefetched(*tensor, action); ready.defined()) return ready;
  }
  const CollectiveTag tag([&local] { return std::vector<at::Tensor>{local}; });
  auto moved = execute_plan(action.plan, local, *action.from);
  // Slices too: kernels rely on what is contiguous on one device (layer norm's statistics, for instance).
  return to_stride_order(std::move(moved), *action.to);
}

// The local tensor of a device copy: prefetched to the device by a schedule, or copied for this call.
at::Tensor fetched_input(const DTensorImpl& device_copy, const InputAction& action) {
  if (auto ready = find_prefetched(device_copy, action); ready.defined()) return ready;
  auto local = copy_to_device(device_copy.extras()->stored->local(), device_copy.device());
  return action.plan.empty() ? local : to_stride_order(execute_plan(action.plan, local, *action.from), *action.to);
}

at::Tensor input_for(const ExecutionFrame& frame, std::size_t index) {
  const auto& action = frame.call.inputs[index];
  auto* impl = frame.operands.tensors[index];
  if (!action.from) return frame.owned[index];
  if (!action.from->mesh->is_member) return {};
  if (C10_UNLIKELY(has_dtensor_key(impl) && is_device_copy(*as_dtensor(impl))))
    return fetched_input(*as_dtensor(impl), action);
  if (action.out && action.write_back) return empty_like_spec(*action.result);
  const bool regular = !has_dtensor_key(impl);
  const auto& local = regular ? frame.owned[index] : local_of(impl);
  TORCH_CHECK(
      !action.mutated || regular || !as_dtensor(impl)->is_materialized_view() || is_base_writable(*as_dtensor(impl)),
      frame.entry.name(), ": writes to a view whose base was redistributed, so the write would be lost (",
      action.from->str(),
      "). Redistribute the base first, so that the viewed dimension is not sharded, or write to the base.");
  auto result = action.plan.empty() ? local : moved_input(frame, index, local);
  // A clone keeps the local call from writing to the original operand or to memory that it shares.
  if (action.mutated && action.write_back && shares_storage(result, local)) result = result.clone();
  return result;
}

// Whether this rank redistributes an entry of a list.
bool is_redistributed(const InputAction& action, c10::TensorImpl* impl) {
  return impl != nullptr && action.from && action.from->mesh->is_member && !action.plan.empty() &&
         !(action.out && action.write_back) && has_dtensor_key(impl) && !is_device_copy(*as_dtensor(impl));
}

// Redistributes the entries of a list operator, with one collective for each kind, mesh and dtype.
void move_lists(ExecutionFrame& frame) {
  RedistributeBucket bucket;
  std::vector<std::size_t> operands;
  frame.moved.resize(frame.operands.tensors.size());
  for (std::size_t i = 0; i < frame.operands.tensors.size(); ++i) {
    const auto& action = frame.call.inputs[i];
    if (!is_redistributed(action, frame.operands.tensors[i])) continue;
    frame.moved[i] = find_prefetched(*as_dtensor(frame.operands.tensors[i]), action);
    if (frame.moved[i].defined()) continue;
    operands.push_back(i);
  }
  if (operands.size() < 2) return;
  for (const auto i : operands) {
    const auto& action = frame.call.inputs[i];
    bucket.add(action.plan, *action.from, local_of(frame.operands.tensors[i]));
  }
  const CollectiveTag tag([&] {
    std::vector<at::Tensor> locals;
    for (const auto i : operands) locals.push_back(local_of(frame.operands.tensors[i]));
    return locals;
  });
  bucket.run();
  for (std::size_t k = 0; k < operands.size(); ++k) {
    frame.moved[operands[k]] = to_stride_order(bucket[k], *frame.call.inputs[operands[k]].to);
  }
}

c10::IValue list_input(const c10::IValue& value, ExecutionFrame& frame, std::size_t& next) {
  const auto items = value.toListRef();
  auto add_all = [&](auto list) {
    list.reserve(items.size());
    for (std::size_t i = 0; i < items.size(); ++i, ++next) {
      frame.owned.push_back(items[i].isTensor() ? items[i].toTensor() : at::Tensor());
      frame.locals.push_back(frame.operands.tensors[next] == nullptr ? at::Tensor() : input_for(frame, next));
      list.push_back(frame.locals.back());
    }
    return c10::IValue(std::move(list));
  };
  if (value.isTensorList()) return add_all(c10::List<at::Tensor>());
  return add_all(c10::List<std::optional<at::Tensor>>());
}

}  // namespace

void unwrap_arguments(ExecutionFrame& frame, Stack& stack, std::size_t first) {
  std::size_t next = 0;
  if (frame.call.moves_list) move_lists(frame);
  for (std::size_t i = 0; i < frame.entry.args.size(); ++i) {
    auto& value = stack[first + i];
    if (frame.entry.args[i].kind == ArgKind::tensor_list && value.isList()) {
      value = list_input(value, frame, next);  // a new list, since the caller shares the old one
    } else if (frame.entry.args[i].kind == ArgKind::tensor) {
      frame.owned.push_back(value.isTensor() ? value.toTensor() : at::Tensor());
      frame.locals.push_back(frame.operands.tensors[next] == nullptr ? at::Tensor() : input_for(frame, next));
      if (frame.locals.back().defined()) value = frame.locals.back();
      ++next;
    }
  }
  for (const auto& patch : frame.call.decision.patches) stack[first + patch.arg] = patch.value;
  if (frame.call.reshards) register_gradient_resharding(frame);
}

void register_gradient_resharding(const ExecutionFrame& frame) {
  for (std::size_t i = 0; i < frame.call.inputs.size(); ++i) {
    if (frame.call.inputs[i].reshards) reshard_gradient_to_operand(frame.owned[i]);
  }
}

}  // namespace dtensor

// What a call with local semantics computes with: a parameter as a tensor of this rank, and the way back of its
// gradient.
#include <ATen/ATen.h>

#include "internal/gather_hook.h"
#include "internal/wrapper_subclass.h"
#include "parallel/fsdp/call/local_module_call.h"
#include "parallel/fsdp/extended_gather.h"
#include "parallel/mesh_slice.h"

namespace dtensor::fsdp {
namespace {

at::Tensor gathered_memory(const UnitParameter& member, const DTensor& parameter) {
  auto& p = member.parameter();
  if (p.extended && p.extended->is_ready()) {
    return p.extended->unsharded(p.sharded ? at::IntArrayRef(p.layout.sizes) : parameter.to_local().sizes());
  }
  if (p.in_flat_buffer && p.has_original_layout(parameter)) {
    if (!member.unit->is_gathered())
      return at::empty(p.layout.sizes, at::TensorOptions(p.gather_dtype()));  // no elements
    return view_of(member.unit->flat, p.gather_dtype(), p.layout.sizes, p.layout.strides, p.offset);
  }
  // A parameter that was converted (module.to(dtype)) computes in its new dtype, unless the unit has a param_dtype.
  const auto local = gathered_local(parameter, p.unsharded_placements);
  const auto dtype = p.param_dtype.value_or(local.scalar_type());
  return local.scalar_type() == dtype ? local.alias() : local.to(dtype);
}

}  // namespace

at::Tensor make_unsharded_parameter(const UnitParameter& member) {
  const at::NoGradGuard no_grad;
  auto& p = member.parameter();
  const auto tensor = p.lock();
  TORCH_CHECK(tensor.defined(), "fully_shard: parameter '", p.name,
              "' was freed, but others of its unit are used; keep all parameters of the model alive");
  p.check_initialized(DTensor(tensor));
  auto local = gathered_memory(member, DTensor(tensor));
  if (!p.tp_axes.mesh) return local;
  return DTensor::from_local(local, p.tp_axes.mesh, p.tp_axes.placements, p.sizes, p.strides);
}

// The divide factor is part of each contribution, so it applies once, whichever way and whenever the sum is reduced.
at::Tensor gradient_from_unsharded(const UnitParameter& member, const at::Tensor& gradient) {
  const auto& unit = *member.unit;
  const auto& p = member.parameter();
  TORCH_CHECK_NOT_IMPLEMENTED(
      !gradient.key_set().has_any(c10::DispatchKeySet({c10::DispatchKey::Batched, c10::DispatchKey::FuncTorchBatched})),
      "fully_shard: expected one gradient of parameter '", p.name,
      "', got a batch of them (is_grads_batched = true, torch.func.vmap). Ranks reduce the gradient of a ",
      "parameter: compute one after the other, or batch gradients of inputs");
  Placements placements = p.unsharded_placements;
  at::Tensor local = gradient;
  if (is_dtensor(gradient) && is_slice(DTensor(gradient).mesh(), unit.mesh)) {
    placements = placements_on_full_mesh(DTensor(gradient), unit.mesh);
    local = DTensor(gradient).to_local();
  } else if (is_dtensor(gradient)) {  // of activations on other axes, beside which the parameter counted as replicated
    local = DTensor(gradient).full_tensor();
  }
  if (is_wrapper_subclass(local)) local = copy_to_memory(local);
  if (unit.divide_factor.value_or(1) != 1) local = local.to(p.dtype).div(*unit.divide_factor);
  return DTensor::from_local(local, unit.mesh, unit.contribution_placements(placements), p.sizes, p.strides);
}

}  // namespace dtensor::fsdp

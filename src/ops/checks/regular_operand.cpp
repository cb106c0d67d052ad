// Selects the regular operands that are compared across the mesh, and the calls at which they are.
#include "ops/checks/regular_operand.h"

#include "autograd/gradients/leaf_gradient.h"
#include "autograd/gradients/parameter_views.h"
#include "comm/record/hash.h"
#include "internal/local_data.h"
#include "internal/scoped_value.h"
#include "mesh/content_hash.h"
#include "ops/checks/inspect_state.h"
#include "ops/dispatch/for_each_tensor.h"

namespace dtensor {
namespace {

const char* argument_name(const OpEntry& entry, std::size_t arg) {
  return entry.schema().arguments()[arg].name().c_str();
}

// A hash of what ranks share of a call: the operator, the global part of the DTensors' specs, and the sizes and dtypes
// of regular operands. Strides of regular operands are excluded, because they may differ between ranks.
std::uint64_t kind_of_call(const OpEntry& entry, const CallOperands& operands) {
  std::uint64_t hash = entry.index + 1;
  const auto add = [&](std::uint64_t word) { hash = hash_combine(hash, word); };
  for (const auto* impl : operands.tensors) {
    add(impl == nullptr ? 0 : 1);
    if (impl == nullptr) continue;
    add(static_cast<std::uint64_t>(c10::typeMetaToScalarType(impl->dtype())));
    for (const auto size : impl->sizes()) add(static_cast<std::uint64_t>(size));
    if (!has_dtensor_key(impl)) continue;
    for (const auto& p : static_cast<const DTensorImpl*>(impl)->spec()->placements) add(p.hash());
  }
  return hash;
}

// Samples the first call of a kind, and about 2 ln(n) of n calls after many. The gaps have no period, so that operands
// that alternate in one kind of call are all sampled eventually.
bool is_sampled(std::uint64_t count) {
  constexpr std::uint64_t kSampledFrom = 256;
  if (count < kSampledFrom) return count == 1;
  std::uint64_t mixed = count * 0x9E3779B97F4A7C15ull;
  mixed = (mixed ^ (mixed >> 29)) * 0xff51afd7ed558ccdull;
  return (mixed >> 32) % count < 2;
}

// The regular operands whose values affect the result, with their argument index.
std::vector<std::pair<std::size_t, at::Tensor>> regular_operands(const OpEntry& entry,
                                                                 c10::ArrayRef<c10::IValue> args) {
  std::vector<std::pair<std::size_t, at::Tensor>> found;
  for_each_operand(entry, args, [&](std::size_t arg, int, const c10::IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined() || value.toTensor().dim() == 0) return;
    if (has_dtensor_key(value.unsafeToTensorImpl()) || (entry.is_unread(arg, args) && !strict_mode())) return;
    found.emplace_back(arg, value.toTensor());
  });
  return found;
}

// Whether an operand is a parameter of an FSDP unit, or a view of one.
bool is_of_unit(const c10::TensorImpl* operand) {
  if (operand == nullptr || !has_dtensor_key(operand)) return false;
  const auto& tensor = *static_cast<const DTensorImpl*>(operand);
  return has_source(tensor) && tensor.extras()->source.hooks->use;
}

// Whether the current module call has local semantics, so that regular operands may differ between ranks. The decision
// does not depend on values.
bool is_local_data_call(const CallOperands& operands) {
  const auto* own = ScopedValue<LocalDataCall>::current();
  if (own == nullptr) return false;
  if (std::any_of(operands.tensors.begin(), operands.tensors.end(), is_of_unit)) return true;
  const auto mesh = c10::intrusive_ptr<MeshImpl>::reclaim_copy(const_cast<MeshImpl*>(&as_mesh_impl(*operands.mesh)));
  return own->mesh && own->mesh == DeviceMesh(mesh);
}

AxisMask all_axes(const MeshInfo& mesh) { return static_cast<AxisMask>((1u << mesh.layout.ndim()) - 1); }

}  // namespace

bool should_sample_call(const OpEntry& entry, const CallOperands& operands) {
  return is_sampled(as_mesh_impl(*operands.mesh).count(~kind_of_call(entry, operands)));
}

void check_regular_operands(const OpEntry& entry, c10::ArrayRef<c10::IValue> args, const CallOperands& operands) {
  const auto kind = hash_combine(kind_of_call(entry, operands), entry.is_unread(0, args) ? 1 : 0);
  const bool picked = is_sampled(as_mesh_impl(*operands.mesh).count(kind));
  const bool on_local_data = is_local_data_call(operands);
  if (!picked && !on_local_data && !checked_values() && !strict_mode()) return;
  const auto compared = regular_operands(entry, args);
  const auto what = [&](std::size_t i) {
    return c10::str(entry.name(), ": operand `", argument_name(entry, compared[i].first), "` of sizes ",
                    compared[i].second.sizes());
  };
  if (compared.empty()) return;
  TORCH_CHECK(!strict_mode(), what(0),
              " is a regular tensor among DTensors, which Strict refuses. Distribute it with distribute_tensor.");
  TORCH_CHECK(
      !on_local_data, what(0),
      " is data of this rank and meets a DTensor on the mesh of an FSDP unit whose module was called with regular ",
      "tensors. A parameter is gathered only during the call of its unit's module: call that module (in C++ by ",
      "call()), do not make the parameter a unit of its own, or use full_tensor()");
  if (!operands.mesh->is_member) return;
  std::vector<at::Tensor> tensors;
  for (const auto& operand : compared) tensors.push_back(operand.second);
  check_all_equal_across_ranks(as_mesh_impl(*operands.mesh), all_axes(*operands.mesh), tensors, [&](std::size_t i) {
    return what(i) +
           " is a regular tensor whose values differ between ranks; a regular tensor among DTensors counts as "
           "Replicate. "
           "Distribute it (distribute_tensor) or wrap the local parts (DTensor::from_local).";
  });
}

}  // namespace dtensor

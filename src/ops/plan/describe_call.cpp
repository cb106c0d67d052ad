// Describes a call for sharding propagation.
#include "internal/bit_identical.h"

#include <c10/util/strides.h>
#include "mesh/mesh_impl.h"
#include "ops/dispatch/for_each_tensor.h"
#include "ops/execute/gradient_target.h"
#include "ops/plan/compile_call.h"

namespace dtensor {
namespace {

// A regular tensor counts as Replicate. Null for tensors that are passed unchanged: read-only 0-dim tensors, list
// positions without a mesh, and tensors that are not strided.
SpecPtr spec_of(c10::TensorImpl* impl, const MeshRef& mesh, bool mutated) {
  if (has_dtensor_key(impl)) return as_dtensor(impl)->spec();
  if ((impl->dim() == 0 && !mutated) || !mesh || impl->layout() != c10::kStrided) return nullptr;
  return intern_spec(mesh, Placements(mesh->layout.shape.size()), impl->sizes(), impl->strides(),
                     c10::typeMetaToScalarType(impl->dtype()));
}

// Regular tensors count as contiguous: their strides may differ between ranks, but decisions and result strides must
// not.
at::DimVector seen_strides(const c10::TensorImpl* impl) {
  return has_dtensor_key(impl) ? at::DimVector(impl->strides()) : c10::contiguous_strides(impl->sizes());
}

Operand describe_operand(c10::TensorImpl* impl, int arg, int list_index, const MeshRef& mesh, bool mutated) {
  Operand operand;
  operand.arg = arg;
  operand.list_index = list_index;
  if (impl == nullptr) return operand;
  operand.defined = true;
  operand.wrapped_number = impl->is_wrapped_number();
  operand.spec = spec_of(impl, mesh, mutated);
  operand.sizes = impl->sizes();
  operand.strides = seen_strides(impl);
  operand.strided = impl->layout() == c10::kStrided;
  operand.dtype = c10::typeMetaToScalarType(impl->dtype());
  return operand;
}

MeshRef mesh_ref(const CallOperands& operands) {
  for (auto* impl : operands.tensors) {
    if (impl != nullptr && has_dtensor_key(impl)) return as_dtensor(impl)->spec()->mesh;
  }
  return {};
}

// For list operators with a mesh per position: the mesh of the first DTensor at that position; null if there is none.
MeshRef mesh_at(const OpEntry& entry, c10::ArrayRef<c10::IValue> args, int position, const MeshRef& fallback) {
  if (position < 0 || !entry.foreach_op()) return fallback;
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (entry.args[i].kind != ArgKind::tensor_list || !args[i].isList()) continue;
    const auto list = args[i].toListRef();
    if (static_cast<std::size_t>(position) >= list.size() || !list[position].isTensor()) continue;
    auto* impl = list[position].unsafeToTensorImpl();
    if (has_dtensor_key(impl)) return as_dtensor(impl)->spec()->mesh;
  }
  return {};
}

void check_one_mesh(const OpEntry& entry, const OpCall& call) {
  if (entry.foreach_op()) return;
  for (const auto& operand : call.operands) {
    TORCH_CHECK(!operand.spec || operand.spec->mesh == call.mesh, entry.name(),
                ": expected all operands on one mesh, got operands on two meshes: ", as_mesh_impl(*call.mesh).str(),
                " and ", as_mesh_impl(*operand.spec->mesh).str(),
                ". Redistribute one of them onto the other's mesh: redistribute(mesh, placements).");
  }
}

// Prefers the placements of the leaf that receives the result: the leaf of the current node that has the result's
// sizes. Storage shards give no preference, because the FSDP unit reduces their gradients.
void set_preferred_result(OpCall& call) {
  for (const SpecPtr& leaf : gradient_leaf_specs()) {
    const bool fits = leaf->mesh == call.mesh && !call.outputs.empty() && call.outputs[0].sizes == leaf->sizes;
    if (!fits) continue;
    call.preferred_result = leaf->placements;
    for (auto& p : call.preferred_result) p = p.is_shard() && !p.is_storage() ? p : Replicate();
    return;
  }
}

}  // namespace

OpCall describe_call(const OpEntry& entry, c10::ArrayRef<c10::IValue> args, const CallOperands& operands) {
  OpCall call;
  call.info = &entry;
  call.args = args;
  call.mesh = mesh_ref(operands);
  std::size_t next = 0;
  for_each_operand(entry, args, [&](std::size_t i, int position, const c10::IValue&) {
    call.operands.push_back(describe_operand(operands.tensors[next++], static_cast<int>(i), position,
                                             mesh_at(entry, args, position, call.mesh), entry.args[i].mutated));
  });
  call.block = bit_identical_block();
  check_one_mesh(entry, call);
  infer_outputs(call);
  if (entry.rule().data().follows_parameter_placement) set_preferred_result(call);
  return call;
}

}  // namespace dtensor

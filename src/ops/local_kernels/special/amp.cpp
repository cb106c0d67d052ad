// Gradient scaling: unscales local gradients, and sets found_inf on every rank if any rank found an infinity or NaN.
#include "autograd/materialized_view.h"
#include "internal/bit_identical.h"
#include "mesh/mesh_impl.h"
#include "ops/local_kernels/special/special_kernel.h"
#include "redistribute/execute.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {
namespace {

void check_reaches_base(const DTensorImpl& written, const char* what) {
  TORCH_CHECK(!written.is_materialized_view() || is_base_writable(written),
              "_amp_foreach_non_finite_check_and_unscale_: ", what,
              " is a view whose base was redistributed, so the write would be lost (", written.spec()->str(),
              "). Redistribute the base first.");
}

// The local gradient; undefined outside the mesh. Partial gradients are refused, since summands may be finite although
// their sum is not.
at::Tensor local_gradient(const at::Tensor& tensor) {
  auto* impl = dtensor_or_null(tensor);
  if (impl == nullptr) return tensor;
  for (const Placement& p : impl->spec()->placements) {
    TORCH_CHECK(!p.is_partial(), "_amp_foreach_non_finite_check_and_unscale_: a gradient is not reduced yet, ",
                impl->spec()->str());
  }
  check_reaches_base(*impl, "a gradient");
  const at::Tensor& local = up_to_date_local(*impl);
  bump_local_version(*impl);
  return local;
}

// Collects each mesh once, in order of appearance.
void note_mesh(const at::Tensor& tensor, std::vector<MeshRef>& meshes) {
  auto* impl = dtensor_or_null(tensor);
  if (impl == nullptr) return;
  const auto& mesh = impl->spec()->mesh;
  if (std::find(meshes.begin(), meshes.end(), mesh) == meshes.end()) meshes.push_back(mesh);
}

// Writes the values of materialized views to their bases.
void write_bases(at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors) {
    auto* impl = dtensor_or_null(tensor);
    if (impl != nullptr && impl->is_materialized_view()) write_to_base(*impl);
  }
}

// Writes a replicated value to the DTensor. `value` may be its local tensor.
void write_full(const at::Tensor& tensor, const at::Tensor& value) {
  auto* impl = dtensor_or_null(tensor);
  if (impl == nullptr) return;
  if (!value.is_same(impl->local())) {
    const auto replicate = with_placements(*impl->spec(), Placements(impl->spec()->placements.size()));
    impl->local().copy_(redistribute_local(value, *replicate, impl->spec()->placements));
  }
  bump_local_version(*impl);
  write_bases(tensor);
}

void agree(const at::Tensor& found, const MeshInfo& mesh) {
  if (!mesh.is_member || mesh.layout.ranks.size() == 1) return;
  const auto axes = static_cast<AxisMask>((1u << mesh.layout.ndim()) - 1);
  as_mesh_impl(mesh).communicator(axes).all_reduce(found, ReduceOp::max).wait();
}

}  // namespace

// Arguments: self (a list), found_inf, inv_scale.
void amp_unscale_special(const OpEntry& entry, torch::jit::Stack& stack) {
  refuse_if_bit_identical(entry.text().c_str());
  const auto arguments = torch::jit::pop(stack, entry.args.size());
  std::vector<MeshRef> meshes;
  c10::List<at::Tensor> parts;
  const auto tensors = arguments[0].toTensorVector();
  if (const auto* impl = dtensor_or_null(arguments[1].toTensor())) check_reaches_base(*impl, "found_inf");
  for (const at::Tensor& tensor : tensors) {
    note_mesh(tensor, meshes);
    const at::Tensor local = local_gradient(tensor);
    if (local.defined()) parts.push_back(local);
  }
  const at::Tensor found = full_value(arguments[1].toTensor());
  torch::jit::Stack call{parts, found, full_value(arguments[2].toTensor())};
  if (!parts.empty()) entry.op.callBoxed(call);
  write_bases(tensors);
  // Each round propagates found_inf between meshes that share ranks; a chain of n meshes takes n rounds.
  for (std::size_t round = 0; round < meshes.size(); ++round) {
    for (const auto& mesh : meshes) agree(found, *mesh);
  }
  write_full(arguments[1].toTensor(), found);
}

}  // namespace dtensor

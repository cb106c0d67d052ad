// Plain tensors among DTensors count as Replicate, which is only right if every rank gives the same values.
#pragma once

#include "mesh/mesh_impl.h"
#include "ops/call_view.h"

namespace dtensor {

// Compares the content of each plain operand of dimension >= 1 across the ranks of the mesh: in checked mode at every
// call, else at those that the mesh's count of such calls picks (docs/design.md, "Plain operands"). A difference, and
// any such operand under Strict, is an error that names the operand. To be called once for every such call; collective.
void check_plain_operands(const OpEntry& entry, c10::ArrayRef<c10::IValue> args, const CallView& view);

// Of sizes, type and values; never of the strides.
std::uint64_t content_hash(const at::Tensor& tensor);

// Throws on every rank unless `tensor` holds the same bytes on all ranks that differ along `axes` only. Collective over
// them.
void check_equal_across(const MeshImpl& mesh, AxisMask axes, const at::Tensor& tensor, const std::string& complaint);

}  // namespace dtensor
